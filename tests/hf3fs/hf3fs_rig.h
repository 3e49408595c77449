// SPDX-License-Identifier: Apache-2.0
// The backend `hf3fs` on the fake 3FS library, with its faults at hand, and a service that the test keeps.
//
// The backend's own operations run on threads; calls here wait for their end. Every page's bytes follow from its key,
// so that a mix-up shows. Threads: the test's.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "fakes/hf3fs/fake_control.h"
#include "metadata/embedded_metadata.h"
#include "storage/backend.h"
#include "storage/factory.h"
#include "storage/hf3fs/usrbio_library.h"
#include "tests/support/temporary_directory.h"

namespace larder::hf3fs_test {

struct Page {
  PoolName pool = PoolName::kKv;
  std::uint64_t key = 0;
  std::size_t bytes = 5000;
};
inline constexpr auto kOpenPool = static_cast<PoolName>(35);  // one of an engine's own names
inline Page kv(std::uint64_t key) { return {PoolName::kKv, key}; }

class Rig : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Opens a backend on the mount; `extra` overrides the rig's options. The service outlives it.
  void open(const BackendOptions& extra = {});
  [[nodiscard]] Status try_open(const BackendOptions& extra);
  // One status per group.
  std::vector<Status> write(const std::vector<std::vector<Page>>& groups, std::uint64_t scope = 1,
                            bool durable = false);
  // One per page. The content of those that came is compared; those that did not come have their buffers untouched.
  std::vector<Status> read(const std::vector<Page>& pages, std::uint64_t scope = 1);
  Status read_one(const Page& page, std::uint64_t scope = 1) { return read({page}, scope).at(0); }
  // "101" for keys of a pool.
  std::string presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope = 1);
  Status presence_status(PoolName pool, const std::vector<std::uint64_t>& keys);
  // Of one scope; without one: of the whole store.
  [[nodiscard]] Status clear(std::optional<std::uint64_t> scope = std::nullopt);
  [[nodiscard]] NamespaceStats totals();
  ExistsResult exists(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope);
  [[nodiscard]] std::shared_ptr<const StoreScope> scope_of(std::uint64_t number) const;
  void fault(const std::string& json);
  void config(const std::string& json);

  const support::TemporaryDirectory temporary_;
  const std::string mount_ = temporary_.path();
  std::shared_ptr<hf3fs::UsrbioLibrary> library_;
  hf3fs::FakeControl fake_;
  ManualClock clock_{std::chrono::seconds(1000)};  // the service's
  std::shared_ptr<EmbeddedMetadata> service_;
  std::shared_ptr<MetadataService> reached_through_;  // what the backend gets instead of service_
  std::unique_ptr<ThreadPoolExecutor> threads_;
  Executor* executor_ = nullptr;  // instead of threads_
  // Of the scopes: the next calls are those of this rank. More than one: the KV pool is the same on all ranks.
  std::uint32_t rank_ = 0, ranks_ = 1;
  BackendFactory factory_;
  std::unique_ptr<StorageBackend> backend_;
};

}  // namespace larder::hf3fs_test
