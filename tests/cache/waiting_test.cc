// What a request waits for, and what it does not: copies of other requests that are under way.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cache/harness.h"

namespace larder::test {
namespace {

HarnessOptions without_storage(Shape shape) {
  HarnessOptions o = eager_options(shape);
  o.storage = false;
  o.host_slots = 400;
  return o;
}

// prompt_of(60) is on the host, and the device, which has 32 pages, has let go of most of it.
void push_to_host(Harness& h) {
  (void)h.run(prompt_of(60), 1);
  h.settle();
  (void)h.run(prompt_of(120, 9), 1);
  h.settle();
  ASSERT_LT(h.cache->tree().match(NamespaceId(0), prompt_of(60)).full_device_pages, 4u);
}

// ---- start

// A backup under way on the prompt's path lengthens no match, whatever others load meanwhile. It was waited for.
TEST(CacheWaiting, BackupsOnThePathHoldNobodyUp) {
  for (const Shape shape : {Shape::kFull, Shape::kAll}) {
    HarnessOptions o = without_storage(shape);
    o.device = {32, 32, 9};
    Harness h(o);
    push_to_host(h);
    (void)h.run(prompt_of(13, 30), 1);  // nothing runs the copies to the host
    const std::size_t backups = h.cache->operations_in_flight();
    ASSERT_GT(backups, 0u);
    Harness::Job stranger = h.begin(prompt_of(60), 1);
    ASSERT_TRUE(h.advance(stranger, 16)) << h.refusal;
    ASSERT_GT(h.cache->operations_in_flight(), backups) << "loads";
    Harness::Job follower = h.begin(prompt_of(17, 30), 1);
    EXPECT_TRUE(h.advance(follower, 16)) << shape_name(shape) << ": " << h.refusal;
    EXPECT_EQ(follower.cached.device, 12u);
    h.cache->abort(stranger.id);
    h.cache->abort(follower.id);
    h.settle();
    EXPECT_EQ(h.check_clean(), "");
  }
}

// What is being loaded for one request is waited for by the next, which would load it again.
TEST(CacheWaiting, LoadsOnThePathAreWaitedFor) {
  for (const Shape shape : {Shape::kFull, Shape::kFullSwa}) {
    HarnessOptions o = without_storage(shape);
    o.device = {32, 32, 0};
    Harness h(o);
    push_to_host(h);
    Harness::Job first = h.begin(prompt_of(60), 1), second = h.begin(prompt_of(60), 1);
    ASSERT_TRUE(h.advance(first, 16)) << h.refusal;
    EXPECT_FALSE(h.advance(second, 16));
    h.settle();
    EXPECT_TRUE(h.advance(second, 16)) << h.refusal;
    EXPECT_EQ(second.cached.device, 56u);
    h.cache->abort(first.id);
    h.cache->abort(second.id);
    h.settle();
    EXPECT_EQ(h.check_clean(), "");
  }
}

}  // namespace
}  // namespace larder::test
