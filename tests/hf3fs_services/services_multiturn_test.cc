// SPDX-License-Identifier: Apache-2.0
// Conversations through the whole server with backend `hf3fs` on the fake library, with each page-index service: what
// they say does not depend on storage, and what a new engine finds does not depend on where the index is.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/hf3fs_services/services_under_test.h"
#include "tests/support/conversations.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

MultiturnResult talk(const std::string& model, const nlohmann::json& storage) {
  return support::talk(model, "hf3fs", storage);
}

// Two engines after each other on one mount and one service; gives what the second one found.
RoundSummary talk_twice(const std::string& model, ServiceKind kind, const MultiturnResult& truth) {
  const support::TemporaryDirectory mount;
  std::filesystem::create_directories(mount.path() + "/3fs-virt/iovs");
  const ServiceUnderTest service(kind);
  nlohmann::json storage = {{"file_path_prefix", mount.path() + "/pages"},
                            {"file_size", "256Mi"},
                            {"library", LARDER_FAKE_HF3FS},
                            {"staging_size", "4Mi"},
                            {"prefetch_threshold", 64}};
  if (!service.url().empty()) storage["metadata_server_url"] = service.url();
  RoundSummary found;
  for (const bool is_new_engine : {false, true}) {
    SCOPED_TRACE(service_name(kind) + (is_new_engine ? ", a new engine" : ", the first engine"));
    const MultiturnResult said = talk(model, storage);
    EXPECT_EQ(first_difference(said, truth), "") << "storage changes what the model says";
    found = summarize(said, -1);
    if (!is_new_engine) {
      EXPECT_EQ(found.storage, 0u) << "there was nothing yet";
    }
  }
  if (kind != ServiceKind::kEmbedded) {
    EXPECT_GT(service.stored(), 0u) << "the pages' keys were kept somewhere else";
  }
  return found;
}

class ServicesMultiturn : public testing::TestWithParam<const char*> {};

TEST_P(ServicesMultiturn, SayWhatTheyWouldAndFindTheSameAfterARestart) {
  const MultiturnResult truth = talk(GetParam(), {});
  const RoundSummary alone = summarize(truth, -1);
  ASSERT_EQ(alone.storage, 0u);
  std::map<ServiceKind, RoundSummary> found;
  for (const ServiceKind kind : {ServiceKind::kEmbedded, ServiceKind::kHttp, ServiceKind::kRedis}) {
    if (!why_not_here(kind).empty()) continue;
    found[kind] = talk_twice(GetParam(), kind, truth);
    EXPECT_GT(found[kind].storage, 0u) << service_name(kind);
    EXPECT_GT(found[kind].hit_rate(), alone.hit_rate()) << service_name(kind);
    // Not to the token: what is stored before the first engine ends, and what arrives before a request stops waiting,
    // depends on how busy the machine is.
    const std::uint64_t expected = found[ServiceKind::kEmbedded].storage;
    EXPECT_GE(4 * found[kind].storage, 3 * expected) << service_name(kind);
    EXPECT_GE(4 * expected, 3 * found[kind].storage) << service_name(kind);
  }
  if (!found.contains(ServiceKind::kRedis)) GTEST_SKIP() << "on Redis: " << why_not_here(ServiceKind::kRedis);
}

std::string multiturn_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ServicesMultiturn, testing::Values("gdn-tiny", "dsv4-tiny"), multiturn_name);

}  // namespace
}  // namespace larder::conformance
