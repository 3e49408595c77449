// SPDX-License-Identifier: Apache-2.0
#include "server/replica_switch.h"

#include <gtest/gtest.h>

#include <functional>
#include <tuple>
#include <utility>

#include "base/metrics.h"
#include "base/rng.h"
#include "server/http_listener.h"

namespace larder {
namespace {

using End = SwitchReport::End;

class FakeDoor final : public StorageDoor {
 public:
  explicit FakeDoor(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  Result<AttachedStorage> ask() override {
    if (is_gone) return unavailable("connection refused");
    return has;
  }
  Status attach_storage(const AttachedStorage& wanted) override {
    if (is_edited && has.backend == wanted.backend && wanted.extra_config.starts_with('@')) {
      return ++changes, unavailable("attached already, with another extra configuration");
    }
    return change([this, wanted] {
      const bool is_same = has.backend == wanted.backend && wanted.extra_config.empty();  // other policies only
      has.backend = wanted.backend;
      is_partial = false;
      if (!is_same) has.extra_config = wanted.extra_config;
      if (!wanted.prefetch_policy.empty()) has.prefetch_policy = wanted.prefetch_policy;
      if (!wanted.write_policy.empty()) has.write_policy = wanted.write_policy;
    });
  }
  Status detach_storage() override {
    return change([this] { has.backend = has.extra_config = "", is_partial = false; });
  }

  AttachedStorage has{"", "", "timeout", "write_back"};
  bool is_gone = false;
  bool is_edited = false;  // the file of an @file that it has attached
  int busy = 0;            // so many changes find it busy
  int refuses = 0;         // so many changes, before they do anything
  int refuses_after = 0;  // so many changes are made in a part of its own replicas, which it does not show, and refused
  bool is_partial = false;
  int loses_answer = 0;         // so many changes are made, and the answer is lost
  int times_out = 0;            // so many changes go on, and the client does not wait for their end
  int conflicts = 0;            // so many changes come while that one goes on
  int conflicts_of_others = 0;  // so many changes come while somebody else's goes on, which brings
  AttachedStorage of_others;    // this; without conflicts it has ended just before our first change
  std::function<void()> under_way;
  int conflicts_after = 0;  // so many changes come while others are at it, once a change of ours is made; they bring
  AttachedStorage others_after;  // this, or nothing
  int changes = 0;               // asked for

 private:
  Status change(const std::function<void()>& make) {
    ++changes;
    if (is_gone) return unavailable("connection refused");
    const bool is_conflict = under_way && conflicts > 0;
    if (under_way && (conflicts == 0 || --conflicts == 0)) std::exchange(under_way, nullptr)();
    if (is_conflict) return conflict("another attach is in progress");
    if (conflicts_of_others > 0) {
      if (--conflicts_of_others == 0 && !of_others.backend.empty()) has = of_others;
      return conflict("another attach is in progress");
    }
    if (!of_others.backend.empty()) return has = of_others, invalid_argument("already enabled");
    if (busy > 0) return --busy, overloaded("scheduler is not idle");
    if (refuses > 0) return --refuses, invalid_argument("no");
    if (times_out > 0) return --times_out, under_way = make, deadline_exceeded("no byte from the server");
    if (refuses_after > 0) return --refuses_after, is_partial = true, invalid_argument("one of two");
    make();
    if (conflicts_after > 0) {
      conflicts_of_others = std::exchange(conflicts_after, 0);
      of_others = others_after;
    }
    if (loses_answer > 0) return --loses_answer, unavailable("the connection broke");
    return Status::ok();
  }
  const std::string name_;
};

class ReplicaSwitchTest : public ::testing::Test {
 protected:
  ReplicaSwitchTest() {
    for (const char* name : {"a", "b", "c"}) {
      auto door = std::make_unique<FakeDoor>(name);
      fakes_.push_back(door.get());
      doors_.push_back(std::move(door));
    }
  }
  ReplicaSwitch make() {
    return {doors_, [this](std::size_t tried) { return ++waits_, tried < 4; }};
  }
  static std::string ends(const SwitchReport& report) {
    std::string out;
    for (const auto& server : report.servers) out += "uscp?nl"[static_cast<int>(server.end)];
    return out;
  }
  [[nodiscard]] std::vector<AttachedStorage> all() const {
    std::vector<AttachedStorage> out;
    for (const FakeDoor* fake : fakes_) out.push_back(fake->has);
    return out;
  }

