// SPDX-License-Identifier: Apache-2.0
// Shared stores under the conformance suite: what a client sees of a host in the same process, the host itself, and the
// order of clears in front of its backend.
#include <filesystem>

#include "storage/clear_order.h"
#include "storage/file/segment_format.h"
#include "storage/shared/shared_backend.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

// A client, and the host that goes after it.
class ClientAndHost final : public StorageBackend {
 public:
  ClientAndHost(std::unique_ptr<SharedBackend> host, std::unique_ptr<SharedBackend> client)
      : host_(std::move(host)), client_(std::move(client)) {}
  [[nodiscard]] const BackendInfo& info() const override { return client_->info(); }
  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    return client_->submit_exists(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    return client_->submit_read(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    return client_->submit_write(std::move(request), std::move(done));
  }
  [[nodiscard]] Status submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) override {
    return client_->submit_clear(std::move(scope), std::move(done));
  }
  [[nodiscard]] BackendStats stats() const override { return client_->stats(); }
  [[nodiscard]] Status close(std::chrono::nanoseconds limit) override { return client_->close(limit); }

 private:
  const std::unique_ptr<SharedBackend> host_, client_;
};

class SharedHarness final : public HarnessBase {
 public:
  SharedHarness(std::uint64_t seed, std::string inner, bool is_client)
      : HarnessBase(3, seed), inner_(std::move(inner)), is_client_(is_client) {}

  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    BackendOptions options = {{"max_size", "64Mi"}};
    if (inner_ == "file") {
      options = {{"max_size", "64Mi"}, {"segment_size", "64Ki"}, {"open_files", "3"}, {"directory", store_directory()}};
    }
    const auto open_inner = [this, options, extra] { return create(inner_, options, extra, &real_file_system()); };
    SharedStoreOptions share;
    share.directory = directory_.path() + "/share";
    share.arena_bytes = std::size_t{1} << 20;
    auto host = open_shared_store(share, open_inner, *pool_, clock_);
    if (!host.is_ok()) return host.status();
    EXPECT_EQ((*host)->role(), SharedRole::kHost);
    if (!is_client_) return std::unique_ptr<StorageBackend>(std::move(*host));
    const auto open_none = [] {
      return Result<std::unique_ptr<StorageBackend>>(internal_error("a client opens none"));
    };
    auto client = open_shared_store(share, open_none, *pool_, clock_);
    if (!client.is_ok()) return client.status();
    EXPECT_EQ((*client)->role(), SharedRole::kClient);
    return std::unique_ptr<StorageBackend>(std::make_unique<ClientAndHost>(std::move(*host), std::move(*client)));
  }

  std::size_t flip_stored_bits(Rng& rng, std::size_t flips) override {
    if (inner_ != "file") return 0;
    std::vector<std::string> segments;
    const std::vector<std::string> names = real_file_system().list(store_directory()).value();
    for (const std::string& name : names) {
      if (file_store::parse_segment_name(name)) segments.push_back(store_directory() + "/" + name);
    }
    OpenOptions options;
    options.write = true;
    for (std::size_t i = 0; i < flips; ++i) {
      const std::unique_ptr<File> file = real_file_system().open(segments[rng.below(segments.size())], options).value();
      const std::uint64_t at = rng.below(file->size_bytes().value());
      std::byte byte{};
      EXPECT_TRUE(read_exactly(*file, {&byte, 1}, at).is_ok());
      byte ^= static_cast<std::byte>(1u << rng.below(8));
      EXPECT_TRUE(write_fully(*file, {&byte, 1}, at).is_ok());
    }
    return flips;
  }

 private:
  [[nodiscard]] std::string store_directory() const { return directory_.path() + "/store"; }

  support::TemporaryDirectory directory_;
  const std::string inner_;
  const bool is_client_;
};

class NoKeeper final : public ClearKeeper {
 public:
  [[nodiscard]] Status save(const ClearHistory&) override { return Status::ok(); }
};

// The order of clears by itself, with tasks in any order or on threads, and with marks that are kept first or not.
class OrderedHarness final : public HarnessBase {
 public:
  OrderedHarness(std::size_t threads, std::uint64_t seed, bool is_kept)
      : HarnessBase(threads, seed), seed_(seed), is_kept_(is_kept) {}

  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open(const BackendOptions& extra) override {
    Result<std::unique_ptr<StorageBackend>> inner = create("memory", {{"max_size", "64Mi"}}, extra, nullptr);
    if (!inner.is_ok()) return inner;
    Executor& executor = manual_ ? static_cast<Executor&>(*manual_) : *pool_;
    return std::unique_ptr<StorageBackend>(
        std::make_unique<ClearOrder>(std::move(inner).value(), ClearHistory::anew(clock_, seed_),
                                     is_kept_ ? std::make_unique<NoKeeper>() : nullptr, &executor));
  }

 private:
  const std::uint64_t seed_;
  const bool is_kept_;
};

BackendUnderTest ordered(std::string name, std::size_t threads, bool is_kept) {
  return {std::move(name),
          [=](std::uint64_t seed) { return std::make_unique<OrderedHarness>(threads, seed, is_kept); }};
}

BackendUnderTest variant(std::string name, const std::string& inner, bool is_client) {
  return {std::move(name), [=](std::uint64_t seed) { return std::make_unique<SharedHarness>(seed, inner, is_client); }};
}

INSTANTIATE_TEST_SUITE_P(Ordered, StorageConformance,
                         each_check({ordered("Manual", 0, false), ordered("ManualKept", 0, true),
                                     ordered("Threads", 3, false), ordered("ThreadsKept", 3, true)}),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Shared, StorageConformance,
                         each_check({variant("MemoryClient", "memory", true), variant("FileClient", "file", true),
                                     variant("MemoryHost", "memory", false), variant("FileHost", "file", false)}),
                         test_name);

}  // namespace
}  // namespace larder::conformance
