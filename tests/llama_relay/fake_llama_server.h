// SPDX-License-Identifier: Apache-2.0
// A llama-server without a model, for tests of the proxy before it: HTTP on a port of its own, slots, slot files.
//
//   client ◄─► LlamaProxy ◄─► FakeLlamaServer ── slot files ── the proxy's folder
//
// All that a slot holds goes into each next row, state and token (FakeSequenceHost), and slot files are read and
// written as llama.cpp does: a wrong byte, page, order or checkpoint that is restored is another answer, which
// expected_answer() tells. Text is its bytes, with a token in front.
//
// Slots that share their cells (geometry.streams 1) share `shared_context`: where that is full while one computes, the
// first one that does not is emptied, and nobody is told; where there is none, all that compute fail and are empty.
//
// It is stricter than the real one. What the proxy must not do is noted for take_complaints(): a slot that two requests
// use at once, a request without a slot, fields that nobody asked for, a save of an empty slot, an impossible file.
//
// Threads: any. Lifetime: its destructor is a kill -9: connections break off, nothing is answered any more.
// Cost: the square of the tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/metrics.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/fake_sequence_host.h"
#include "server/http_listener.h"
#include "server/reply_stream.h"

namespace larder::llama::relay_test {

using Tokens = std::vector<TokenId>;

inline constexpr TokenId kMedia = 1000;  // what an image becomes

struct FakeServerSettings {
  BlobGeometry geometry;
  std::uint32_t slots = 1, context = 1024;
  // Of all slots together, if they share it: a restore that does not fit is refused. 0: as much as `context`.
  std::uint32_t shared_context = 0;
  bool shifts_context = false;          // a slot that is full loses half of its tokens, and moves the others' rows
  std::uint32_t checkpoint_offset = 0;  // a state is kept so many tokens before the end of each prompt; 0: none is
  // --swa-full: it goes back to wherever the window has a row before, whether all that is seen from there is in it or
  // not.
  bool has_full_window = false;
  std::string slot_directory, model_path;
  std::string build = "fake-1", instance = "first";   // of /props
  nlohmann::json adapters = nlohmann::json::array();  // of /lora-adapters
  std::uint16_t port = 0;
  TlsFiles tls{};
  std::string key{};                        // empty: it asks for none
  FileSystem* files = &real_file_system();  // through which slots are saved
};

enum class Fault : std::uint8_t {
  kRefuse,      // an error; "restore": the slot is empty then; "save": a part of the file is there
  kDrop,        // the connection breaks off, and nothing is done
  kOtherToken,  // "save": the file has another token
  kCut,         // "save": the file ends too early
  kErrorEvent   // "answer": a stream ends so behind its first token, and the slot is empty
};

class FakeLlamaServer {
 public:
  explicit FakeLlamaServer(const FakeServerSettings& settings);
  ~FakeLlamaServer();
  FakeLlamaServer(const FakeLlamaServer&) = delete;
  FakeLlamaServer& operator=(const FakeLlamaServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return listener_->port(); }

  // what: "save", "restore", "erase", "prefill" (a prompt without an answer), "answer", "props", "adapters" (GET).
  // The next `count` calls of it fail.
  void fail(const std::string& what, Fault fault, int count = 1);
  // Calls of it wait from now on: an answer behind its first `tokens`, a restore in the middle of its file. "prompt":
  // an answer, behind the head of its stream and before its prompt is computed. "get": whatever is no POST.
  void hold(const std::string& what, std::uint64_t tokens = 0);
  void release();
  // It has let its slots go, and is awake again with the next call that is no GET of /props or /health.
  void doze();
  // Another one answers under its address from now on, with empty slots.
  void replace();
  // Waits until so many calls wait, in a hold or for a slot.
  [[nodiscard]] bool wait_held(int count = 1);
  [[nodiscard]] bool wait_queued(int count = 1);
  [[nodiscard]] int calls(const std::string& what);
  [[nodiscard]] std::vector<std::string> take_complaints();  // and forgets them

 private:
  using Json = nlohmann::json;
  enum class Form : std::uint8_t { kCompletion, kText, kChat, kMessages };
  struct Slot {
    Tokens tokens;  // what was computed
    bool is_busy = false, has_media = false, is_shifted = false;
    bool is_computing = false;
    bool is_lost = false;       // there were no cells left for it
    bool is_adapted = false;    // computed with an adapter that a request had for itself
    bool lacks_window = false;  // restored without a cell before its window: the real one computes all anew
    std::uint64_t composed = 0,
                  oldest = 0;  // tokens that were restored, and the first of them with a row in the window
    int waiting = 0;
    std::uint64_t used = 0;
    std::map<std::uint64_t, std::vector<std::byte>> checkpoints;
  };
  struct Ask {
    Tokens prompt;
    bool has_media = false, streams = false, caches = true;
    bool has_lora = false, is_adapted = false;
    bool fails = false;  // Fault::kErrorEvent
    std::uint64_t most = 0;
    Form form = Form::kCompletion;
  };
  struct Made {
    std::uint64_t cached = 0;
    Tokens tokens;
    std::vector<double> probabilities;
  };

