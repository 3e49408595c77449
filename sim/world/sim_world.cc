// SPDX-License-Identifier: Apache-2.0
#include "sim/world/sim_world.h"

#include <algorithm>
#include <utility>

#include "sim/world/cache_engine.h"
#include "sim/world/connector_engine.h"
#include "sim/world/sim_rank_group.h"
#include "sim/world/small_models.h"

namespace larder::sim {
namespace {

constexpr std::uint64_t kRotEvery = 6000;  // bytes, from the first one on
constexpr std::uint64_t kDirectories = 2;  // a switch goes to the other one

}  // namespace

SimWorld::SimWorld(const WorldSpec& spec, std::uint64_t check_every)
    : spec_(spec), check_every_(std::max<std::uint64_t>(check_every, 1)) {}

// A world that failed ends like a crash. What does not end even then is left alone: the failure is what matters.
SimWorld::~SimWorld() {
  if (!end_processes(true)) {
    for (auto& rank : ranks_) (void)rank.release();  // NOLINT: its destructor would wait for ever
  }
  clock_.drop_all();
}

void SimWorld::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

std::string SimWorld::begin() {
  ++totals_.stories;
  if (const Status fits = check_world(spec_); !fits.is_ok()) return fits.message();
  Result<ModelSpec> model = simulated_model(spec_.model);
  if (!model.is_ok()) return model.status().to_string();
  model_ = std::move(model).value();
  const SimEngine::World world{spec_, model_, clock_, ranks_, totals_, failure_};
  if (spec_.door == "connector") {
    engine_ = std::make_unique<ConnectorEngine>(world);
  } else {
    engine_ = std::make_unique<CacheEngine>(world);
  }
  if (spec_.storage == "hf3fs") {
    service_ = std::make_unique<SimService>(clock_, spec_.journal > 0);
    if (spec_.service == "remote") {
      mount_ = std::make_unique<SimFileSystem>(spec_.seed * 31 + 17, std::uint64_t{16} << 20);
    }
  }
  for (std::uint32_t r = 0; r < spec_.ranks; ++r) {
    ranks_.push_back(std::make_unique<SimRank>(spec_, model_, r, clock_, service_.get(), mount_.get()));
  }
  start_processes();
  return failure_;
}

void SimWorld::start_processes() {
  groups_.clear();
  if (spec_.ranks > 1) {
    groups_ = make_simulated_rank_group(static_cast<std::uint32_t>(spec_.ranks), clock_, 4096,
                                        [this](const std::string& why) { fail(why); });
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Status started = ranks_[r]->start(groups_.empty() ? nullptr : groups_[r].get());
    if (!started.is_ok()) return fail("start: " + started.to_string());
  }
  attach(directory_);
}

std::string SimWorld::apply(const Event& event) {
  const EventArguments& a = event.arguments;
  const std::uint64_t before = clock_.ran();
  switch (event.verb) {
    case Verb::kBegin: engine_->begin(a); break;
    case Verb::kMove: engine_->move(a); break;
    case Verb::kAbort: engine_->abort(a); break;
    case Verb::kRetract: engine_->retract(a); break;
    case Verb::kFork: engine_->fork(a); break;
    case Verb::kCancel: engine_->cancel(a); break;
    case Verb::kTime:
      pass_time(std::chrono::microseconds(a[0]));
      check_events();
      engine_->time_has_passed();
      break;
    case Verb::kRestart: restart(false, 0); break;
    case Verb::kCrash: restart(true, a[0]); break;
    case Verb::kPart: part(a[0]); break;
    case Verb::kExpect: expect(a); break;
    case Verb::kFileFault:
    case Verb::kRot:
    case Verb::kCopyFault:
    case Verb::kStoragePlan:
    case Verb::kStorageFault:
    case Verb::kServiceFault:
    case Verb::kPostFault:
    case Verb::kJournalMood:
    case Verb::kServiceCrash:
    case Verb::kReleaseHung: damage(event); break;
    default: operate(event);
  }
  totals_.events += 1 + clock_.ran() - before;
  check(totals_.events % check_every_ == 0);
  return failure_;
}

// ---- time

// An idle engine looks at its cache now and then, unless the machine sleeps for hours.
void SimWorld::pass_time(Nanos by) {
  constexpr int kLooks = 16;
  constexpr Nanos kLongPause = std::chrono::milliseconds(20), kSleep = std::chrono::seconds(60);
  const int looks = by >= kLongPause && by < kSleep ? kLooks : 1;
  for (int i = 0; i < looks; ++i) pass_time_and_poll(by / looks);
}

void SimWorld::pass_time_and_poll(Nanos by) {
  clock_.advance(by);
  if (engine_) engine_->device_runs();
  end_clears();
  for (const auto& rank : ranks_) {  // the leader first: the others have its plan when they ask
    if (rank->has_storage()) rank->storage().pipeline->tick();
    (void)rank->door().poll();
    rank->close_retired();
  }
}

// ---- operators

// Two phases: every rank opens one, or none gets it. A process that starts opens the storage that it had.
void SimWorld::attach(std::uint64_t which) {
  directory_ = which % kDirectories;
  bool is_open = true;
  for (const auto& rank : ranks_) is_open = is_open && rank->open_storage(directory_).is_ok();
  for (const auto& rank : ranks_) {
    if (!is_open) {
      rank->drop_opened();
    } else if (const Status s = rank->attach_opened(); !s.is_ok()) {
      fail("attach: " + s.to_string());
    }
  }
  ++(is_open ? totals_.attaches : totals_.failed_attaches);
}

void SimWorld::detach() {
  for (const auto& rank : ranks_) {
    if (rank->has_storage()) rank->detach();
  }
}

void SimWorld::clear() {
  std::vector<std::shared_ptr<bool>> flags;
  for (const auto& rank : ranks_) {
    auto is_done = std::make_shared<bool>(!rank->has_storage());
    flags.push_back(is_done);
    if (*is_done) continue;
    const Status taken = rank->storage().witness->submit_clear(nullptr, [is_done](const Status&) { *is_done = true; });
    if (!taken.is_ok()) *is_done = true;
  }
  clears_.push_back(std::move(flags));
}

void SimWorld::end_clears() {
  std::erase_if(clears_, [this](const std::vector<std::shared_ptr<bool>>& flags) {
    if (!std::all_of(flags.begin(), flags.end(), [](const auto& flag) { return *flag; })) return false;
    for (const auto& rank : ranks_) rank->door().storage_cleared();
    return true;
  });
}

void SimWorld::operate(const Event& event) {
  const EventArguments& a = event.arguments;
  switch (event.verb) {
    case Verb::kFlush:
      for (const auto& rank : ranks_) rank->door().flush();
      break;
    case Verb::kExplain: engine_->explain(a); break;
    case Verb::kDetach: detach(); break;
    case Verb::kAttach: attach(directory_ + 1); break;
    case Verb::kClear: clear(); break;
    case Verb::kPolicies:
      engine_->set_policies(static_cast<PrefetchPolicy>(a[0] % 3), static_cast<WritePolicy>(a[1] % 3));
      break;
    default: fail("the world does not know what to do about: " + to_text(event));
  }
}

// ---- what goes wrong

void SimWorld::damage(const Event& event) {
  const EventArguments& a = event.arguments;
  // All others strike, or do not, and are counted when they do.
  is_disturbed_ = is_disturbed_ || event.verb == Verb::kRot || event.verb == Verb::kStoragePlan;
  SimRank& rank = *ranks_[a[0] % ranks_.size()];
  switch (event.verb) {
    case Verb::kFileFault:
      rank.disk().fail_nth(a[1], static_cast<FileFault>(a[3] % kFileFaultCount), std::max<std::uint64_t>(a[2], 1));
      break;
    case Verb::kRot: {
      const std::string directory = "/cache" + std::to_string(a[1] % kDirectories);
      const Result<std::vector<std::string>> names = rank.disk().list(directory);
      if (!names.is_ok() || names->empty()) break;
      const std::string path = join_path(directory, (*names)[a[1] / kDirectories % names->size()]);
      const Result<FileInfo> info = rank.disk().stat(path);
      if (!info.is_ok() || info->is_directory || info->size_bytes == 0) break;
      for (std::uint64_t at = a[2] % info->size_bytes; at < info->size_bytes; at += kRotEvery) {
        (void)rank.disk().corrupt_byte(path, at, static_cast<std::uint8_t>(1u << a[3] % 8));
      }
      break;
    }
    case Verb::kCopyFault:
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (a[2] > 0 && (a[2] - 1) % ranks_.size() != r) continue;
        ranks_[r]->fail_copy(static_cast<CopyDirection>(a[0] % 3), a[1], std::max<std::uint64_t>(a[3], 1));
      }
      break;
    case Verb::kPostFault: rank.fail_post(a[1], std::max<std::uint64_t>(a[2], 1)); break;
    case Verb::kJournalMood:
      if (service_) service_->set_mood(static_cast<metadata::MemoryDisk::Mood>(a[0] % 3));
      break;
    case Verb::kServiceCrash:
      if (mount_) service_->lose_power(a[0]);
      break;
    case Verb::kStoragePlan: {
      const auto percent = [&](std::size_t i) { return static_cast<unsigned>(a[i] % 101); };
      rank.set_plan({.refuse_percent = percent(1),
                     .hang_percent = percent(2),
                     .fail_percent = percent(3),
                     .partial_percent = percent(4)});
      break;
    }
    case Verb::kStorageFault: rank.fail_operation(a[1], static_cast<StorageFault>(a[2] % 4)); break;
    case Verb::kServiceFault:
      rank.fail_call(a[1], static_cast<LineFault>(a[3] % kLineFaultCount), std::max<std::uint64_t>(a[2], 1));
      break;
    default:
      for (const auto& each : ranks_) each->release_hung();
  }
}