  const AttachedStorage file_{"file", R"({"directory": "/d"})", "", "write_through"};
  std::vector<std::unique_ptr<StorageDoor>> doors_;
  std::vector<FakeDoor*> fakes_;
  int waits_ = 0;
};

TEST_F(ReplicaSwitchTest, AttachesToAllAndDetachesFromAll) {
  fakes_[1]->has = {"file", file_.extra_config, "timeout", "write_through"};
  SwitchReport report = make().attach_storage(file_);
  EXPECT_TRUE(report.status.is_ok()) << report.status.to_string();
  EXPECT_EQ(ends(report), "csc");
  for (const FakeDoor* fake : fakes_) EXPECT_TRUE(is_as_wanted(fake->has, file_)) << fake->name();
  EXPECT_EQ(fakes_[1]->changes, 0);
  EXPECT_EQ(switch_text(report), "a: done\nb: was so already\nc: done\n");
  report = make().detach_storage();
  EXPECT_EQ(ends(report), "ccc");
  EXPECT_EQ(ends(make().detach_storage()), "sss");
}

TEST_F(ReplicaSwitchTest, TheSameStorageIsTheSameHoweverItIsWritten) {
  fakes_[0]->has = {"file", R"({ "directory":"/d" })", "timeout", "write_back"};
  EXPECT_EQ(ends(make().attach_storage({"file", file_.extra_config, "", ""})), "scc");
  EXPECT_EQ(ends(make().attach_storage({"file", "", "", "write_through"})), "ccc") << "policies alone";
  EXPECT_EQ(fakes_[0]->has.write_policy, "write_through");
  EXPECT_EQ(make().attach_storage({"file", R"({"directory": "/e"})", "", ""}).status.code(), StatusCode::kConflict);
}

// The file is the server's, and may say something else by now: what is attached would stay what it is.
TEST_F(ReplicaSwitchTest, TheSameFileIsNotTakenForTheSameStorage) {
  const AttachedStorage file{"file", "@/etc/store.json", "", ""};
  fakes_[1]->loses_answer = 1;
  EXPECT_EQ(ends(make().attach_storage(file)), "ccc");
  const std::vector<AttachedStorage> before = all();
  for (FakeDoor* fake : fakes_) fake->changes = 0, fake->is_edited = true;
  EXPECT_FALSE(is_as_wanted(fakes_[0]->has, file));
  const SwitchReport again = make().attach_storage(file);
  EXPECT_EQ(again.status.code(), StatusCode::kConflict);
  EXPECT_NE(again.status.message().find("whether that file says what it said is not known: detach that first"),
            std::string::npos)
      << again.status.message();
  EXPECT_EQ(fakes_[0]->changes, 0);
  const AttachedStorage policies{"file", "", "", "write_through"};
  fakes_[2]->refuses = 1;
  EXPECT_EQ(ends(make().attach_storage(policies)), "ppp");
  EXPECT_EQ(all(), before);
  EXPECT_EQ(ends(make().attach_storage(policies)), "ccc");
  EXPECT_EQ(ends(make().detach_storage()), "ccc");
  EXPECT_EQ(ends(make().attach_storage(file)), "ccc");
}

TEST_F(ReplicaSwitchTest, NoSecretIsShown) {
  const std::pair<const char*, const char*> cases[] = {{"hf3fs", R"({"metadata_api_key": "s3cret"})"},
                                                       {"plugin", R"({"library": "/x.so", "door": "s3cret"})"}};
  for (const auto& [backend, config] : cases) {
    fakes_[1]->has = {backend, config, "timeout", "write_back"};
    const SwitchReport report = make().attach_storage(file_);
    EXPECT_EQ(report.status.code(), StatusCode::kConflict);
    EXPECT_EQ(switch_text(report).find("s3cret"), std::string::npos) << switch_text(report);
  }
}

TEST_F(ReplicaSwitchTest, WhatStandsAgainstItIsToldBeforeAnythingChanges) {
  fakes_[2]->has.backend = "memory";
  SwitchReport report = make().attach_storage(file_);
  EXPECT_EQ(report.status.code(), StatusCode::kConflict);
  EXPECT_NE(report.status.message().find("c: it has storage 'memory' attached: detach that first"), std::string::npos);
  fakes_[2]->has.backend = "";
  fakes_[1]->is_gone = true;
  report = make().attach_storage(file_);
  EXPECT_FALSE(report.status.is_ok());
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(fakes_[0]->changes + fakes_[2]->changes, 0);
  EXPECT_EQ(ends(report), "unu");
  EXPECT_EQ(switch_text(report),
            "a: as it was\nb: not reached, nothing was changed: connection refused\nc: as it was\nNothing was "
            "changed.\n");
}

TEST_F(ReplicaSwitchTest, OnceOneRefusesAllAreAsTheyWere) {
  const std::vector<AttachedStorage> before = all();
  fakes_[2]->refuses = 1;
  const SwitchReport report = make().attach_storage(file_);
  EXPECT_EQ(ends(report), "ppp");
  EXPECT_EQ(report.status.message(), "c: no");
  EXPECT_EQ(switch_text(report),
            "a: put back\nb: put back\nc: refused, and has what it had: no\nEach server has what it had.\n");
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(all(), before) << "policies, too";
  ASSERT_TRUE(make().attach_storage(file_).status.is_ok());
  fakes_[1]->refuses = 1;
  EXPECT_EQ(ends(make().detach_storage()), "ppu");
  for (const FakeDoor* fake : fakes_) EXPECT_TRUE(is_as_wanted(fake->has, file_)) << fake->name();
}

TEST_F(ReplicaSwitchTest, OtherPoliciesOfTheSameStorageArePutBackToo) {
  ASSERT_TRUE(make().attach_storage(file_).status.is_ok());
  const std::vector<AttachedStorage> before = all();
  AttachedStorage other = file_;
  other.write_policy = "write_back";
  fakes_[1]->refuses = 1;
  EXPECT_EQ(ends(make().attach_storage(other)), "ppu");
  EXPECT_EQ(all(), before);
  EXPECT_TRUE(make().attach_storage(other).status.is_ok());
}

// SGLang with two data-parallel replicas of its own, of which one refuses.
TEST_F(ReplicaSwitchTest, AServerThatHasChangedInPartIsPutBack) {
  fakes_[1]->refuses_after = 1;
  EXPECT_EQ(ends(make().attach_storage(file_)), "ppu");
  EXPECT_EQ(fakes_[1]->has.backend, "");
  EXPECT_FALSE(fakes_[1]->is_partial);
}

// Two people attach at once: who comes second finds that out, and takes nothing away from the first.
TEST_F(ReplicaSwitchTest, AnothersAttachEndsWhileWeAskItStays) {
  const AttachedStorage theirs{"file", R"({"directory": "/theirs"})", "timeout", "write_back"};
  for (const int conflicts : {0, 1}) {
    SCOPED_TRACE(conflicts);
    fakes_[1]->has = {"", "", "timeout", "write_back"};
    fakes_[1]->of_others = theirs;
    fakes_[1]->conflicts_of_others = conflicts;
    fakes_[1]->changes = 0;
    const SwitchReport report = make().attach_storage(file_);
    EXPECT_EQ(ends(report), "plu");
    EXPECT_EQ(fakes_[0]->has.backend, "");
    EXPECT_EQ(fakes_[1]->has, theirs);
    EXPECT_EQ(fakes_[1]->changes, 1);
    EXPECT_TRUE(report.is_clean());
    EXPECT_TRUE(switch_text(report).ends_with("Each server that was changed has what it had.\n"));
  }
  EXPECT_EQ(waits_, 0);
  const std::span<const std::unique_ptr<StorageDoor>> one = std::span(doors_).subspan(1, 1);
  fakes_[1]->has = {};
  const SwitchReport report = ReplicaSwitch(one, [](std::size_t) { return false; }).attach_storage(file_);
  EXPECT_EQ(switch_text(report), "b: refused, and left as others have it: already enabled\nNothing was changed.\n");
}

// A clear, or another attach: there is no other way to have it as it was.
TEST_F(ReplicaSwitchTest, OnTheWayBackTheChangeOfOthersIsWaitedFor) {
  const std::vector<AttachedStorage> before = all();
  fakes_[0]->conflicts_after = 3;
  fakes_[1]->refuses = 1;
  EXPECT_EQ(ends(make().attach_storage(file_)), "ppu");
  EXPECT_EQ(waits_, 3);
  EXPECT_EQ(all(), before) << "policies, too";
  ASSERT_TRUE(make().attach_storage(file_).status.is_ok());
  fakes_[0]->conflicts_after = 2;
  fakes_[1]->refuses = 1;
  EXPECT_EQ(ends(make().detach_storage()), "ppu");
  EXPECT_TRUE(is_as_wanted(fakes_[0]->has, file_));
}

TEST_F(ReplicaSwitchTest, OnTheWayBackPatienceEndsAndWhatOthersBroughtStays) {
  fakes_[0]->conflicts_after = 100;
  fakes_[1]->refuses = 1;
  SwitchReport report = make().attach_storage(file_);
  EXPECT_EQ(ends(report), "?pu");
  EXPECT_NE(switch_text(report).find("a: NOT PUT BACK: it had no storage: another attach is in progress"),
            std::string::npos)
      << switch_text(report);
  fakes_[0]->conflicts_of_others = 0;
  ASSERT_TRUE(make().detach_storage().status.is_ok());
  fakes_[0]->conflicts_after = 1;
  fakes_[0]->others_after = {"file", R"({"directory": "/theirs"})", "timeout", "write_back"};
  fakes_[1]->refuses = 1;
  report = make().attach_storage(file_);
  EXPECT_EQ(ends(report), "lpu");
  EXPECT_EQ(fakes_[0]->has, fakes_[0]->others_after);
  EXPECT_TRUE(report.is_clean());
  EXPECT_EQ(switch_text(report),
            "a: left as others have it\nb: refused, and has what it had: no\nc: as it was\n"
            "Each server has what it had, or what others have given it since.\n");
}

TEST_F(ReplicaSwitchTest, ALostAnswerIsAskedFor) {
  fakes_[1]->loses_answer = 1;
  EXPECT_EQ(ends(make().attach_storage(file_)), "ccc");
}

TEST_F(ReplicaSwitchTest, ABusyServerIsWaitedFor) {
  fakes_[1]->busy = 3;
  EXPECT_EQ(ends(make().attach_storage(file_)), "ccc");
  EXPECT_EQ(waits_, 3);
  fakes_[2]->busy = 5;  // four times for the change; putting back has a patience of its own
  EXPECT_EQ(ends(make().detach_storage()), "ppp");
  EXPECT_TRUE(is_as_wanted(fakes_[0]->has, file_));
}

// It shows no storage while it still opens one. Only its word that it has detached counts.
TEST_F(ReplicaSwitchTest, AServerThatMayStillAttachIsNotTakenForPutBack) {
  const std::vector<AttachedStorage> before = all();
  fakes_[1]->times_out = 1;
  fakes_[1]->conflicts = 2;
  EXPECT_EQ(ends(make().attach_storage(file_)), "ppu") << "the attach ends while it is waited for";
  EXPECT_EQ(waits_, 2);
  EXPECT_EQ(all(), before) << "policies, too";
  fakes_[1]->times_out = 1;
  fakes_[1]->conflicts = 100;
  const SwitchReport report = make().attach_storage(file_);
  EXPECT_EQ(ends(report), "p?u");
  EXPECT_FALSE(report.is_clean());
  EXPECT_NE(switch_text(report).find("b: NOT PUT BACK: it had no storage: another attach is in progress"),
            std::string::npos)
      << switch_text(report);
  std::exchange(fakes_[1]->under_way, nullptr)();
  EXPECT_TRUE(is_as_wanted(fakes_[1]->has, file_)) << "as the report says, it is not as it was";
}

TEST_F(ReplicaSwitchTest, AServerThatMayStillDetachIsNotTakenForPutBack) {
  ASSERT_TRUE(make().attach_storage(file_).status.is_ok());
  const std::vector<AttachedStorage> before = all();
  fakes_[2]->times_out = 1;
  fakes_[2]->conflicts = 100;
  EXPECT_EQ(ends(make().detach_storage()), "pp?");
  fakes_[2]->conflicts = 0;
  std::exchange(fakes_[2]->under_way, nullptr)();
  ASSERT_TRUE(make().attach_storage(file_).status.is_ok());
  fakes_[2]->times_out = 1;
  fakes_[2]->conflicts = 3;
  EXPECT_EQ(ends(make().detach_storage()), "ppp");
  EXPECT_EQ(all(), before);
}

// What an answer says about whether the server does it, or does it yet.
TEST(HttpStorageDoor, AnswersThatAskForPatienceAreToldFromRefusals) {
  MetricsRegistry metrics;
  HttpResponse answer;
  ListenOptions options;
  options.port = 0;
  const auto listener = HttpListener::create(
      options, [&](const HttpRequest&, const std::shared_ptr<HttpExchange>& exchange) { exchange->respond(answer); },
      metrics);
  ASSERT_TRUE(listener.is_ok()) << listener.status().to_string();
  HttpUrl url;
  url.host = "127.0.0.1";
  url.port = (*listener)->port();
  const auto door = http_storage_door("door", url, std::chrono::seconds(60), "");
  const std::tuple<unsigned, const char*, StatusCode> cases[] = {
      {409, "another attach, detach or clear of the storage is in progress", StatusCode::kConflict},
      {400, "Reject detach: scheduler is not idle. #queue-req=1", StatusCode::kOverloaded},
      {409, "it has another storage", StatusCode::kConflict},
      {400, "HiCache storage backend is being detached. Try again later.", StatusCode::kConflict},
      {400, "the scheduler is busy; the request may still be carried out", StatusCode::kUnavailable},
      {400, "Failed to detach HiCache storage backend.", StatusCode::kInvalidArgument},
      {504, "Gateway Timeout", StatusCode::kUnavailable},
      {200, "HiCache storage backend detached.", StatusCode::kOk},
  };
  for (const auto& [status, body, code] : cases) {
    answer.status = status;
    answer.body = body;
    EXPECT_EQ(door->detach_storage().code(), code) << status << " " << body;
  }
}

TEST_F(ReplicaSwitchTest, WhatCannotBePutBackIsTold) {
  // While the third is waited for, the first goes away.
  fakes_[2]->busy = 1;
  fakes_[2]->refuses = 1;
  ReplicaSwitch all(doors_, [this](std::size_t) { return fakes_[0]->is_gone = true; });
  const SwitchReport report = all.attach_storage(file_);
  EXPECT_EQ(ends(report), "?pp");
  EXPECT_FALSE(report.is_clean());
  EXPECT_NE(switch_text(report).find("a: NOT PUT BACK: it had no storage: connection refused"), std::string::npos)
      << switch_text(report);
}

// Whatever fails: all have what is wanted, or all have what they had, or the report names who does not.
TEST_F(ReplicaSwitchTest, AllOrNoneUnderFaults) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    for (FakeDoor* fake : fakes_) {
      const bool is_attached = rng.chance(1, 3);
      fake->has = {is_attached ? file_.backend : "", is_attached ? file_.extra_config : "", "timeout", "write_back"};
      fake->busy = rng.chance(1, 4) ? static_cast<int>(rng.below(6)) : 0;
      fake->refuses = rng.chance(1, 4) ? static_cast<int>(rng.below(3)) : 0;
      // Where the way back is refused, too, nobody could tell that a part has changed.
      fake->refuses_after = fake->busy == 0 && fake->refuses == 0 && rng.chance(1, 6) ? 1 : 0;
      fake->loses_answer = rng.chance(1, 6) ? 1 : 0;
      fake->times_out = rng.chance(1, 6) ? 1 : 0;
      fake->conflicts = static_cast<int>(rng.below(6));
      fake->under_way = nullptr;
      fake->conflicts_after = rng.chance(1, 6) ? static_cast<int>(rng.below(6)) : 0;
      fake->conflicts_of_others = 0;
      fake->is_partial = false;
    }
    const std::vector<AttachedStorage> before = all();
    const bool attaches = rng.chance(1, 2);
    const SwitchReport report = attaches ? make().attach_storage(file_) : make().detach_storage();
    ASSERT_EQ(report.servers.size(), fakes_.size());
    for (FakeDoor* fake : fakes_) {  // what goes on ends some time
      if (fake->under_way) std::exchange(fake->under_way, nullptr)();
    }
    for (std::size_t i = 0; i < fakes_.size(); ++i) {
      const AttachedStorage wanted = attaches ? file_ : AttachedStorage{};
      const bool is_named = report.servers[i].end == End::kUnknown;
      if (report.status.is_ok()) {
        EXPECT_TRUE(is_as_wanted(fakes_[i]->has, wanted));
      } else if (!is_named) {
        EXPECT_EQ(fakes_[i]->has, before[i]);
        EXPECT_FALSE(fakes_[i]->is_partial);
      }
    }
  }
}

}  // namespace
}  // namespace larder
