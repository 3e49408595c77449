// SPDX-License-Identifier: Apache-2.0
// A short life of the backend, again and again: each time another call of the 3FS client library fails, until one life
// ends without a failure. Nothing hangs, no byte is wrong, nothing stays open, and once the library is well again, so
// is the backend.
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {
namespace {

Page state(std::uint64_t key) { return {PoolName::kMamba, key, 9000}; }

class NthCall : public Rig {
 protected:
  // With files and a service of its own.
  void begin(std::uint64_t nth, int error) {
    auto service = EmbeddedMetadata::create({}, clock_);
    ASSERT_TRUE(service.is_ok()) << service.status().to_string();
    service_ = std::move(service).value();
    extra_ = {{"file_path_prefix", mount_ + "/larder/" + std::to_string(nth) + "-" + std::to_string(error)},
              {"client_timeout", "10"}};
    failed_before_ = failed_calls();
    config(R"({"call_error": )" + std::to_string(error) + R"(, "fail_call": )" + std::to_string(nth) + "}");
  }

  // True: it met the failure. What it may answer is checked by the rig: right bytes, or none.
  bool live() {
    const Status opened = try_open(extra_);
    if (opened.is_ok()) {
      note(write({{kv(1)}, {kv(2), state(2)}}), {{kv(1)}, {kv(2), state(2)}});
      (void)read({kv(1), kv(2), state(2), kv(3)});
      (void)presence_status(PoolName::kKv, {1, 2, 3});
      note(write({{kv(3)}}), {{kv(3)}});
      const Status closed = backend_->close(std::chrono::seconds(10));
      EXPECT_TRUE(closed.is_ok()) << closed.to_string();
    } else {
      EXPECT_NE(opened.message(), "");
    }
    backend_.reset();
    config(R"({"fail_call": 0})");
    // A ring that does not say what has ended is left behind, with its memory: the daemon may still use them.
    const hf3fs::FakeStats now = fake_.read_stats();
    const bool is_mute = now.failed_call != nullptr && std::string_view(now.failed_call) == "hf3fs_wait_for_ios";
    if (is_mute && now.live_rings > left_behind_) ++left_behind_;
    return now.failed_calls > failed_before_;
  }

  // What was acknowledged is there, and there is room for more.
  void check_recovery() {
    clock_.advance(std::chrono::minutes(5));  // what may have landed late has
    open(extra_);
    ASSERT_NE(backend_, nullptr);
    for (const Page& page : acknowledged_) {
      const Status got = read_one(page);
      EXPECT_TRUE(got.is_ok()) << pool_name(page.pool) << page.key << ": " << got.to_string();
    }
    EXPECT_TRUE(write({{kv(10), state(10)}}).at(0).is_ok());
    EXPECT_TRUE(read_one(kv(10)).is_ok());
    EXPECT_EQ(totals().reserved, 0u);
    EXPECT_TRUE(backend_->close(std::chrono::seconds(10)).is_ok());
    backend_.reset();
    acknowledged_.clear();
    const Status sound = service_->check();
    EXPECT_TRUE(sound.is_ok()) << sound.to_string();
  }

  void check_nothing_open() {
    const hf3fs::FakeStats now = fake_.read_stats();
    EXPECT_EQ(now.live_iovs, left_behind_);
    EXPECT_EQ(now.live_rings, left_behind_);
    EXPECT_EQ(now.live_registered_fds, 0u);
    EXPECT_EQ(now.live_write_sessions, 0u);
    EXPECT_EQ(now.would_crash, 0u);
    EXPECT_EQ(now.stale_handles, 0u);
  }

 private:
  std::uint64_t failed_calls() { return fake_.read_stats().failed_calls; }

  void note(const std::vector<Status>& done, const std::vector<std::vector<Page>>& groups) {
    ASSERT_EQ(done.size(), groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (done[i].is_ok()) acknowledged_.insert(acknowledged_.end(), groups[i].begin(), groups[i].end());
    }
  }

  BackendOptions extra_;
  std::vector<Page> acknowledged_;
  std::uint64_t failed_before_ = 0, left_behind_ = 0;
};

TEST_F(NthCall, Fails) {
  for (const int error : {5, 28, 11, 107}) {  // EIO, ENOSPC, EAGAIN, ENOTCONN
    std::uint64_t nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth) + " fails with errno " + std::to_string(error));
      ASSERT_LT(nth, 500u) << "there is no end to it";
      begin(nth, error);
      if (!live()) break;
      SCOPED_TRACE(fake_.read_stats().failed_call);
      check_nothing_open();
      check_recovery();
      check_nothing_open();
      if (HasFailure()) return;
    }
    EXPECT_GT(nth, 30u) << "hardly a call was made";
    check_recovery();
  }
}

}  // namespace
}  // namespace larder::hf3fs_test