// Clients see errors and come again; what was cached in memory is gone.
void SimWorld::restart(bool is_crash, std::uint64_t kept) {
  if (is_crash) struck_on_disks_ += struck_disks();
  ++(is_crash ? totals_.crashes : totals_.restarts);
  if (!end_processes(is_crash)) return fail("a storage never closes before a restart");
  if (service_ && !mount_) is_crash ? service_->lose_power(kept) : service_->restart();
  start_processes();
}

// Every rank learns of it in its next poll, decides nothing from then on, and lets its requests go all the same.
void SimWorld::part(std::uint64_t which) {
  if (groups_.empty()) return;
  groups_[which % groups_.size()]->give_up("simulated");
  ++totals_.parted;
  pass_time(std::chrono::milliseconds(1));
  for (const auto& rank : ranks_) {
    if (rank->door().counters().rank_timeouts != 1) fail("a rank does not know that its group is over");
  }
  engine_->has_parted();
  check(true);
  restart(false, 0);
}

// After a crash the processes live on for a while on files that are dead: nothing that they do then reaches the disk.
// False: a storage does not close.
bool SimWorld::end_processes(bool is_crash) {
  constexpr std::uint64_t kForEver = std::uint64_t{1} << 60;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->is_started()) return true;
    if (is_crash) {
      ranks_[r]->disk().crash();
      ranks_[r]->disk().fail_nth(1, FileFault::kIoError, kForEver);
    }
  }
  if (engine_) engine_->drop_all();
  detach();
  const auto are_open = [this] {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->retired() > 0; });
  };
  for (int i = 0; i < 6000 && are_open(); ++i) {
    for (const auto& rank : ranks_) rank->release_hung();
    pass_time(std::chrono::milliseconds(100));
  }
  if (are_open()) return false;
  clears_.clear();
  for (const auto& rank : ranks_) {
    rank->end();
    if (is_crash) {
      rank->disk().clear_fault();
      rank->power_went();
    }
  }
  clock_.drop_all();
  return true;
}

