// SPDX-License-Identifier: Apache-2.0
#include "sim/world/sim_page_store.h"

#include <vector>

#include "storage/hf3fs/slot_bytes.h"

namespace larder::sim {
namespace {

using hf3fs::PageTransfer;
using hf3fs::TransferEnd;

constexpr std::uint64_t kLatePermille = 15;
constexpr std::uint64_t kLatestMs = 20'000;  // less than the service lets a page rest

struct SimPageFiles final : hf3fs::PageFiles {
  std::vector<std::shared_ptr<File>> files;
};

}  // namespace

Result<std::unique_ptr<SimPageStore>> SimPageStore::create(FileSystem& files, const std::string& directory,
                                                           Executor& executor, SimClock& clock, std::uint64_t seed) {
  LARDER_RETURN_IF_ERROR(files.make_dirs(directory));
  return std::unique_ptr<SimPageStore>(new SimPageStore(files, executor, clock, seed));
}

Result<std::shared_ptr<hf3fs::PageFiles>> SimPageStore::open_files(const std::string& base, std::uint32_t count,
                                                                   PageTransfer::Kind purpose) {
  const auto known = open_.find({base, purpose});
  if (known != open_.end()) return known->second;
  auto out = std::make_shared<SimPageFiles>();
  for (std::uint32_t i = 0; i < count; ++i) {
    OpenOptions options;
    options.write = purpose == PageTransfer::Kind::kWrite;
    options.create = options.write;
    Result<std::unique_ptr<File>> file = files_.open(base + '.' + std::to_string(i) + ".bin", options);
    if (!file.is_ok()) return file.status();
    out->files.push_back(std::move(file).value());
  }
  open_.emplace(std::pair(base, purpose), out);
  return std::shared_ptr<hf3fs::PageFiles>(std::move(out));
}

Status SimPageStore::submit(PageTransfer transfer) {
  if (is_closed_) return unavailable("simulated page store: closed");
  ++stats_.in_flight;
  auto shared = std::make_shared<PageTransfer>(std::move(transfer));
  const Status posted = executor_.post([this, shared] { run(*shared); });
  if (!posted.is_ok()) --stats_.in_flight;
  return posted;
}

void SimPageStore::run(PageTransfer& transfer) {
  const auto& open = static_cast<const SimPageFiles&>(*transfer.files);
  const std::shared_ptr<File> file = open.files.at(transfer.address.file);
  const bool is_late = rng_.below(1000) < kLatePermille;
  const bool is_write = transfer.kind == PageTransfer::Kind::kWrite;
  TransferEnd end;
  if (is_write) {
    const std::uint64_t bytes = hf3fs::transfer_bytes(transfer.envelope.payload_bytes);
    auto slot = std::make_shared<std::vector<std::byte>>(bytes);
    hf3fs::fill_slot(transfer, slot->data(), bytes);
    const auto land = [file, slot, at = transfer.address.offset] { return write_fully(*file, *slot, at); };
    if (is_late) {
      clock_.after(std::chrono::milliseconds(rng_.below(kLatestMs)), [land] { (void)land(); });
    } else {
      end.status = land();
    }
  } else if (!is_late) {
    end.status = read(transfer, *file);
  }
  if (is_late) end = {deadline_exceeded("simulated page store: no completion in time"), is_write};
  --stats_.in_flight;
  const std::function<void(TransferEnd)> done = std::move(transfer.done);
  transfer.done = nullptr;
  done(std::move(end));  // may end this store
}

Status SimPageStore::read(const PageTransfer& transfer, File& file) {
  std::vector<std::byte> slot(hf3fs::transfer_bytes(transfer.envelope.payload_bytes));
  const Result<std::uint64_t> size = file.size_bytes();
  if (!size.is_ok()) return size.status();
  if (*size < transfer.address.offset + slot.size()) return not_found("simulated page store: the file ends there");
  LARDER_RETURN_IF_ERROR(read_exactly(file, slot, transfer.address.offset));
  return hf3fs::take_out(transfer, slot.data());
}

Status SimPageStore::close(std::chrono::nanoseconds) {
  is_closed_ = true;
  return stats_.in_flight == 0 ? Status::ok() : deadline_exceeded("simulated page store: pages are in flight");
}

}  // namespace larder::sim
