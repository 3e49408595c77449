// SPDX-License-Identifier: Apache-2.0
// --record-trace: the requests that a server serves, as a trace for `larder replay` (bench/replay_trace.h).
//
//   {"timestamp":3000,"input_length":6758,"output_length":500,"hash_ids":[9007..., ...],"unix_ms":1764202000000}
//
//   timestamp   milliseconds since the file's first request      unix_ms   the same moment since 1970, to the second
//   hash_ids    trace_ids.h                     block_tokens, if they are not 512: the tokens of a block
//   output_hash_ids   of the blocks that the answer has filled, where its tokens are known; so a replay knows which
//                     later prompt repeats it
//
// Purpose: no text and no tokens leave the process; lengths, times, and which prompts begin alike do.
//
// Picture:
//   begin() ──► waiting, by arrival ──► all before it have ended ──► ready ──► one task at a time: lines ──► file
//                        └── too many wait: the first goes as far as it has come ──┘
//
// A request that fails or is cancelled is written with the output that it had: it has used the cache. One that was
// refused is not. Requests of which the recorder is not told the tokens are counted.
//
// Threads: begin() from any thread; a TraceRequest is confined. No call waits for a disk.
// Lifetime: files, clock, registry and a given executor outlive the recorder. A TraceRequest may outlive it; what is
// open when the recorder ends is written as far as it has come.
// Errors: after open() there are none. What could not be written is dropped and counted, with one line in the log when
// it begins and one when it is over; the next lines are tried again.
// Limits: TraceLimits; max_size in the file, and then nothing more is recorded.
// Memory: 8 bytes for each id that waits. Cost: of begin() and of tokens: 5 ns a token; of each call: a short lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/executor.h"
#include "base/file_system.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/strong.h"
#include "server/trace/trace_ids.h"

namespace larder {

struct TraceOptions {
  std::string path;      // empty: nothing is recorded
  std::string key_file;  // empty: a key that nobody knows, and that ends with the process
  std::uint64_t block_tokens = 512;
  std::string max_size = "1Gi";  // bytes, or with Ki, Mi, Gi
};
// kInvalidArgument names the option and how to mend it. Reads no file.
[[nodiscard]] Status check_trace_options(const TraceOptions& options);

struct TraceLimits {
  std::size_t waiting = 4096;     // requests that wait for earlier ones
  std::size_t ready = 16'384;     // ... for the disk
  std::uint64_t ids = 8'000'000;  // of each
};

class TraceCore;
struct TraceEntry;

// One request that is being recorded; an empty one does nothing. Its end is the end of the request.
class TraceRequest {
 public:
  TraceRequest() = default;
  TraceRequest(TraceRequest&&) noexcept = default;
  TraceRequest& operator=(TraceRequest&& other) noexcept;
  ~TraceRequest() { end(); }

  // Whether it is recorded.
  [[nodiscard]] explicit operator bool() const { return entry_ != nullptr; }
  // The answer has these tokens, too; one of the answers, if there are several.
  void add_output(std::span<const TokenId> tokens);
  // Where only their number is known: of all answers together, so far.
  void set_output(std::uint64_t tokens);
  // It was refused: there is no line of it.
  void refuse();
  // Again: nothing.
  void end();

 private:
  friend class TraceRecorder;
  std::shared_ptr<TraceCore> core_;
  std::shared_ptr<TraceEntry> entry_;
};

class TraceRecorder {
 public:
  // Null if `options` names no file. executor: null: a thread of the recorder's own; else none of its tasks runs while
  // the recorder is destroyed. Errors: as check_trace_options, read_key_file, TraceFile::open.
  [[nodiscard]] static Result<std::unique_ptr<TraceRecorder>> open(const TraceOptions& options, FileSystem& files,
                                                                   Clock& clock, MetricsRegistry& metrics,
                                                                   Executor* executor = nullptr,
                                                                   const TraceLimits& limits = {});
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // A request has arrived. An empty prompt is not recorded. answers: that it asks for at once, one at least; the line
  // has the mean of their tokens, as a trace knows one answer of each prompt.
  [[nodiscard]] TraceRequest begin(std::span<const TokenId> prompt, const TraceSpace& space, std::uint32_t answers = 1);
  // One has arrived whose tokens are not known.
  void note_unknown();

 private:
  TraceRecorder(std::shared_ptr<TraceCore> core, std::unique_ptr<Executor> own);

  const std::shared_ptr<TraceCore> core_;
  std::unique_ptr<Executor> own_;
};

}  // namespace larder
