// SPDX-License-Identifier: Apache-2.0
// The page store on the fake library, below the backend: one page at a time, by hand.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/hf3fs/usrbio_page_store.h"
#include "tests/hf3fs/hf3fs_rig.h"

namespace larder::hf3fs_test {

class StoreRig : public Rig {
 protected:
  static constexpr std::uint64_t kPayload = 5000;

  // One page in the making: its bytes live until it has ended.
  struct Moving {
    std::vector<std::byte> bytes = std::vector<std::byte>(kPayload, std::byte{7});
    Segment piece;
    std::promise<hf3fs::TransferEnd> promise;
    std::future<hf3fs::TransferEnd> ended = promise.get_future();
    std::shared_future<void> wait_at_end;  // `done` waits for it: a callback that breaks its contract
    Status submitted;
  };

  void TearDown() override {
    store_.reset();
    Rig::TearDown();
  }
  [[nodiscard]] hf3fs::UsrbioStoreOptions store_options() const {
    hf3fs::UsrbioStoreOptions options;
    options.library.path = LARDER_FAKE_HF3FS;
    options.directory = mount_ + "/larder";
    options.rings = 1;
    options.ring.staging_bytes = 1u << 20;
    options.retry_after = std::chrono::milliseconds(1);
    return options;
  }
  void make_store(const hf3fs::UsrbioStoreOptions& options) {
    auto made = hf3fs::UsrbioPageStore::create(options, real_clock());
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    store_ = std::move(made).value();
  }
  [[nodiscard]] Result<std::shared_ptr<hf3fs::PageFiles>> open_files(
      hf3fs::PageTransfer::Kind kind = hf3fs::PageTransfer::Kind::kWrite) {
    return store_->open_files(mount_ + "/larder/pages", 1, kind);
  }
  // Of a write, as its file is there then.
  [[nodiscard]] std::unique_ptr<Moving> start(std::shared_ptr<hf3fs::PageFiles> files, std::uint64_t page,
                                              std::shared_future<void> wait_at_end = {}) {
    auto moving = std::make_unique<Moving>();
    moving->piece = {moving->bytes.data(), kPayload};
    moving->wait_at_end = std::move(wait_at_end);
    hf3fs::PageTransfer transfer;
    transfer.kind = hf3fs::PageTransfer::Kind::kWrite;
    transfer.files = std::move(files);
    transfer.address = {0, page * hf3fs::transfer_bytes(kPayload)};
    transfer.envelope.generation = page + 1;
    transfer.envelope.payload_bytes = kPayload;
    transfer.payload = {&moving->piece, 1};
    transfer.done = [&to = *moving](hf3fs::TransferEnd end) {
      if (to.wait_at_end.valid()) to.wait_at_end.wait();
      to.promise.set_value(std::move(end));
    };
    moving->submitted = store_->submit(std::move(transfer));
    if (!moving->submitted.is_ok()) moving->promise.set_value({moving->submitted, false});
    return moving;
  }
  static void pass(std::chrono::milliseconds time) { (void)std::promise<void>().get_future().wait_for(time); }

  std::unique_ptr<hf3fs::UsrbioPageStore> store_;
};

}  // namespace larder::hf3fs_test
