// SPDX-License-Identifier: Apache-2.0
// The conformance checks find what is wrong with a backend, leave alone what is not theirs, and skip what is not there.
#include <map>

#include "storage/plugin/plugin_backend.h"
#include "storage/plugin/plugin_library.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

using Outcomes = std::map<std::string, CheckOutcome>;

Outcomes run_all(StorageHarness& harness) {
  Outcomes out;
  for (const Check& check : all_checks()) {
    out[check.name] = run_check(check, harness, test_seed());
    EXPECT_FALSE(out[check.name].is_stuck) << check.name;
  }
  return out;
}

std::string report(const Outcomes& outcomes) {
  std::string text = "seed " + std::to_string(test_seed()) + "\n";
  for (const auto& [name, outcome] : outcomes) {
    if (outcome.verdict == Verdict::kSkipped) text += "skipped " + name + ": " + outcome.skipped_because + "\n";
    for (const std::string& failure : outcome.failures) text += "FAILED " + name + ": " + failure + "\n";
    for (const std::string& part : outcome.left_out) text += "left out of " + name + ": " + part + "\n";
  }
  return text;
}

// Names of the checks with a verdict, joined.
std::string with_verdict(const Outcomes& outcomes, Verdict verdict) {
  std::string out;
  for (const auto& [name, outcome] : outcomes) out += outcome.verdict == verdict ? name + " " : "";
  return out;
}

class BadHarness final : public HarnessBase {
 public:
  explicit BadHarness(std::string defect) : HarnessBase(3, test_seed()), defect_(std::move(defect)) {
    static int stores = 0;
    store_ = std::to_string(++stores);
  }
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    return create("plugin", {{"library", LARDER_BAD_BACKEND}, {"defect", defect_}, {"store", store_}}, extra, nullptr);
  }
  [[nodiscard]] bool is_bounded() const override { return false; }

 private:
  const std::string defect_;
  std::string store_;
};

struct Defect {
  const char* name;
  const char* found_by;         // at least this check
  bool keeps_old_page = false;  // one that was cleared, with the identity of a newer one: no envelope can tell
  friend void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }
};

class ConformanceFinds : public testing::TestWithParam<Defect> {};

TEST_P(ConformanceFinds, TheDefect) {
  BadHarness harness(GetParam().name);
  const Outcomes outcomes = run_all(harness);
  EXPECT_EQ(outcomes.at(GetParam().found_by).verdict, Verdict::kFailed) << report(outcomes);
  const bool are_bytes_wrong = report(outcomes).find("WRONG BYTES") != std::string::npos;
  EXPECT_EQ(are_bytes_wrong, GetParam().keeps_old_page) << "the host lets none pass\n" << report(outcomes);
  EXPECT_EQ(outcomes.at("empty_requests").verdict, Verdict::kOk) << report(outcomes);
}

constexpr Defect kDefects[] = {{"other_bytes", "another_identity_is_a_miss"},
                               {"flips_a_bit", "round_trip_per_pool"},
                               {"forgets", "round_trip_per_pool"},
                               {"loses_sidecars", "round_trip_per_pool"},
                               {"shows_halves", "groups_are_seen_whole"},
                               {"short_reads", "round_trip_per_pool"},
                               {"no_answer", "round_trip_per_pool"},
                               {"unknown_code", "joint_exists_with_holes"},
                               {"exists_lies", "joint_exists_with_holes"},
                               {"exists_denies", "joint_exists_with_holes"},
                               {"ignores_namespace", "another_identity_is_a_miss"},
                               {"ignores_layout", "another_identity_is_a_miss"},
                               {"ignores_length", "another_length_is_a_miss"},
                               {"misses_are_errors", "missing_keys_are_misses"},
                               {"refuses_duplicates", "duplicates_are_cheap_and_ok"},
                               {"stores_duplicates", "duplicates_are_cheap_and_ok"},
                               {"counts_nothing", "round_trip_per_pool"},
                               {"clears_nothing", "clear_by_scope", true},
                               {"clears_everything", "clear_by_scope"},
                               {"forgets_on_close", "survives_restart"}};

