// SPDX-License-Identifier: Apache-2.0
#include "tests/attach/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tests/attach/attach_rig.h"
#include "tests/attach/moody_backend.h"
#include "tests/support/rest.h"
#include "tests/support/temporary_directory.h"

namespace larder::attach {
namespace {

constexpr std::size_t kClients = 4;
constexpr std::uint64_t kAnswersPerRound = 3;
constexpr std::uint64_t kAnswersWhileIll = 8;
constexpr std::size_t kRoundsPerCheck = 8;
constexpr std::size_t kRoundsThatShow = 24;  // fewer may by chance never read from storage
constexpr std::size_t kTriesOfProbe = 4;
constexpr std::size_t kMostStalls = 2;

// Where an operator can attach to.
struct Place {
  std::string backend, extra_config;
  bool is_known = false;  // it has the pages of the probes
  bool is_moody = false;
  std::string directory;  // of the file backend
};

constexpr std::array kMoodsAfterwards = {Mood::kHangs, Mood::kHangsOften, Mood::kFails, Mood::kErrs,
                                         Mood::kLate,  Mood::kFewer,      Mood::kMore,  Mood::kBoasts};
// What the probe of an attach finds out.
constexpr std::array kMoodsAtAttach = {Mood::kHangs, Mood::kFails, Mood::kFlips, Mood::kShort,
                                       Mood::kFewer, Mood::kMore,  Mood::kBoasts};

class Operator {
 public:
  explicit Operator(const RoundsPlan& plan) : plan_(plan), rng_(plan.seed), ward_(plan.seed + 1) {}

  void run();

 private:
  [[nodiscard]] std::string set_up();
  [[nodiscard]] std::string seed_known_places();
  // Empty, or what went wrong.
  [[nodiscard]] std::string round(std::size_t number);
  [[nodiscard]] std::string attach(const Place& place, Mood mood);
  [[nodiscard]] std::string try_in_vain();
  [[nodiscard]] std::string detach();
  [[nodiscard]] std::string use();
  [[nodiscard]] std::string fall_ill();
  [[nodiscard]] std::string probe();
  [[nodiscard]] std::string probe_once(bool& was_served);
  [[nodiscard]] bool wait_until_it_answers();
  [[nodiscard]] std::string state_of_storage(const Turn& turn);
  [[nodiscard]] std::string check_everything();
  [[nodiscard]] Place choose_place(std::size_t number);
  void remove_fresh_directories();
  [[nodiscard]] bool wait_for_retired();
  [[nodiscard]] Place kept(const char* name, const char* store) const {
    return {name, std::string(R"({"store": ")") + store + "\"}", true, true, ""};
  }
  [[nodiscard]] Place file(const std::string& directory, bool is_known) const {
    return {"file", R"({"segment_size": "1Mi", "directory": ")" + directory + "\"}", is_known, false, directory};
  }
  [[nodiscard]] Scheduler& scheduler() { return stage_->scheduler(); }

