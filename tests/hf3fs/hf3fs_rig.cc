// SPDX-License-Identifier: Apache-2.0
#include "tests/hf3fs/hf3fs_rig.h"

#include <cstring>
#include <future>

#include "base/rng.h"
#include "storage/hf3fs/hf3fs_factory.h"

namespace larder::hf3fs_test {
namespace {

constexpr std::byte kUntouched{0xA5};

PageKey key_of(std::uint64_t number) {
  Rng rng(number + 7);
  PageKey key;
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(rng.below(256));
  return key;
}

}  // namespace

std::shared_ptr<const StoreScope> Rig::scope_of(std::uint64_t number) const {
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = key_of(1'000'000 + number);
  for (const PoolName pool : {PoolName::kKv, PoolName::kSwa, PoolName::kMamba, PoolName::kIndexer, kOpenPool}) {
    const std::uint64_t own = ranks_ > 1 && pool != PoolName::kKv ? 100 * (rank_ + 1) : 0;
    scope->set_pool(pool, key_of(2'000'000 + static_cast<std::uint64_t>(pool) + own),
                    pool == PoolName::kKv && ranks_ > 1);
  }
  scope->rank = rank_;
  scope->ranks = ranks_;
  return scope;
}

namespace {

std::vector<std::byte> content_of(const Page& page, std::uint64_t scope) {
  Rng rng(page.key * 131 + static_cast<std::uint64_t>(page.pool) * 7 + scope * 1'000'003);
  std::vector<std::byte> out(page.bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(256));
  return out;
}

template <class Outcome, class Submit>
Outcome run(const Submit& submit) {
  auto promise = std::make_shared<std::promise<Outcome>>();
  std::future<Outcome> outcome = promise->get_future();
  const Status submitted = submit([promise](Outcome result) { promise->set_value(std::move(result)); });
  EXPECT_TRUE(submitted.is_ok()) << submitted.to_string();
  if (!submitted.is_ok()) return {};
  const bool ended = outcome.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_TRUE(ended) << "an operation does not end";
  return ended ? outcome.get() : Outcome{};
}

}  // namespace

void Rig::SetUp() {
  std::filesystem::create_directories(mount_ + "/3fs-virt/iovs");
  std::filesystem::create_directories(mount_ + "/larder");
  auto loaded = hf3fs::UsrbioLibrary::load({LARDER_FAKE_HF3FS, {}});
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().to_string();
  library_ = std::move(loaded).value();
  fake_ = hf3fs::FakeControl::find([this](const char* name) { return library_->symbol(name); });
  ASSERT_TRUE(fake_.is_fake());
  fake_.reset();
  config(R"({"poison": "prep", "check_ownership": true})");
  auto service = EmbeddedMetadata::create({}, clock_);
  ASSERT_TRUE(service.is_ok()) << service.status().to_string();
  service_ = std::move(service).value();
  threads_ = std::make_unique<ThreadPoolExecutor>("storage", 4, 10'000);
  ASSERT_TRUE(register_hf3fs_backend(factory_).is_ok());
}

void Rig::TearDown() {
  backend_.reset();
  if (fake_.is_fake()) {
    (void)fake_.release();
    fake_.idle();
    EXPECT_EQ(fake_.read_stats().touched_buffers, 0u) << "memory that belonged to the file system was touched";
    EXPECT_EQ(fake_.read_stats().role_overlaps, 0u);
    fake_.reset();
  }
  if (service_) {
    const Status sound = service_->check();
    EXPECT_TRUE(sound.is_ok()) << sound.to_string();
  }
}

Status Rig::try_open(const BackendOptions& extra) {
  BackendOptions options = {{"file_path_prefix", mount_ + "/larder/pages"},
                            {"library", LARDER_FAKE_HF3FS},
                            {"file_size", "4Mi"},
                            {"files", "2"},
                            {"numjobs", "1"},
                            {"staging_size", "1Mi"},
                            {"client_timeout", "1"}};
  for (const auto& [key, value] : extra) options[key] = value;
  BackendEnvironment environment{&real_file_system(), &real_clock(), executor_ != nullptr ? executor_ : threads_.get()};
  environment.open_metadata = [this](const MetadataOptions&) {
    return Result<std::shared_ptr<MetadataService>>(reached_through_ ? reached_through_ : service_);
  };
  backend_.reset();
  Result<std::unique_ptr<StorageBackend>> made = factory_.create("hf3fs", options, environment);
  if (made.is_ok()) backend_ = std::move(made).value();
  return made.status();
}

void Rig::open(const BackendOptions& extra) {
  const Status opened = try_open(extra);
  ASSERT_TRUE(opened.is_ok()) << opened.to_string();
}

std::vector<Status> Rig::write(const std::vector<std::vector<Page>>& groups, std::uint64_t scope, bool durable) {
  std::vector<std::vector<std::byte>> contents;
  WriteRequest request{scope_of(scope), {}, durable};
  for (const std::vector<Page>& group : groups) {
    PageGroup& made = request.groups.emplace_back();
    for (const Page& page : group) {
      contents.push_back(content_of(page, scope));
      made.items.push_back(
          {page.pool, key_of(page.key), {{contents.back().data(), contents.back().size()}}, PageKey{}});
    }
  }
  auto result = run<WriteResult>(
      [&](StorageBackend::WriteDone done) { return backend_->submit_write(std::move(request), std::move(done)); });
  // The caller's memory is the caller's again.
  for (std::vector<std::byte>& content : contents) std::memset(content.data(), 0xEE, content.size());
  return result.groups;
}

std::vector<Status> Rig::read(const std::vector<Page>& pages, std::uint64_t scope) {
  std::vector<std::vector<std::byte>> contents;
  ReadRequest request{scope_of(scope), {}};
  for (const Page& page : pages) {
    contents.emplace_back(page.bytes, kUntouched);
    request.items.push_back({page.pool, key_of(page.key), {{contents.back().data(), contents.back().size()}}});
  }
  const auto result = run<ReadResult>(
      [&](StorageBackend::ReadDone done) { return backend_->submit_read(std::move(request), std::move(done)); });
  EXPECT_EQ(result.items.size(), pages.size());
  for (std::size_t i = 0; i < result.items.size(); ++i) {
    if (result.items[i].is_ok()) {
      EXPECT_TRUE(contents[i] == content_of(pages[i], scope)) << "wrong bytes for key " << pages[i].key;
    } else {
      EXPECT_TRUE(contents[i] == std::vector<std::byte>(pages[i].bytes, kUntouched)) << "a failed read left bytes";
    }
  }
  return result.items;
}

Status Rig::presence_status(PoolName pool, const std::vector<std::uint64_t>& keys) {
  return exists(pool, keys, 1).status;
}

ExistsResult Rig::exists(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope) {
  ExistsRequest request{scope_of(scope), {}, {pool}};
  for (const std::uint64_t key : keys) request.keys.push_back(key_of(key));
  return run<ExistsResult>(
      [&](StorageBackend::ExistsDone done) { return backend_->submit_exists(std::move(request), std::move(done)); });
}

std::string Rig::presence(PoolName pool, const std::vector<std::uint64_t>& keys, std::uint64_t scope) {
  const ExistsResult result = exists(pool, keys, scope);
  EXPECT_TRUE(result.status.is_ok()) << result.status.to_string();
  std::string out;
  for (std::size_t i = 0; i < keys.size() && result.status.is_ok(); ++i) {
    out += result.presence.at(0).present.at(i) ? '1' : '0';
  }
  return out;
}

Status Rig::clear(std::optional<std::uint64_t> scope) {
  const std::shared_ptr<const StoreScope> which = scope ? scope_of(*scope) : nullptr;
  return run<Status>([&](StorageBackend::ClearDone done) { return backend_->submit_clear(which, std::move(done)); });
}

NamespaceStats Rig::totals() {
  NamespaceStats sum;
  const auto all = service_->stats();
  EXPECT_TRUE(all.is_ok()) << all.status().to_string();
  for (const auto& [name, numbers] : all.value()) {
    sum.pages += numbers.pages;
    sum.free += numbers.free;
    sum.reserved += numbers.reserved;
    sum.stored += numbers.stored;
    sum.quarantined += numbers.quarantined;
    sum.refused += numbers.refused;
  }
  return sum;
}

void Rig::fault(const std::string& json) { ASSERT_EQ(fake_.fault(json.c_str()), 0) << fake_.error(); }
void Rig::config(const std::string& json) { ASSERT_EQ(fake_.config(json.c_str()), 0) << fake_.error(); }

}  // namespace larder::hf3fs_test
