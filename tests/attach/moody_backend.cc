// SPDX-License-Identifier: Apache-2.0
#include "tests/attach/moody_backend.h"

#include <algorithm>
#include <array>
#include <utility>

#include "storage/memory/memory_backend.h"
#include "tests/support/passing_backend.h"

namespace larder::attach {
namespace {

constexpr std::array<std::string_view, 11> kMoodNames = {"fine",  "hangs", "hangs_often", "fails", "errs",  "late",
                                                         "flips", "short", "fewer",       "more",  "boasts"};
// How long the pump of late answers waits between two looks.
constexpr Nanos kPumpLook = std::chrono::microseconds(500);

sim::FaultPlan plan_of(Mood mood) {
  sim::FaultPlan plan;
  if (mood == Mood::kHangs) plan.hang_percent = 100;
  if (mood == Mood::kHangsOften) plan.hang_percent = 40;
  if (mood == Mood::kFails) plan.fail_percent = 100;
  if (mood == Mood::kErrs) plan = {15, 0, 20, 25, false};
  plan.is_holding = mood == Mood::kLate;
  return plan;
}

// Passes everything on to a store that stays open.
class Door final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  [[nodiscard]] Status close(std::chrono::nanoseconds) override { return Status::ok(); }
};

template <class T>
void resize_as(Mood mood, std::vector<T>& entries) {
  if (mood == Mood::kFewer && !entries.empty()) entries.pop_back();
  if (mood == Mood::kMore) entries.emplace_back();
}

void spoil(Mood mood, const ReadItem& item) {
  const std::size_t total = payload_bytes(item.payload);
  std::size_t offset = 0;
  for (const Segment& piece : item.payload) {
    for (std::size_t i = 0; i < piece.size; ++i, ++offset) {
      if (mood == Mood::kFlips && offset == total / 3) piece.data[i] ^= std::byte{0x10};
      if (mood == Mood::kShort && offset >= total / 2) piece.data[i] = std::byte{0};
    }
  }
}

}  // namespace

std::string_view mood_name(Mood mood) { return kMoodNames[static_cast<std::size_t>(mood)]; }

std::optional<Mood> parse_mood(std::string_view name) {
  const auto* at = std::find(kMoodNames.begin(), kMoodNames.end(), name);
  if (at == kMoodNames.end()) return std::nullopt;
  return static_cast<Mood>(at - kMoodNames.begin());
}

Patient::Patient(std::unique_ptr<StorageBackend> inner, std::uint64_t seed, Mood mood)
    : faulty_(std::move(inner), seed, plan_of(mood)), mood_(mood) {}

void Patient::set_mood(Mood mood) {
  {
    LockGuard guard(mutex_);
    mood_ = mood;
  }
  faulty_.set_plan(plan_of(mood));
  if (mood != Mood::kLate) (void)faulty_.release_all();
}

std::size_t Patient::let_go() {
  (void)faulty_.release_hung();
  return faulty_.release_all();
}

bool Patient::is_attached() const {
  LockGuard guard(mutex_);
  return is_attached_;
}

bool Patient::died_busy() const {
  LockGuard guard(mutex_);
  return died_busy_;
}

Mood Patient::mood() const {
  LockGuard guard(mutex_);
  return mood_;
}

void Patient::begin() {
  LockGuard guard(mutex_);
  ++in_flight_;
}

void Patient::end() {
  LockGuard guard(mutex_);
  if (--in_flight_ == 0) idle_.notify_all();
}

Status Patient::wait_idle(Nanos limit) {
  const TimePoint deadline = real_clock().now() + std::min<Nanos>(limit, std::chrono::hours(1));
  LockGuard guard(mutex_);
  while (in_flight_ > 0) {
    const Nanos left = deadline - real_clock().now();
    if (left <= Nanos(0)) return deadline_exceeded("moody backend: operations are in flight");
    (void)idle_.wait_for(mutex_, left);
  }
  return Status::ok();
}

void Patient::die() {
  {
    const std::size_t hung = faulty_.hung();  // what is on its way ends by itself
    LockGuard guard(mutex_);
    died_busy_ = hung > 0;
  }
  set_mood(Mood::kFine);
  (void)let_go();
  LockGuard guard(mutex_);
  while (in_flight_ > 0) idle_.wait(mutex_);
  is_attached_ = false;
}

