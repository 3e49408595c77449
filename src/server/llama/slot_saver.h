// SPDX-License-Identifier: Apache-2.0
// Takes slot files that llama-server has written apart, behind the backs of the requests.
//
//   name() ─► llama-server writes the file ─► save(): queued ─► read, checked, given to the PrefixStore ─► removed
//
// A file counts only if its tokens are the expected ones: a slot that somebody else has used meanwhile is no harm.
//
// Threads: any; files are taken apart on one of its own. Lifetime: the destructor ends the file that is under way and
// removes the others. Limits: max_queued files; more are removed at once, and counted; 64 discarded ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "base/strong.h"
#include "base/thread_pool.h"
#include "server/llama/prefix_store.h"
#include "server/llama/proxy_metrics.h"
#include "server/llama/slot_pages.h"

namespace larder::llama {

class SlotSaver {
 public:
  struct Parts {  // all outlive the saver
    const SlotFormat& format;
    PrefixStore& store;
    FileSystem& files;
    ProxyMetrics& metrics;
    std::string directory;  // llama-server's --slot-save-path
    std::uint32_t max_queued = 8;
  };
  explicit SlotSaver(Parts parts);
  ~SlotSaver();

  // Of a file that nobody else has.
  [[nodiscard]] std::string name();
  // The slot was written to the file `name` after `prompt` was computed. With has_answer more tokens may follow, and
  // pages of these are kept, too.
  void save(std::string name, std::span<const TokenId> prompt, const std::string& salt, bool has_answer);
  // llama-server did not say that it has written the file `name`: it may be there, a part of it, or come later. It is
  // removed now or with one of the next files, or with the saver.
  void discard(const std::string& name);
  // Waits until no file is left.
  void wait_idle() { thread_.wait_idle(); }

 private:
  // On the thread.
  void remove_discarded();
  void take_apart(const std::string& path, const std::vector<TokenId>& prompt, const std::string& salt,
                  bool has_answer);
  [[nodiscard]] Result<SaveOutcome> try_to_save(const std::string& path, const std::vector<TokenId>& prompt,
                                                const std::string& salt, bool has_answer);

  const Parts parts_;
  std::atomic<std::uint64_t> next_{0};  // relaxed: only unique
  std::deque<std::string> discarded_;   // of the thread: paths; at most kMostDiscarded
  ThreadPoolExecutor thread_;           // last: it uses the rest
};

}  // namespace larder::llama