INSTANTIATE_TEST_SUITE_P(Plugin, ConformanceFinds, testing::ValuesIn(kDefects),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ConformanceKit, FindsNothingWrongWithoutADefect) {
  BadHarness harness("none");
  const Outcomes outcomes = run_all(harness);
  EXPECT_EQ(with_verdict(outcomes, Verdict::kFailed), "") << report(outcomes);
  EXPECT_EQ(with_verdict(outcomes, Verdict::kSkipped),
            "bounded_queue_and_close_under_load bounded_size flipped_bits_are_never_returned ")
      << report(outcomes);
}

// The example library in a directory of its own.
class ExampleHarness final : public HarnessBase {
 public:
  ExampleHarness(bool is_own_store, bool is_bare)
      : HarnessBase(3, test_seed()), is_own_store_(is_own_store), is_bare_(is_bare) {}
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    Result<LarderBackendTable> table = plugin::load_library(LARDER_EXAMPLE_BACKEND);
    if (!table.is_ok()) return table.status();
    if (is_bare_) table->drop = nullptr, table->clear = nullptr, table->stats = nullptr;
    BackendOptions options = extra;
    options["directory"] = directory_.path();
    return plugin::open_backend(*table, options, 1000, {nullptr, &clock_, pool_.get()});
  }
  [[nodiscard]] bool is_own_store() const override { return is_own_store_; }
  [[nodiscard]] bool is_bounded() const override { return false; }

 private:
  const bool is_own_store_, is_bare_;
  const support::TemporaryDirectory directory_;
};

TEST(ConformanceKit, EntriesThatAreNullAreLeftOutAndSaidSo) {
  ExampleHarness harness(/*is_own_store=*/true, /*is_bare=*/true);
  const Outcomes outcomes = run_all(harness);
  EXPECT_EQ(with_verdict(outcomes, Verdict::kFailed), "") << report(outcomes);
  EXPECT_EQ(outcomes.at("clear_by_scope").skipped_because, "the backend does not support clear");
  EXPECT_EQ(outcomes.at("round_trip_per_pool").left_out, std::vector<std::string>{"page counts: the backend has none"});
}

TEST(ConformanceKit, AStoreThatOthersUseIsLeftAsItWas) {
  ExampleHarness harness(/*is_own_store=*/false, /*is_bare=*/false);
  const auto read_or_write = [&](bool is_write) {
    auto backend = harness.open({});
    ASSERT_TRUE(backend.is_ok()) << backend.status().to_string();
    Rng rng(1);
    for (std::uint64_t number = 0; number < 10; ++number) {
      PageBuffer page(1000, 1, rng);
      page.fill(test_key(number), PoolName::kKv);
      if (is_write) {
        WriteRequest request{test_scope(1), {{{{PoolName::kKv, test_key(number), page.segments()}}}}};
        ASSERT_TRUE(write(harness, **backend, std::move(request)).groups.at(0).is_ok());
      } else {
        ReadRequest request{test_scope(1), {{PoolName::kKv, test_key(number), page.segments()}}};
        EXPECT_TRUE(read(harness, **backend, std::move(request)).items.at(0).is_ok());
      }
    }
    EXPECT_EQ((*backend)->stats().pages, 10u) << "and none of the checks'";
  };
  read_or_write(true);
  const Outcomes outcomes = run_all(harness);
  EXPECT_EQ(with_verdict(outcomes, Verdict::kFailed), "") << report(outcomes);
  EXPECT_EQ(outcomes.at("clear_by_scope").left_out,
            std::vector<std::string>{"clear of the whole store: others may use it"});
  read_or_write(false);
}

TEST(ConformanceKit, ABackendThatDoesNotOpenFails) {
  BadHarness harness("Not A Name");
  const CheckOutcome outcome = run_check(all_checks()[0], harness, 1);
  EXPECT_EQ(outcome.verdict, Verdict::kFailed);
  ASSERT_EQ(outcome.failures.size(), 1u);
  EXPECT_NE(outcome.failures[0].find("options: defect, store"), std::string::npos) << outcome.failures[0];
}

}  // namespace
}  // namespace larder::conformance