  const RoundsPlan plan_;
  Rng rng_;
  const support::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
  Ward ward_;
  Truth truth_;
  std::unique_ptr<Stage> stage_;  // after the ward: its backends are of the ward's stores
  std::unique_ptr<Crowd> crowd_;
  std::optional<Place> current_;
  std::vector<std::string> fresh_;  // directories made since the last check
  bool waits_for_all_ = false;      // the policy of the current attach
  bool is_ill_ = false;             // something hangs, or may
  std::size_t next_probe_ = 0;
  std::string last_miss_;
  struct Done {
    std::size_t attached = 0, switched = 0, detached = 0, refused = 0, probed = 0, starved = 0, checked = 0;
    std::size_t stood_still = 0;  // attaches that a disk kept from being tried out
  } done_;
};

std::string Operator::set_up() {
  if (directory_.empty()) return "no temporary directory";
  Result<Truth> truth = make_truth(plan_.model, plan_.seed);
  if (!truth.is_ok()) return "truth: " + truth.status().to_string();
  truth_ = std::move(truth).value();
  Result<std::unique_ptr<Stage>> stage =
      Stage::create(attach_options(plan_.model), [this](BackendFactory& factory) { return ward_.add_to(factory); });
  if (!stage.is_ok()) return "scheduler: " + stage.status().to_string();
  stage_ = std::move(stage).value();
  return seed_known_places();
}

// Each of these gets the probes' pages.
std::string Operator::seed_known_places() {
  for (const Place& place : {kept("kept", "a"), kept("kept", "b"), file(directory_ + "/known", true)}) {
    const AttachRequest request{place.backend, place.extra_config, "wait_complete", "write_through"};
    Status status = scheduler().attach_storage(request, kPatience);
    for (const Turn& probe : truth_.probes) {
      if (const std::string wrong = compare(probe, ask(scheduler(), probe.request)); !wrong.empty()) return wrong;
      if (status.is_ok()) status = scheduler().quiesce(kPatience);
    }
    if (status.is_ok()) status = scheduler().detach_storage(kPatience);
    if (status.is_ok()) status = stage_->check_empty();  // flushes
    if (!status.is_ok()) return "seeding " + place.backend + ": " + status.to_string();
  }
  return "";
}

void Operator::run() {
  if (const std::string wrong = set_up(); !wrong.empty()) {
    ADD_FAILURE() << wrong << "; LARDER_TEST_SEED=" << plan_.seed;
    return;
  }
  crowd_ = std::make_unique<Crowd>(scheduler(), truth_, kClients, plan_.seed + 2);
  std::string wrong;
  std::size_t number = 0;
  for (; number < plan_.rounds && wrong.empty(); ++number) {
    wrong = round(number);
    if (wrong.empty() && (number + 1) % kRoundsPerCheck == 0) wrong = check_everything();
  }
  if (wrong.empty()) wrong = check_everything();
  const std::string of_a_client = crowd_->failure();
  if (!wrong.empty() || !of_a_client.empty()) {
    ADD_FAILURE() << "round " << number << ": " << wrong << "; clients: " << of_a_client << "; model " << plan_.model
                  << "; LARDER_TEST_SEED=" << plan_.seed;
  }
  (void)ward_.let_all_go();
  crowd_->stop();
  const Crowd::Totals totals = crowd_->totals();
  const Ward::Tally tally = ward_.tally();
  EXPECT_EQ(tally.died_busy, 0u) << "a backend was destroyed while operations of it hung";
  if (plan_.rounds >= kRoundsThatShow) {
    EXPECT_GT(done_.probed, 0u);
    EXPECT_GT(totals.storage, 0u);
    EXPECT_EQ(tally.hung + tally.failed + tally.lies > 0, plan_.is_sick);
  }
  printf(
      "%s: %zu attached (%zu of them switched), %zu detached, %zu refused; %llu answers, prompt tokens %llu: device "
      "%llu host %llu storage %llu; probes %zu (%zu found no room), full checks %zu; hung %llu, failed %llu, lies "
      "%llu\n",
      plan_.model.c_str(), done_.attached, done_.switched, done_.detached, done_.refused,
      static_cast<unsigned long long>(totals.answers), static_cast<unsigned long long>(totals.prompt),
      static_cast<unsigned long long>(totals.device), static_cast<unsigned long long>(totals.host),
      static_cast<unsigned long long>(totals.storage), done_.probed, done_.starved, done_.checked,
      static_cast<unsigned long long>(tally.hung), static_cast<unsigned long long>(tally.failed),
      static_cast<unsigned long long>(tally.lies));
}

Place Operator::choose_place(std::size_t number) {
  while (true) {
    Place place;
    switch (rng_.below(6)) {
      case 0: place = kept("kept", "a"); break;
      case 1: place = kept("kept", "b"); break;
      case 2: place = kept("other", "a"); break;  // one store behind two names
      case 3: place = file(directory_ + "/known", true); break;
      case 4: place = file(directory_ + "/fresh" + std::to_string(number), false); break;
      default: place = {"memory", R"({"max_size": "8Mi"})", false, false, ""}; break;
    }
    if (plan_.is_sick && !place.is_moody && rng_.chance(2, 3)) continue;  // mostly those that can fall ill
    const bool is_same = current_ && current_->backend == place.backend && current_->extra_config == place.extra_config;
    if (!is_same) return place;
  }
}

std::string Operator::round(std::size_t number) {
  if (plan_.is_sick && rng_.chance(1, 5)) {
    if (std::string wrong = try_in_vain(); !wrong.empty()) return wrong;
  }
  const Place place = choose_place(number);
  const bool switches = current_ && rng_.chance(1, 2);
  if (current_ && !switches) {
    if (std::string wrong = detach(); !wrong.empty()) return wrong;
    if (rng_.chance(1, 4) && !crowd_->wait_answers(kAnswersPerRound)) return "without storage";
  }
  if (std::string wrong = attach(place, Mood::kFine); !wrong.empty()) return wrong;
  if (std::string wrong = use(); !wrong.empty()) return wrong;
  if (plan_.is_sick && place.is_moody && rng_.chance(1, 2)) return fall_ill();
  return "";
}

std::string Operator::attach(const Place& place, Mood mood) {
  AttachRequest request;
  request.backend = place.backend;
  request.extra_config = place.extra_config;
  if (mood != Mood::kFine) {
    request.extra_config.insert(request.extra_config.size() - 1, R"(, "mood": ")" + std::string(mood_name(mood)) + '"');
  }
  request.replace = current_.has_value();
  constexpr std::array kPrefetch = {"wait_complete", "wait_complete", "timeout", "best_effort"};
  constexpr std::array kWrite = {"write_through", "write_through", "write_through_selective", "write_back"};
  // Who waits for all that a sick storage has, waits long: there is a test of its own for that.
  request.prefetch_policy = plan_.is_sick ? kPrefetch[2 + rng_.below(2)] : kPrefetch[rng_.below(4)];
  request.write_policy = kWrite[rng_.below(4)];
  const StorageView before = scheduler().storage();
  // The directory is taken until the one that had it before is closed.
  if (place.backend == "file" && place.is_known) {
    (void)ward_.let_all_go();
    if (!wait_for_retired()) return "a detached backend is never closed";
  }
  Status status = scheduler().attach_storage(request, mood == Mood::kFine ? kPatience : Nanos(20'000'000));
  // A disk on which others write much may stand still for longer than a probe waits; a store that hangs does so again.
  while (mood == Mood::kFine && status.code() == StatusCode::kDeadlineExceeded && done_.stood_still < kMostStalls) {
    ++done_.stood_still;
    if (!wait_for_retired()) return "a backend that was tried out in vain is never closed";
    status = scheduler().attach_storage(request, kPatience);
  }
  const StorageView view = scheduler().storage();
  if (mood != Mood::kFine) {
    ++done_.refused;
    if (status.is_ok()) return "a backend that " + std::string(mood_name(mood)) + " was attached";
    const bool is_same = view.backend == before.backend && view.extra_config == before.extra_config &&
                         view.prefetch_policy == before.prefetch_policy && view.write_policy == before.write_policy;
    return is_same ? "" : "a failed attach changed something: now " + view.backend + " " + view.extra_config;
  }
  if (!status.is_ok()) return "attach of " + place.backend + " " + place.extra_config + ": " + status.to_string();
  if (view.backend != place.backend || view.extra_config != place.extra_config) return "attached, but not shown";
  ++done_.attached;
  if (current_) ++done_.switched;
  if (!place.directory.empty() && !place.is_known) fresh_.push_back(place.directory);
  current_ = place;
  waits_for_all_ = request.prefetch_policy == "wait_complete";
  return "";
}

// A backend that is ill from the start: refused, and nothing is different after it.
std::string Operator::try_in_vain() {
  const Mood mood = kMoodsAtAttach[rng_.below(kMoodsAtAttach.size())];
  is_ill_ = is_ill_ || mood == Mood::kHangs;
  return attach(kept(rng_.chance(1, 2) ? "kept" : "other", "sick"), mood);
}

std::string Operator::detach() {
  const Nanos limit = is_ill_ ? Nanos(rng_.below(10'000'000)) : kPatience;
  const Status status = scheduler().detach_storage(limit);
  if (!status.is_ok()) return "detach: " + status.to_string();
  if (const StorageView view = scheduler().storage(); !view.backend.empty()) return "detached, but still shown";
  ++done_.detached;
  current_.reset();
  return "";
}

// It serves: what it has comes from it at once.
std::string Operator::use() {
  if (current_->is_known && next_probe_ < truth_.probes.size()) return probe();
  return crowd_->wait_answers(kAnswersPerRound) ? "" : "while " + current_->backend + " was attached";
}

// A prefetch that finds the host full, of what the new storage is to get, goes without: then the next one counts.
std::string Operator::probe() {
  std::string wrong;
  for (std::size_t tries = 0; tries < kTriesOfProbe && next_probe_ < truth_.probes.size(); ++tries) {
    bool was_served = false;
    wrong = probe_once(was_served);
    if (was_served || !wrong.empty()) return wrong;
    wrong = "no probe of " + current_->backend + " came from storage: " + last_miss_;
    ++done_.starved;
    if (!crowd_->failure().empty()) return "a client failed";
  }
  return wrong;
}

// served: it was as it must be, or the policy does not promise anything.
std::string Operator::probe_once(bool& was_served) {
  const Turn& probe = truth_.probes[next_probe_++];
  const Result<Answer> got = ask(scheduler(), probe.request);
  if (std::string wrong = compare(probe, got); !wrong.empty()) return "probe of " + current_->backend + ": " + wrong;
  was_served = true;
  if (!waits_for_all_) return "";
  ++done_.probed;
  const CachedTokens& cached = got->last.cached;
  const std::uint64_t page = scheduler().model().page_size;
  if (cached.storage == (probe.request.tokens.size() - 1) / page * page) return "";
  was_served = false;
  last_miss_ = std::to_string(cached.storage) + " tokens came from storage, " + std::to_string(cached.host) +
               " from the host, " + std::to_string(cached.device) + " from the device; " + state_of_storage(probe);
  return "";
}

// For people who read the failure.
std::string Operator::state_of_storage(const Turn& turn) {
  const SchedulerStats stats = scheduler().stats();
  std::string text = "prefetched " + std::to_string(stats.cache.prefetched) + ", loaded back " +
                     std::to_string(stats.cache.loaded_back) + ", late " + std::to_string(stats.cache.prefetch_late) +
                     ", partial " + std::to_string(stats.cache.prefetch_partial) + ", refused " +
                     std::to_string(stats.cache.prefetch_refused) + ", corrupt " + std::to_string(stats.cache.corrupt);
  if (stats.storage) {
    text += "; storage has " + std::to_string(stats.storage->pages) + " pages, torn tails " +
            std::to_string(stats.storage->torn_tails) + ", read misses " + std::to_string(stats.storage->read_misses);
  }
  const Result<Explanation> why = scheduler().explain(turn.request, kPatience);
  if (!why.is_ok()) return text + "; " + why.status().to_string();
  text += "; " + why->storage_reason;
  for (const ExplainLine& line : why->pools) text += "; " + line.pool + " " + std::to_string(line.storage_pages);
  return text;
}

std::string Operator::fall_ill() {
  const Mood mood = kMoodsAfterwards[rng_.below(kMoodsAfterwards.size())];
  const std::shared_ptr<Patient> patient = ward_.last();
  patient->set_mood(mood);
  if (!crowd_->wait_answers(kAnswersWhileIll)) return "while the backend " + std::string(mood_name(mood));
  const bool hangs = mood == Mood::kHangs || mood == Mood::kHangsOften;
  is_ill_ = is_ill_ || hangs;
  if (hangs && rng_.chance(1, 2)) return "";  // it goes on while the next ones are attached
  patient->set_mood(Mood::kFine);
  (void)patient->let_go();
  return "";
}

bool Operator::wait_for_retired() {
  const TimePoint deadline = real_clock().now() + kPatience;
  while (scheduler().storage().retired > 0) {
    if (real_clock().now() > deadline) return false;
    rest();
  }
  return true;
}

// A breaker closes some time after the backend is well.
bool Operator::wait_until_it_answers() {
  const TimePoint deadline = real_clock().now() + kPatience;
  while (true) {
    const Result<Explanation> why = scheduler().explain(truth_.probes.back().request, kPatience);
    if (why.is_ok() && why->storage_status.is_ok()) return true;
    if (real_clock().now() > deadline) return false;
    rest();
  }
}

// Nothing but the current one is open.
void Operator::remove_fresh_directories() {
  for (const std::string& directory : fresh_) {
    if (!current_ || current_->directory != directory) std::filesystem::remove_all(directory);
  }
  fresh_.clear();
}

std::string Operator::check_everything() {
  ++done_.checked;
  if (!crowd_->pause()) return "pause";
  if (plan_.is_sick) {
    if (const std::shared_ptr<Patient> last = ward_.last()) last->set_mood(Mood::kFine);
    (void)ward_.let_all_go();
  }
  if (!wait_for_retired()) return "a detached backend is never closed";
  const Status empty = stage_->check_empty();
  if (!empty.is_ok()) return empty.to_string();
  const std::size_t expected = current_ && current_->is_moody ? 1 : 0;
  if (ward_.living() != expected) return std::to_string(ward_.living()) + " backends live on";
  remove_fresh_directories();
  is_ill_ = false;
  next_probe_ = 0;
  std::string wrong;
  // All that was known to device and host is gone: storage has it still.
  if (current_ && current_->is_known) {
    if (plan_.is_sick) {
      AttachRequest policy{current_->backend, current_->extra_config, "wait_complete", ""};
      if (!scheduler().attach_storage(policy, kPatience).is_ok()) return "change of policy";
      waits_for_all_ = true;
      if (!wait_until_it_answers()) return "a backend that is well again is not asked any more";
    }
    wrong = probe();
    if (plan_.is_sick && wrong.empty()) {
      AttachRequest policy{current_->backend, current_->extra_config, "timeout", ""};
      if (!scheduler().attach_storage(policy, kPatience).is_ok()) return "change of policy";
      waits_for_all_ = false;
    }
  }
  crowd_->resume();
  return wrong;
}

}  // namespace

void run_rounds(const RoundsPlan& plan) { Operator(plan).run(); }

}  // namespace larder::attach
