// SPDX-License-Identifier: Apache-2.0
// The server of one run of `larder bench llama`: llama-server alone, `larder proxy` before one of its own, or
// `larder serve`.
//
// Threads: confined; LlamaBenchStop's handler runs on any. Lifetime: folders outlive it; the destructor ends what runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/http_client.h"
#include "base/status.h"
#include "bench/bench_llama.h"
#include "server/real_child_process.h"

namespace larder {

// While one lives, SIGINT and SIGTERM end the server that runs: the request under way fails, and all is taken down in
// order. One at a time.
class LlamaBenchStop {
 public:
  LlamaBenchStop();
  ~LlamaBenchStop();
  LlamaBenchStop(const LlamaBenchStop&) = delete;
  LlamaBenchStop& operator=(const LlamaBenchStop&) = delete;
  [[nodiscard]] static bool is_asked();
  // The processes that a signal ends; -1: none.
  static void set_servers(int child, int llama_server);
};

class LlamaBenchServer {
 public:
  struct Folders {
    std::string files;  // logs, the proxy's store
    std::string slots;  // slot files, in memory if that is to be had
  };
  LlamaBenchServer(const LlamaBenchOptions& options, std::string model, LlamaSetup setup, Folders folders)
      : options_(options), model_(std::move(model)), setup_(setup), folders_(std::move(folders)) {}
  ~LlamaBenchServer();
  LlamaBenchServer(const LlamaBenchServer&) = delete;
  LlamaBenchServer& operator=(const LlamaBenchServer&) = delete;

  // Returns when it answers. kUnavailable, here and below, carries the end of its log.
  [[nodiscard]] Status start();
  // Returns when nothing is left to be done for the request, either.
  [[nodiscard]] Result<LlamaSample> ask(std::span<const TokenId> prompt);
  // A crash and a new start. llama-server alone saves its slot before the first one, and restores that after each.
  [[nodiscard]] Status restart();
  [[nodiscard]] Status stop();
  // Of ours: what they say of the model.
  [[nodiscard]] const std::string& summary() const { return summary_; }

 private:
  [[nodiscard]] Status start_plain();
  [[nodiscard]] Status start_ours();
  [[nodiscard]] std::vector<std::string> our_command() const;
  [[nodiscard]] Status wait_ready();
  [[nodiscard]] Status wait_settled();
  [[nodiscard]] Status kill_all();
  [[nodiscard]] Status use_slot(std::string_view action);
  [[nodiscard]] std::vector<std::string> server_command() const;
  [[nodiscard]] double cpu_seconds() const;
  // The proxy would start another one, and rows would be of a server with empty slots.
  [[nodiscard]] Status check_llama() const;
  // status: of a request that got no answer.
  [[nodiscard]] Status why_lost(const Status& status);
  // Waits a moment. kUnavailable: the server has ended.
  [[nodiscard]] Status look_again();
  [[nodiscard]] Status with_log(const Status& status) const;
  [[nodiscard]] std::string log_path() const;

  const LlamaBenchOptions& options_;
  const std::string model_;
  const LlamaSetup setup_;
  const Folders folders_;
  ChildProcess child_;
  int llama_pid_ = -1;  // the child itself, or the proxy's child
  std::unique_ptr<HttpClient> client_;
  bool has_slot_file_ = false;
  std::string summary_;
};

// A value of a Prometheus text: the sum of `name` over all its labels; 0: not there.
[[nodiscard]] double metric_of(std::string_view text, std::string_view name);

}  // namespace larder