class MoodyBackend final : public StorageBackend {
 public:
  MoodyBackend(std::string name, std::shared_ptr<Patient> patient) : patient_(std::move(patient)) {
    info_ = patient_->faulty_.info();
    info_.name = std::move(name);
  }
  ~MoodyBackend() override { patient_->die(); }
  MoodyBackend(const MoodyBackend&) = delete;
  MoodyBackend& operator=(const MoodyBackend&) = delete;

  [[nodiscard]] const BackendInfo& info() const override { return info_; }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    const std::size_t keys = request.keys.size();
    const std::vector<PoolName> pools = request.pools;
    return counted([&] {
      return patient_->faulty_.submit_exists(
          std::move(request), [patient = patient_, keys, pools, done = std::move(done)](ExistsResult result) {
            lie_about_presence(*patient, keys, pools, result);
            done(std::move(result));
            patient->end();
          });
    });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    const std::vector<ReadItem> items = request.items;
    return counted([&] {
      return patient_->faulty_.submit_read(std::move(request),
                                           [patient = patient_, items, done = std::move(done)](ReadResult result) {
                                             lie_about_pages(*patient, items, result);
                                             done(std::move(result));
                                             patient->end();
                                           });
    });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return counted([&] {
      return patient_->faulty_.submit_write(std::move(request),
                                            [patient = patient_, done = std::move(done)](WriteResult result) {
                                              resize_as(patient->mood(), result.groups);
                                              done(std::move(result));
                                              patient->end();
                                            });
    });
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return counted([&] {
      return patient_->faulty_.submit_clear(std::move(scope),
                                            [patient = patient_, done = std::move(done)](const Status& status) {
                                              done(status);
                                              patient->end();
                                            });
    });
  }
  [[nodiscard]] BackendStats stats() const override { return patient_->faulty_.stats(); }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override {
    LARDER_RETURN_IF_ERROR(patient_->faulty_.close(limit));
    return patient_->wait_idle(limit);
  }

 private:
  template <class Submit>
  Status counted(const Submit& submit) {
    patient_->begin();
    const Status status = submit();
    if (!status.is_ok()) patient_->end();
    return status;
  }

  static void lie_about_presence(Patient& patient, std::size_t keys, const std::vector<PoolName>& pools,
                                 ExistsResult& result) {
    const Mood mood = patient.mood();
    if (mood == Mood::kBoasts) {
      result = {};
      for (const PoolName pool : pools) result.presence.push_back({pool, Presence(keys, true)});
    } else if (mood == Mood::kMore) {
      for (PoolPresence& entry : result.presence) entry.present.insert(entry.present.end(), 3, true);
      if (!pools.empty()) result.presence.push_back({pools.front(), Presence(2 * keys, true)});
    } else if (mood == Mood::kFewer && !result.presence.empty()) {
      result.presence.pop_back();
      for (PoolPresence& entry : result.presence) {
        if (!entry.present.empty()) entry.present.pop_back();
      }
    } else {
      return;
    }
    ++patient.lies_;
  }

  static void lie_about_pages(Patient& patient, const std::vector<ReadItem>& items, ReadResult& result) {
    const Mood mood = patient.mood();
    if (mood == Mood::kFlips || mood == Mood::kShort) {
      for (std::size_t i = 0; i < items.size() && i < result.items.size(); ++i) {
        if (!result.items[i].is_ok()) continue;
        spoil(mood, items[i]);
        ++patient.lies_;
      }
    }
    if (mood == Mood::kFewer || mood == Mood::kMore) ++patient.lies_;
    resize_as(mood, result.items);
  }

  const std::shared_ptr<Patient> patient_;
  BackendInfo info_;
};

Ward::Ward(std::uint64_t seed) : threads_("store", 2, 16'384), rng_(seed) {
  pump_ = std::make_unique<ThreadPoolExecutor>("pump", 1, 1);
  (void)pump_->post([this] { pump(); });
}