std::uint64_t SimWorld::struck_disks() const {
  std::uint64_t disks = 0;
  for (const auto& rank : ranks_) {
    if (rank == ranks_.front() || mount_ == nullptr) disks += rank->disk().fault_fired() ? 1 : 0;
  }
  return disks;
}

std::uint64_t SimWorld::struck() const {
  std::uint64_t all = struck_on_disks_ + struck_disks();
  for (const auto& rank : ranks_) all += rank->struck();
  return all;
}

// ---- rules

void SimWorld::expect(const EventArguments& at_least) {
  std::uint64_t corrupt = 0;
  for (const auto& rank : ranks_) corrupt += rank->door().counters().corrupt;
  const EventArguments reached = {
      totals_.finished, totals_.device_tokens, totals_.host_tokens, totals_.storage_tokens, corrupt,
      struck(),         totals_.steps_left,    totals_.starved};
  for (std::size_t i = 0; i < kMaxArguments; ++i) {
    if (reached[i] >= at_least[i]) continue;
    fail("expected: " + std::string(info_of(Verb::kExpect).arguments[i]) + " at least " + std::to_string(at_least[i]) +
         ", and it is " + std::to_string(reached[i]));
  }
}

void SimWorld::check(bool is_full) {
  if (!failure_.empty()) return;
  for (const auto& rank : ranks_) {
    if (rank->door().counters().internal_errors > 0) return fail("the cache refused something as impossible");
    if (!is_full) continue;
    if (const Status s = rank->door().check_invariants(); !s.is_ok()) return fail(s.to_string());
  }
  check_stores(is_full);
  if (service_ && is_full) {
    if (const Status s = service_->check(); !s.is_ok()) return fail(s.to_string());
  }
  if (ranks_.size() == 1) return;
  const std::string first = ranks_[0]->outline();
  for (const auto& rank : ranks_) {
    if (rank->outline() != first) return fail("ranks disagree: " + outlines());
  }
}

