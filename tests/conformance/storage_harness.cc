// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/storage_harness.h"

#include <cstdlib>

#include "metadata/open_metadata.h"
#include "storage/file/file_backend.h"
#include "storage/file/segment_format.h"
#include "storage/hf3fs/hf3fs_factory.h"
#include "storage/memory/memory_backend.h"
#include "storage/mooncake/mooncake_factory.h"
#include "storage/plugin/plugin_backend.h"

namespace larder::conformance {
namespace {

template <class Result, class Submit>
Result run(StorageHarness& harness, const Submit& submit) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  const Status submitted = submit([promise](Result result) { promise->set_value(std::move(result)); });
  EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  if (!submitted.is_ok()) return {};
  promise.reset();
  harness.drain();
  return future.get();  // throws, and so fails the test, if the callback was dropped unrun
}

}  // namespace

HarnessBase::HarnessBase(std::size_t threads, std::uint64_t seed) : clock_(Nanos(1'000'000'000)) {
  if (threads == 0) {
    manual_ = std::make_unique<ManualExecutor>(100'000, seed);
  } else {
    pool_ = std::make_unique<ThreadPoolExecutor>("storage", threads, 100'000);
  }
  EXPECT_TRUE(register_memory_backend(factory_).is_ok());
  EXPECT_TRUE(register_file_backend(factory_).is_ok());
  EXPECT_TRUE(register_hf3fs_backend(factory_).is_ok());
  EXPECT_TRUE(register_mooncake_backend(factory_).is_ok());
  EXPECT_TRUE(register_plugin_backend(factory_).is_ok());
}

void HarnessBase::drain() {
  if (manual_) manual_->run_all();
}

Result<std::unique_ptr<StorageBackend>> HarnessBase::create(std::string_view name, BackendOptions options,
                                                            const BackendOptions& extra, FileSystem* files) {
  for (const auto& [key, value] : extra) options[key] = value;
  Executor* executor = manual_ ? static_cast<Executor*>(manual_.get()) : pool_.get();
  BackendEnvironment environment{files, &clock_, executor};
  environment.open_metadata = [this](const MetadataOptions& wanted) { return open_service(wanted); };
  return factory_.create(name, options, environment);
}

Result<std::shared_ptr<MetadataService>> HarnessBase::open_service(const MetadataOptions& options) {
  return open_metadata(options, clock_);
}

ExistsResult exists(StorageHarness& harness, StorageBackend& backend, ExistsRequest request) {
  return run<ExistsResult>(harness, [&](StorageBackend::ExistsDone done) {
    return backend.submit_exists(std::move(request), std::move(done));
  });
}
ReadResult read(StorageHarness& harness, StorageBackend& backend, ReadRequest request) {
  return run<ReadResult>(
      harness, [&](StorageBackend::ReadDone done) { return backend.submit_read(std::move(request), std::move(done)); });
}
WriteResult write(StorageHarness& harness, StorageBackend& backend, WriteRequest request) {
  return run<WriteResult>(harness, [&](StorageBackend::WriteDone done) {
    return backend.submit_write(std::move(request), std::move(done));
  });
}
Status clear(StorageHarness& harness, StorageBackend& backend, std::shared_ptr<const StoreScope> scope) {
  return run<Status>(
      harness, [&](StorageBackend::ClearDone done) { return backend.submit_clear(std::move(scope), std::move(done)); });
}

std::size_t flip_bits(FileSystem& files, const std::vector<std::string>& paths, Rng& rng, std::size_t flips) {
  if (paths.empty()) return 0;
  for (std::size_t done = 0; done < flips;) {
    const std::unique_ptr<File> file = files.open(paths[rng.below(paths.size())], {.write = true}).value();
    const std::uint64_t size = file->size_bytes().value();
    if (size == 0) continue;
    const std::uint64_t at = rng.below(size);
    std::byte byte{};
    EXPECT_TRUE(read_exactly(*file, {&byte, 1}, at).is_ok());
    byte ^= static_cast<std::byte>(1u << rng.below(8));
    EXPECT_TRUE(write_fully(*file, {&byte, 1}, at).is_ok());
    ++done;
  }
  return flips;
}

std::size_t flip_bits_of_segments(FileSystem& files, const std::string& directory, Rng& rng, std::size_t flips) {
  const std::vector<std::string> names = files.list(directory).value();
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (file_store::parse_segment_name(name)) paths.push_back(directory + "/" + name);
  }
  EXPECT_FALSE(paths.empty()) << directory << " holds no segment";
  return flip_bits(files, paths, rng, flips);
}

std::uint64_t test_seed() {
  const char* const text = std::getenv("LARDER_TEST_SEED");
  return text == nullptr ? 20240607 : std::strtoull(text, nullptr, 10);
}

}  // namespace larder::conformance