Ward::~Ward() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
    stopped_.notify_all();
  }
  pump_.reset();
}

Status Ward::add_to(BackendFactory& factory) {
  for (const char* name : {"kept", "other"}) {
    LARDER_RETURN_IF_ERROR(factory.add(
        name, {{"store", "", "which store"}, {"mood", "fine", "how it behaves from the start"}},
        [this, name](const BackendOptions& options, const BackendEnvironment&) { return make(name, options); }));
  }
  return Status::ok();
}

Result<StorageBackend*> Ward::store(const std::string& name) {
  LockGuard guard(mutex_);
  std::unique_ptr<StorageBackend>& store = stores_[name];
  if (store) return store.get();
  BackendFactory factory;
  LARDER_RETURN_IF_ERROR(register_memory_backend(factory));
  auto made = factory.create("memory", {}, BackendEnvironment{nullptr, &real_clock(), &threads_});
  if (!made.is_ok()) return made.status();
  store = std::move(made).value();
  return store.get();
}

Result<std::unique_ptr<StorageBackend>> Ward::make(const std::string& name, const BackendOptions& options) {
  const auto text = [&](const char* key) {
    const auto at = options.find(key);
    return at == options.end() ? std::string() : at->second;
  };
  const std::optional<Mood> mood = options.contains("mood") ? parse_mood(text("mood")) : Mood::kFine;
  if (!mood) return invalid_argument("no such mood: " + text("mood"));
  const Result<StorageBackend*> inner = store(text("store"));
  if (!inner.is_ok()) return inner.status();
  LockGuard guard(mutex_);
  forget_the_dead();
  auto patient = std::make_shared<Patient>(std::make_unique<Door>(*inner.value()), rng_.next_u64(), *mood);
  patients_.push_back(patient);
  ++gone_.made;
  return std::unique_ptr<StorageBackend>(std::make_unique<MoodyBackend>(name, std::move(patient)));
}

std::vector<std::shared_ptr<Patient>> Ward::patients() const {
  LockGuard guard(mutex_);
  return patients_;
}

std::shared_ptr<Patient> Ward::last() const {
  LockGuard guard(mutex_);
  return patients_.empty() ? nullptr : patients_.back();
}

std::size_t Ward::let_all_go() {
  std::size_t count = 0;
  for (const std::shared_ptr<Patient>& patient : patients()) count += patient->let_go();
  return count;
}

std::size_t Ward::living() const {
  std::size_t count = 0;
  for (const std::shared_ptr<Patient>& patient : patients()) count += patient->is_attached() ? 1 : 0;
  return count;
}

namespace {

void add_to_tally(const Patient& patient, Ward::Tally& tally) {
  const sim::FaultyBackend::Injected injected = patient.injected();
  tally.died_busy += patient.died_busy() ? 1 : 0;
  tally.hung += injected.hung;
  tally.failed += injected.refused + injected.failed + injected.partial;
  tally.lies += patient.lies();
}

}  // namespace

void Ward::forget_the_dead() {
  std::erase_if(patients_, [&](const std::shared_ptr<Patient>& patient) {
    if (patient->is_attached()) return false;
    add_to_tally(*patient, gone_);
    return true;
  });
}

Ward::Tally Ward::tally() const {
  LockGuard guard(mutex_);
  Tally tally = gone_;
  for (const std::shared_ptr<Patient>& patient : patients_) add_to_tally(*patient, tally);
  return tally;
}

// Late answers: whatever is held waits for the next look, and some of it for the one after.
void Ward::pump() {
  for (;;) {
    std::vector<std::shared_ptr<Patient>> all;
    std::uint64_t luck = 0;
    {
      LockGuard guard(mutex_);
      if (is_stopping_) return;
      (void)stopped_.wait_for(mutex_, kPumpLook);
      if (is_stopping_) return;
      all = patients_;
      luck = rng_.next_u64();
    }
    for (const std::shared_ptr<Patient>& patient : all) {
      const std::size_t most = (patient->held() + 1) / 2 + luck % 2;
      for (std::size_t i = 0; i < most && patient->let_one_go(); ++i) continue;
    }
  }
}

}  // namespace larder::attach
