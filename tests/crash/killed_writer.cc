// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/killed_writer.h"

#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "base/lock_rank.h"
#include "base/log.h"
#include "base/ranked_mutex.h"
#include "base/thread_pool.h"
#include "storage/backend.h"
#include "tests/crash/store_client.h"
#include "tests/support/real_killed_process.h"

namespace larder::crash {
namespace {

constexpr std::uint64_t kScopes = 3;
constexpr std::uint64_t kNumbers = 240;  // per scope

std::string text(std::uint64_t number) { return " " + std::to_string(number); }

class Writer {
 public:
  Writer(StorageBackend& store, std::uint64_t seed)
      : store_(store), rng_(seed), limit_(1 + rng_.below(kMostAtOnce)), reads_(seed + 1) {}

  // Until killed.
  void run() {
    for (std::uint64_t step = 0;; ++step) {
      wait_for_room();
      const std::uint64_t kind = rng_.below(100);
      if (kind < 90) {
        begin_write(step);
      } else if (kind < 97) {
        read_one();
      } else {
        begin_clear(kind == 97 && rng_.chance(1, 4) ? 0 : kScopes);
      }
    }
  }

 private:
  void wait_for_room() LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    while (in_flight_ >= limit_) changed_.wait(mutex_);
    ++in_flight_;
  }
  void leave() LARDER_EXCLUDES(mutex_) {
    LockGuard guard(mutex_);
    --in_flight_;
    changed_.notify_all();
  }

  // Chains grow from their start: most writes go on where the last one of the scope ended.
  void begin_write(std::uint64_t write) {
    const std::uint64_t scope = 1 + rng_.below(kScopes);
    if (rng_.chance(1, 8)) next_[scope] = rng_.below(kNumbers);
    std::vector<GroupId> groups;
    for (std::uint64_t i = 0, count = 1 + rng_.below(3); i < count; ++i) {
      groups.push_back({scope, next_[scope]++ % kNumbers});
    }
    WriteRequest request{scope_of(scope), {}, rng_.chance(1, 4)};
    auto buffers = std::make_shared<std::vector<GroupBuffers>>();
    std::string line = "W" + text(write) + text(request.durable) + text(scope);
    for (const GroupId& group : groups) {
      buffers->emplace_back(group, rng_);
      buffers->back().fill();
      request.groups.push_back(buffers->back().write_group());
      line += text(group.number);
    }
    support::say(line + "\n");
    check(store_.submit_write(std::move(request), [this, write, buffers](const WriteResult& result) {
      std::string lines;
      for (std::size_t i = 0; i < result.groups.size(); ++i) {
        const Status& status = result.groups[i];
        const bool is_expected = status.is_ok() || status.code() == StatusCode::kCancelled ||  // a clear
                                 status.code() == StatusCode::kOverloaded;                     // max_size
        if (!is_expected) lines += "! " + status.to_string() + "\n";
        lines += (status.is_ok() ? "A" : "F") + text(write) + text(i) + "\n";
      }
      support::say(lines);
      leave();
    }));
  }

  void read_one() {
    const GroupId group{1 + rng_.below(kScopes), rng_.below(kNumbers)};
    auto buffers = std::make_shared<GroupBuffers>(group, reads_);
    ReadRequest request{scope_of(group.scope), buffers->read_items()};
    check(store_.submit_read(std::move(request), [this, buffers](const ReadResult& result) {
      for (std::size_t i = 0; i < result.items.size(); ++i) {
        const Status& status = result.items[i];
        const bool is_good = status.is_ok() ? buffers->is_right(i) : status.code() == StatusCode::kNotFound;
        if (!is_good) support::say("! read: " + status.to_string() + "\n");
      }
      leave();
    }));
  }

  void begin_clear(std::uint64_t scope) LARDER_EXCLUDES(mutex_) {
    {
      LockGuard guard(mutex_);
      if (is_clearing_) {
        --in_flight_;
        return;
      }
      is_clearing_ = true;
    }
    support::say("B" + text(scope) + "\n");
    check(store_.submit_clear(scope == 0 ? nullptr : scope_of(scope), [this, scope](const Status& status) {
      support::say((status.is_ok() ? "" : "! clear: " + status.to_string() + "\n") + "C" + text(scope) +
                   text(status.is_ok()) + "\n");
      {
        LockGuard guard(mutex_);
        is_clearing_ = false;
      }
      leave();
    }));
  }

  static void check(const Status& submitted) {
    if (!submitted.is_ok()) support::say("! submit: " + submitted.to_string() + "\n");
  }

  StorageBackend& store_;
  Rng rng_;
  const std::uint64_t limit_;  // operations at once
  Rng reads_;
  std::map<std::uint64_t, std::uint64_t> next_;
  RankedMutex mutex_{LockRank::kController};
  RankedCondition changed_;
  std::uint64_t in_flight_ LARDER_GUARDED_BY(mutex_) = 0;
  bool is_clearing_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::vector<std::string> WriterPlan::arguments(const std::string& program) const {
  std::vector<std::string> out = {program, kWriterArgument, std::to_string(seed)};
  for (const auto& [key, value] : options) out.push_back(key + "=" + value);
  return out;
}

int run_writer(const std::vector<std::string>& arguments) {
  set_log_level(LogLevel::kError);
  BackendOptions options;
  for (std::size_t i = 3; i < arguments.size(); ++i) {
    const std::size_t at = arguments[i].find('=');
    options[arguments[i].substr(0, at)] = arguments[i].substr(at + 1);
  }
  ThreadPoolExecutor executor("storage", 3, 100'000);
  auto store = open_file_store(options, real_file_system(), real_clock(), executor);
  if (!store.is_ok()) {
    support::say("! open: " + store.status().to_string() + "\n");
    return 1;
  }
  support::say("O\n");
  Writer(**store, std::stoull(arguments.at(2))).run();
  return 0;
}

bool note_line(const std::string& line, Promises& promises) {
  std::istringstream in(line);
  char kind = 0;
  std::uint64_t first = 0, second = 0;
  in >> kind >> first >> second;
  switch (kind) {
    case 'O': return true;
    case 'W': {
      std::vector<GroupId> groups;
      std::uint64_t scope = 0;
      in >> scope;
      for (std::uint64_t number = 0; in >> number;) groups.push_back({scope, number});
      promises.write_begun(first, groups, second != 0);
      return true;
    }
    case 'A':
    case 'F': promises.group_done(first, static_cast<std::size_t>(second), kind == 'A'); return true;
    case 'B': promises.clear_begun(first); return true;
    case 'C': promises.clear_done(first, second != 0); return true;
    default: return false;
  }
}

}  // namespace larder::crash