void SimWorld::check_stores(bool is_full) {
  bool is_calm = !is_disturbed_ && struck() == 0;
  for (const auto& rank : ranks_) is_calm = !rank->has_let_go() && is_calm;
  for (const auto& rank : ranks_) {
    if (const std::string broken = rank->broken_word(is_calm); !broken.empty()) return fail(broken);
    if (!is_full || !is_calm || !clears_.empty()) continue;
    if (const std::string unstored = rank->unstored(); !unstored.empty()) return fail(unstored);
  }
}

void SimWorld::check_events() {
  for (const auto& rank : ranks_) {
    if (const std::string difference = rank->compare_events(); !difference.empty()) return fail(difference);
  }
  std::optional<std::uint64_t> first;
  for (const auto& rank : ranks_) {
    const std::optional<std::uint64_t> pages = rank->pages();
    if (first && pages && *pages != *first) return fail("ranks keep different pages: " + outlines());
    if (!first) first = pages;
  }
}

std::string SimWorld::outlines() const {
  std::string all;
  for (const auto& rank : ranks_) all += (all.empty() ? "" : " | ") + rank->outline();
  return all;
}

std::string SimWorld::finish() {
  const std::uint64_t before = clock_.ran();
  struck_on_disks_ += struck_disks();
  for (const auto& rank : ranks_) rank->heal();
  if (service_) service_->set_mood(metadata::MemoryDisk::Mood::kWell);
  drain_requests();
  drain_storage();
  pass_time(std::chrono::milliseconds(1));
  check(true);
  check_events();
  if (failure_.empty()) {
    for (const auto& rank : ranks_) rank->door().flush();
    for (const auto& rank : ranks_) {
      const std::string leaks = rank->leaks();
      if (!leaks.empty()) fail(leaks);
    }
  }
  totals_.events += clock_.ran() - before;
  return failure_;
}

// Ten minutes in which nothing moves are too many: the longest wait of a request is half of that. Requests that move
// and never end take each other's memory for ever.
void SimWorld::drain_requests() {
  constexpr int kMostIdleRounds = 12'000, kMostRounds = 100'000;
  int idle = 0;
  for (int round = 0; engine_->requests() > 0 && failure_.empty(); ++round) {
    idle = engine_->move_all() ? 0 : idle + 1;
    if (idle > kMostIdleRounds) fail(std::to_string(engine_->requests()) + " requests make no progress");
    if (round > kMostRounds) fail(std::to_string(engine_->requests()) + " requests move and never end");
    pass_time(std::chrono::milliseconds(idle < 20 ? 2 : 50));
  }
  engine_->let_go();
}

void SimWorld::drain_storage() {
  constexpr int kMostRounds = 12'000;
  const auto busy = [this] {
    std::size_t count = 0;
    for (const auto& rank : ranks_) count += rank->door().operations_in_flight() + rank->retired();
    return count;
  };
  for (int i = 0; i < kMostRounds && failure_.empty() && (busy() > 0 || i < 100); ++i) {
    pass_time(std::chrono::milliseconds(50));
  }
  detach();
  for (int i = 0; i < kMostRounds && failure_.empty() && busy() > 0; ++i) {
    for (const auto& rank : ranks_) rank->heal();
    pass_time(std::chrono::milliseconds(50));
  }
  if (busy() > 0) fail(std::to_string(busy()) + " operations or detached storages never end");
}

}  // namespace larder::sim
