// SPDX-License-Identifier: Apache-2.0
// A storage that answers what it has and takes no reads, as a pipeline does whose breaker has just opened.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "tests/connector/connector_rig.h"
#include "tests/support/passing_backend.h"

namespace larder::connector_test {
namespace {

class RefusesReads final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;

  Status refusal;         // of reads; ok: they are passed on
  bool answers = false;   // the read is taken, and every page of it fails so
  std::size_t reads = 0;  // that were asked for

  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    ++reads;
    if (refusal.is_ok()) return inner_->submit_read(std::move(request), std::move(done));
    if (!answers) return refusal;
    done(ReadResult{std::vector<Status>(request.items.size(), refusal)});
    return Status::ok();
  }
};

// What a lookup of `tokens` is told by a connector whose host is empty.
LookupResult ask_anew(Storage& storage, RefusesReads& backend, const Tokens& tokens) {
  RigOptions options;
  options.copies_seed = 1;
  options.config.tiers.prefetch_threshold = 1;
  options.config.tiers.prefetch_capacity = 1;
  Rig rig("full_mamba", options);
  rig.storages.push_back(&storage);
  EXPECT_TRUE(rig.connector->attach_storage(backend).is_ok());
  LookupId id;
  LookupResult result = rig.look_up(tokens, id);
  rig.connector->release(id);
  return result;
}

// The operator must read that storage failed, not that nobody ever had this prompt.
TEST(ConnectorRefusal, AReadThatIsRefusedIsToldAsOneThatFailed) {
  Storage storage(1);
  RefusesReads backend(*storage.backend);
  std::optional<Tokens> tokens;
  {
    RigOptions options;
    options.copies_seed = 1;
    Rig rig("full_mamba", options);
    rig.attach(storage);
    tokens = rig.prompt(1, 6);
    (void)rig.save_all(*tokens, 6);
  }
  for (const Status& refusal : {unavailable("not asked since it failed"), internal_error("it has broken down")}) {
    for (const bool answers : {true, false}) {
      SCOPED_TRACE(refusal.to_string() + (answers ? ", answered" : ", refused"));
      backend.refusal = refusal;
      backend.answers = answers;
      backend.reads = 0;
      const LookupResult told = ask_anew(storage, backend, *tokens);
      EXPECT_TRUE(told.points.empty());
      EXPECT_EQ(miss_reason_name(told.miss.reason), "storage_failed");
      EXPECT_GT(backend.reads, 0u);
    }
  }
  backend.refusal = Status::ok();
  EXPECT_EQ(last_of(ask_anew(storage, backend, *tokens)), 6u) << "it is asked again by the next lookup";
}

}  // namespace
}  // namespace larder::connector_test