  void serve(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange);
  [[nodiscard]] bool lets_in(const HttpRequest& request) const;
  void tell(const HttpRequest& request, ReplyStream& reply);
  void act_on_slot(const HttpRequest& request, const Json& body, ReplyStream& reply);
  [[nodiscard]] bool save(std::uint32_t slot, const std::string& path, std::optional<Fault> fault);
  [[nodiscard]] bool restore(std::uint32_t slot, const std::string& path);
  void complete(const Json& body, Form form, ReplyStream& reply);
  void check_completion(const Json& body, Form form);
  [[nodiscard]] Ask ask_of(const Json& body, Form form) const;
  void answer(const Ask& ask, std::uint32_t slot, const std::vector<std::uint32_t>& children, ReplyStream& reply);
  [[nodiscard]] static Json piece(const Ask& ask, TokenId token);
  [[nodiscard]] static Json whole(const Ask& ask, const Made& made);
  // Computes the prompt; what comes behind it.
  [[nodiscard]] std::vector<float> compute(std::uint32_t slot, const Ask& ask, Made& made) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t resume(std::uint32_t slot, const Ask& ask) LARDER_REQUIRES(mutex_);
  void cut(std::uint32_t slot, std::uint64_t tokens) LARDER_REQUIRES(mutex_);
  // Cells of all slots together; 0: each has its own.
  [[nodiscard]] std::uint64_t shared_cells() const;
  [[nodiscard]] std::uint64_t used_cells() const LARDER_REQUIRES(mutex_);
  // For so many tokens more. False: all that compute are lost.
  [[nodiscard]] bool make_room(std::uint64_t tokens) LARDER_REQUIRES(mutex_);
  // False: it is lost.
  [[nodiscard]] bool next_token(std::uint32_t slot, const Ask& ask, Made& made, std::vector<float>& logits)
      LARDER_REQUIRES(mutex_);
  static void end_lost(const Ask& ask, ReplyStream& reply);
  // As with a window of all rows.
  [[nodiscard]] bool goes_back(std::uint32_t slot, std::uint64_t same, std::uint64_t prompt) const
      LARDER_REQUIRES(mutex_);
  void go_back(std::uint32_t slot, std::uint64_t tokens) LARDER_REQUIRES(mutex_);
  void shift(std::uint32_t slot) LARDER_REQUIRES(mutex_);
  [[nodiscard]] std::vector<float> decode(std::uint32_t slot, std::span<const TokenId> tokens) LARDER_REQUIRES(mutex_);
  // wanted: a slot, or nobody's wish. nullopt: the client is gone.
  [[nodiscard]] std::optional<std::uint32_t> take_slot(std::optional<std::uint32_t> wanted, const Tokens& prompt,
                                                       const ReplyStream& reply);
  void give_slot(std::uint32_t slot, const ReplyStream& reply);
  void empty_slots() LARDER_REQUIRES(mutex_);
  [[nodiscard]] bool is_sleeping();
  [[nodiscard]] std::string instance();
  void wake();
  [[nodiscard]] Json adapters() LARDER_EXCLUDES(mutex_);
  void set_adapters(Json adapters) LARDER_EXCLUDES(mutex_);
  // Slots for further answers: whichever are idle, when there are enough. Empty: it ends, or the client is gone.
  [[nodiscard]] std::vector<std::uint32_t> take_children(std::uint32_t count, const ReplyStream& reply);
  void give_children(std::uint32_t parent, const std::vector<std::uint32_t>& children, const ReplyStream& reply);
  [[nodiscard]] std::optional<std::uint32_t> choose(const Tokens& prompt) const LARDER_REQUIRES(mutex_);
  // Waits if `what` is held; false: it was for nothing.
  bool wait_while_held(const std::string& what, const ReplyStream* stops_with);
  [[nodiscard]] std::optional<Fault> begin(const std::string& what);
  void complain(std::string text);
  void complain_locked(std::string text) LARDER_REQUIRES(mutex_);

  const FakeServerSettings settings_;
  MetricsRegistry metrics_;
  RankedMutex mutex_{LockRank::kEngine};
  RankedCondition changed_;
  blob_test::FakeSequenceHost host_ LARDER_GUARDED_BY(mutex_);
  std::vector<Slot> slots_ LARDER_GUARDED_BY(mutex_);
  Json adapters_ LARDER_GUARDED_BY(mutex_);
  std::string instance_ LARDER_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ LARDER_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<Fault, int>> faults_ LARDER_GUARDED_BY(mutex_);
  std::string held_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t held_tokens_ LARDER_GUARDED_BY(mutex_) = 0;
  int waiting_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_ending_ LARDER_GUARDED_BY(mutex_) = false, is_sleeping_ LARDER_GUARDED_BY(mutex_) = false;
  std::vector<std::string> complaints_ LARDER_GUARDED_BY(mutex_);
  ThreadPoolExecutor pool_{"fake", 32, 256};
  std::unique_ptr<HttpListener> listener_;  // last: its handler uses the rest
};

// What a server whose slot was empty says.
[[nodiscard]] Tokens expected_answer(const BlobGeometry& geometry, const Tokens& prompt, std::size_t count);
// As /tokenize does.
[[nodiscard]] Tokens tokens_of_text(std::string_view text);

}  // namespace larder::llama::relay_test
