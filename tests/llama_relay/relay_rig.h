// SPDX-License-Identifier: Apache-2.0
// What the tests of the proxy share: a FakeLlamaServer, the real LlamaProxy before it, and a client.
//
// Threads: the client's calls from any. Lifetime: the proxy goes first; what the server has to complain about fails the
// test then.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/http_client.h"
#include "server/llama/llama_proxy.h"
#include "tests/llama_relay/fake_llama_server.h"
#include "tests/llama_relay/small_folder.h"
#include "tests/support/temporary_directory.h"

namespace larder::llama::relay_test {

using Json = nlohmann::json;

inline constexpr std::uint32_t kPage = 16, kOriginalContext = 4096;

struct RigOptions {
  BlobGeometry geometry;
  std::uint32_t slots = 1, workers = 32;
  std::uint32_t checkpoint_offset = 0;
  Nanos quiet_limit = std::chrono::seconds(20);
  Nanos ask_limit = std::chrono::seconds(20);
  Nanos slots_limit = std::chrono::seconds(20);
  Nanos proof_pause = Nanos{0};
  bool is_secure = false;         // TLS on both sides of the proxy
  bool has_long_factors = false;  // of RoPE, for contexts beyond the model's original one of kOriginalContext
  bool shifts_context = false;    // --context-shift
  bool has_full_window = false;   // --swa-full
  bool has_adapter = false, has_control_vector = false;
  bool is_own = false;               // the proxy is told how often the server was started
  std::uint32_t context = 1024;      // of a slot
  std::uint32_t shared_context = 0;  // of all; 0: the same
  Clock* clock = &real_clock();
  TraceOptions trace = {};
  std::string key{};  // of the server; the proxy knows it
};

struct Answer {
  Status status;  // of the connection
  unsigned http = 0;
  Json body;
  Tokens tokens;
  std::optional<std::uint64_t> reused;  // as the proxy says
  std::string from, miss;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  [[nodiscard]] FakeLlamaServer& server() { return *server_; }
  [[nodiscard]] LlamaProxy& proxy() { return *proxy_; }
  [[nodiscard]] const BlobGeometry& geometry() const { return options_.geometry; }
  [[nodiscard]] HttpUrl url() const;
  void stop_proxy() { proxy_.reset(); }
  // With the store and the server that are there.
  void start_proxy();
  // caps_slots: with --kv-unified-per-slot.
  [[nodiscard]] Status try_start_proxy(bool caps_slots);
  void kill_server();
  // Under the old address, with empty slots.
  void start_server(const std::string& build = "fake-1") { start_server(build, options_.context); }
  void start_server(const std::string& build, std::uint32_t context);
  // From the next start on, at every start (LLAMA_MEDIA_MARKER); each start has another one else.
  void pin_marker(const std::string& marker) { marker_ = marker; }
  // What their files have; of the same size.
  void write_adapter(std::uint32_t number) const;
  void write_control_vector(std::uint32_t number) const;

  [[nodiscard]] Answer post(const std::string& path, const Json& body, const std::vector<HttpField>& more = {}) const;
  // /completion; the tokens must be those of a server that has computed all of the prompt.
  Answer ask(const Tokens& prompt, const Json& more = Json::object()) const;
  // How much of the prompt was reused.
  [[nodiscard]] std::uint64_t reused(const Tokens& prompt) const { return ask(prompt).reused.value_or(0); }
  [[nodiscard]] Tokens expected(const Tokens& prompt, std::size_t count = 4) const {
    return expected_answer(options_.geometry, prompt, count);
  }
  // A request waits for a slot, or for several.
  [[nodiscard]] bool has_waiting() const;
  // No slot is in use, nothing is being saved, and storage has it all.
  void wait_idle() const;
  [[nodiscard]] double metric(const std::string& name) const;
  // Slot files that are there.
  [[nodiscard]] std::vector<std::string> slot_files() const;
  [[nodiscard]] SmallFolder& folder() { return folder_; }
  void flush() const;

 private:
  const RigOptions options_;
  // Of server and proxy, which have one certificate; empty without TLS.
  [[nodiscard]] TlsFiles tls() const;
  [[nodiscard]] std::string ca_file() const { return options_.is_secure ? certificates_.path() + "/ca.pem" : ""; }

  const support::TemporaryDirectory certificates_;
  const support::TemporaryDirectory slots_, store_, models_;
  SmallFolder folder_{slots_.path()};
  std::uint16_t port_ = 0;
  std::atomic<std::uint64_t> starts_ = 0;  // the proxy asks on its own threads
  std::optional<std::string> marker_;
  std::unique_ptr<FakeLlamaServer> server_;
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<LlamaProxy> proxy_;
};

[[nodiscard]] Tokens random_tokens(std::size_t count, std::uint64_t seed);
[[nodiscard]] Tokens joined(Tokens a, const Tokens& b);
[[nodiscard]] inline Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}
// "dense", "hybrid", ... as all_geometries() names them.
[[nodiscard]] BlobGeometry geometry_of(const std::string& name);

}  // namespace larder::llama::relay_test
