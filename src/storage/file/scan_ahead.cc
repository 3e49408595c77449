// SPDX-License-Identifier: Apache-2.0
#include "storage/file/scan_ahead.h"

#include <map>
#include <utility>

#include "base/ranked_mutex.h"

namespace larder::file_store {

struct ScanAhead::State {
  State(FileSystem& from, const StoreId& id, std::vector<Wanted> list)
      : files(from), store(id), wanted(std::move(list)) {}

  [[nodiscard]] Found scan(const Wanted& what) const {
    Result<std::unique_ptr<File>> file = files.open(what.path, {});
    if (!file.is_ok()) return {file.status(), file.status()};
    return {Status::ok(), scan_segment(**file, store, what.segment, true)};
  }
  [[nodiscard]] bool may_begin() const LARDER_REQUIRES(mutex) {
    return !is_over && begun < wanted.size() && begun < taken + kAhead && pages_ahead <= kMaxPagesAhead;
  }
  void help() LARDER_EXCLUDES(mutex);

  // constant
  FileSystem& files;
  const StoreId store;
  const std::vector<Wanted> wanted;

  RankedMutex mutex{LockRank::kStorage};
  RankedCondition changed;                         // a scan ended
  std::size_t begun LARDER_GUARDED_BY(mutex) = 0;  // the first that nobody has begun with
  std::size_t taken LARDER_GUARDED_BY(mutex) = 0;  // by the consumer
  std::map<std::size_t, Found> done LARDER_GUARDED_BY(mutex);
  std::size_t pages_ahead LARDER_GUARDED_BY(mutex) = 0;  // in `done`
  std::size_t helpers LARDER_GUARDED_BY(mutex) = 0;      // tasks posted and not ended; one dropped unrun counts on
  std::size_t scanning LARDER_GUARDED_BY(mutex) = 0;     // by tasks, now
  bool is_over LARDER_GUARDED_BY(mutex) = false;
};

// A task: scans until it is far enough ahead.
void ScanAhead::State::help() {
  for (;;) {
    std::size_t mine = 0;
    {
      LockGuard guard(mutex);
      if (!may_begin()) {
        --helpers;
        return;
      }
      mine = begun++;
      ++scanning;
    }
    Found found = scan(wanted[mine]);
    LockGuard guard(mutex);
    --scanning;
    if (found.scan.is_ok()) pages_ahead += found.scan->pages.size();
    done.emplace(mine, std::move(found));
    changed.notify_all();
  }
}

ScanAhead::ScanAhead(FileSystem& files, const StoreId& store, std::vector<Wanted> wanted, Executor* executor)
    : state_(std::make_shared<State>(files, store, std::move(wanted))), executor_(executor) {}

ScanAhead::~ScanAhead() {
  LockGuard guard(state_->mutex);
  state_->is_over = true;
  while (state_->scanning > 0) state_->changed.wait(state_->mutex);
}

void ScanAhead::call_helpers() {
  if (executor_ == nullptr || state_->wanted.size() < kLeastSegments) return;
  for (;;) {
    {
      LockGuard guard(state_->mutex);
      if (state_->helpers >= kHelpers || !state_->may_begin()) return;
      ++state_->helpers;
    }
    if (!executor_->post([state = state_] { state->help(); }).is_ok()) {
      LockGuard guard(state_->mutex);
      --state_->helpers;
      return;
    }
  }
}

ScanAhead::Found ScanAhead::take() {
  call_helpers();
  State& state = *state_;
  std::size_t mine = 0;
  {
    LockGuard guard(state.mutex);
    mine = state.taken++;
    while (state.begun > mine && !state.done.contains(mine)) state.changed.wait(state.mutex);
    if (const auto found = state.done.find(mine); found != state.done.end()) {
      Found out = std::move(found->second);
      state.done.erase(found);
      if (out.scan.is_ok()) state.pages_ahead -= out.scan->pages.size();
      return out;
    }
    state.begun = mine + 1;
  }
  return state.scan(state.wanted[mine]);
}

}  // namespace larder::file_store
