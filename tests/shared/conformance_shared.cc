// SPDX-License-Identifier: Apache-2.0
// Shared stores under the conformance suite: what a client sees of a host in the same process, the host itself, and the
// order of clears in front of its backend.
#include "storage/clear_order.h"
#include "storage/shared/shared_backend.h"
#include "tests/conformance/storage_conformance.h"
#include "tests/support/passing_backend.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

// A client, and the host that goes after it.
class ClientAndHost final : public support::PassingBackend {
 public:
  ClientAndHost(std::unique_ptr<SharedBackend> host, std::unique_ptr<SharedBackend> client)
      : PassingBackend(*client), host_(std::move(host)), client_(std::move(client)) {}

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
    return inner_ == "file" ? flip_bits_of_segments(real_file_system(), store_directory(), rng, flips) : 0;
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
