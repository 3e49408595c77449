// SPDX-License-Identifier: Apache-2.0
#include "door/attached_store.h"

#include <larder/larder.h>

#include <gtest/gtest.h>

#include <memory>
#include <new>

namespace larder::c {
namespace {

class AttachedStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    larder_store_options options{};
    options.struct_size = sizeof options;
    options.backend = "memory";
    for (larder_store*& store : stores_) ASSERT_EQ(larder_store_open(&options, &store, nullptr), LARDER_OK);
  }
  void TearDown() override {
    attached_.reset();
    for (larder_store* const store : stores_) {
      if (store != nullptr) {
        EXPECT_EQ(larder_store_close(store, 0, nullptr), LARDER_OK);
      }
    }
  }
  [[nodiscard]] bool may_close(std::size_t i) {
    const bool is_closed = larder_store_close(stores_[i], 0, nullptr) == LARDER_OK;
    if (is_closed) stores_[i] = nullptr;
    return is_closed;
  }
  static Status ok() { return Status::ok(); }
  static Status refuse() { return unavailable("no"); }
  static Status run_out() { throw std::bad_alloc(); }

  larder_store* stores_[2] = {};
  std::unique_ptr<AttachedStore> attached_ = std::make_unique<AttachedStore>();
};

TEST_F(AttachedStoreTest, AStoreStaysOpenUntilItIsDetached) {
  EXPECT_TRUE(attached_->attach(*stores_[0], ok).is_ok());
  EXPECT_TRUE(attached_->is_attached());
  EXPECT_FALSE(may_close(0));
  attached_->detached();
  EXPECT_FALSE(attached_->is_attached());
  EXPECT_TRUE(may_close(0));
  EXPECT_TRUE(attached_->attach(*stores_[1], ok).is_ok());
  EXPECT_FALSE(may_close(1));
  attached_.reset();
  EXPECT_TRUE(may_close(1));
}

TEST_F(AttachedStoreTest, AClearIsToldOnceAndOnlyOfTheStoreThatIsAttached) {
  EXPECT_FALSE(attached_->was_cleared());
  ASSERT_EQ(larder_store_clear(stores_[0], 0, nullptr), LARDER_OK);
  EXPECT_TRUE(attached_->attach(*stores_[0], ok).is_ok());
  EXPECT_FALSE(attached_->was_cleared()) << "nothing was stored there before";
  ASSERT_EQ(larder_store_clear(stores_[1], 0, nullptr), LARDER_OK);
  EXPECT_FALSE(attached_->was_cleared());
  for (int i = 0; i < 2; ++i) ASSERT_EQ(larder_store_clear(stores_[0], 0, nullptr), LARDER_OK);
  EXPECT_TRUE(attached_->was_cleared());
  EXPECT_FALSE(attached_->was_cleared());
}

TEST_F(AttachedStoreTest, WhatIsRefusedCountsForNothing) {
  EXPECT_FALSE(attached_->attach(*stores_[0], refuse).is_ok());
  EXPECT_FALSE(attached_->is_attached());
  EXPECT_TRUE(may_close(0));
}

TEST_F(AttachedStoreTest, ASecondIsRefusedAndTheFirstStays) {
  EXPECT_TRUE(attached_->attach(*stores_[0], ok).is_ok());
  EXPECT_EQ(attached_->attach(*stores_[1], ok).code(), StatusCode::kConflict);
  EXPECT_EQ(attached_->attach(*stores_[0], run_out).code(), StatusCode::kConflict) << "it was not asked";
  EXPECT_TRUE(attached_->is_attached());
  EXPECT_FALSE(may_close(0));
  EXPECT_TRUE(may_close(1));
}

// The engine may have the store, wherever it ran out of memory.
TEST_F(AttachedStoreTest, AnAttachThatThrowsCountsAsOne) {
  EXPECT_THROW((void)attached_->attach(*stores_[0], run_out), std::bad_alloc);
  EXPECT_TRUE(attached_->is_attached());
  EXPECT_FALSE(may_close(0));
  attached_->detached();
  EXPECT_TRUE(may_close(0));
}

}  // namespace
}  // namespace larder::c
