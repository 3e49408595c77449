// SPDX-License-Identifier: Apache-2.0
// How long a large store takes to open. Its files are written here, by the format's own encoders, and their payloads
// are holes: what opening reads is all there, and 100 GiB fit on any disk.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/inbox.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "bench/bench_storage.h"
#include "door/register_backends.h"
#include "server/text_table.h"
#include "storage/file/segment_format.h"
#include "storage/option_text.h"

namespace larder {
namespace {

constexpr std::size_t kThreads = 4, kQueue = 16'384;
constexpr std::uint64_t kChain = 128;  // pages of a conversation: each names the one before as its parent
constexpr std::size_t kAskedAtOnce = 128;
constexpr std::uint64_t kSampledPages = 1 << 16, kSampledReads = 256;
constexpr std::uint64_t kDefaultSegmentBytes = std::uint64_t{512} << 20;  // the backend's, without a budget
constexpr auto kLook = std::chrono::seconds(1);

double seconds_since(TimePoint begin) { return std::chrono::duration<double>(real_clock().now() - begin).count(); }

PageKey key_of(std::uint64_t seed, std::uint64_t page) {
  Rng rng(seed * 0x9e3779b97f4a7c15ull + page);
  PageKey key;
  for (std::size_t i = 0; i < key.bytes.size(); i += 8) store_le<std::uint64_t>(key.bytes.data() + i, rng.next_u64());
  return key;
}

// Waits for the answer of one operation.
template <class Answer>
class Waiter {
 public:
  [[nodiscard]] std::function<void(Answer)> callback() const {
    return [ticket = ticket_](Answer answer) { Inbox<Answer>::push(std::move(*ticket), std::move(answer)); };
  }
  [[nodiscard]] Answer wait() {
    std::vector<Answer> answers;
    while (inbox_.drain(answers) == 0) (void)inbox_.wait_for(kLook);
    return std::move(answers.front());
  }

 private:
  Inbox<Answer> inbox_{1};
  std::shared_ptr<typename Inbox<Answer>::Ticket> ticket_ =
      std::make_shared<typename Inbox<Answer>::Ticket>(std::move(inbox_.reserve()).value());
};

class RestartBench {
 public:
  RestartBench(const StorageBenchOptions& options, std::string directory)
      : options_(options), directory_(std::move(directory)), threads_("bench", kThreads, kQueue) {}

  [[nodiscard]] Result<RestartFigures> run() {
    LARDER_RETURN_IF_ERROR(read_options());
    LARDER_RETURN_IF_ERROR(make_store());
    for (std::uint32_t i = 1; i <= options_.repeat; ++i) LARDER_RETURN_IF_ERROR(open_once(i == options_.repeat));
    return out_;
  }

 private:
  [[nodiscard]] Status read_options() {
    if (options_.backend != "file") return invalid_argument("--restart: only for the backend 'file'");
    LARDER_RETURN_IF_ERROR(register_backends(factory_));
    backend_options_["directory"] = directory_;
    LARDER_RETURN_IF_ERROR(add_options("--extra", options_.extra, backend_options_));
    const Result<std::uint64_t> segment = size_option(backend_options_, "segment_size", kDefaultSegmentBytes);
    if (!segment.is_ok()) return segment.status();
    const std::uint64_t room = *segment - std::min(*segment, 3 * file_store::kBlockBytes);
    pages_per_segment_ = room / (options_.restart_page_bytes + file_store::kPageBytes);
    if (pages_per_segment_ == 0) return invalid_argument("--restart: a segment holds no page of this size");
    out_.pages = options_.restart_pages;
    out_.page_bytes = options_.restart_page_bytes;
    scope_ = std::make_shared<StoreScope>();
    scope_->namespace_digest = key_of(~options_.seed, 1);
    scope_->set_pool(PoolName::kKv, key_of(~options_.seed, 2));
    return Status::ok();
  }

  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> open() {
    BackendEnvironment environment;
    environment.files = &real_file_system();
    environment.clock = &real_clock();
    environment.executor = &threads_;
    return factory_.create(options_.backend, backend_options_, environment);
  }

  // The store itself makes FORMAT; the segments are added to it.
  [[nodiscard]] Status make_store() {
    remove_bench_directory(directory_);
    Result<std::unique_ptr<StorageBackend>> empty = open();
    if (!empty.is_ok()) return empty.status();
    LARDER_RETURN_IF_ERROR((*empty)->close(std::chrono::hours(1)));
    empty->reset();
    std::string text(4096, '\0');
    Result<std::unique_ptr<File>> file =
        real_file_system().open(join_path(directory_, std::string(file_store::kFormatName)), {});
    if (!file.is_ok()) return file.status();
    const Result<std::size_t> got = (*file)->read_at(std::as_writable_bytes(std::span(text)), 0);
    if (!got.is_ok()) return got.status();
    const Result<file_store::VolumeFormat> format = file_store::parse_format_text(text.substr(0, *got));
    if (!format.is_ok()) return format.status();
    store_ = format->store;
    for (std::uint64_t first = 0; first < out_.pages; first += pages_per_segment_) {
      LARDER_RETURN_IF_ERROR(make_segment(first, std::min(pages_per_segment_, out_.pages - first)));
    }
    return Status::ok();
  }

  [[nodiscard]] Status make_segment(std::uint64_t first, std::uint64_t count) {
    file_store::Footer footer;
    footer.store = store_;
    footer.segment = static_cast<SegmentId>(++out_.segments);
    footer.start = file_store::kBlockBytes + count * out_.page_bytes;
    footer.max_generation = first + count;
    footer.records = 1;
    footer.is_synced = true;
    footer.pages.resize(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t number = first + i;
      file_store::ListedPage& page = footer.pages[static_cast<std::size_t>(i)];
      page.identity = {scope_->namespace_digest, scope_->fingerprint(PoolName::kKv), PoolName::kKv};
      page.key = key_of(options_.seed, number);
      if (number % kChain != 0) page.parent = key_of(options_.seed, number - 1);
      page.location.segment = footer.segment;
      page.location.offset = file_store::kBlockBytes + i * out_.page_bytes;
      page.location.payload_bytes = static_cast<std::uint32_t>(out_.page_bytes);
      page.location.generation = number + 1;
      page.location.checksum = {page.key.prefix64(), number};  // no hole has it
    }
    const file_store::SegmentHeader header{store_, footer.segment, 1, first + 1};
    OpenOptions create;
    create.write = create.create = create.truncate = true;
    Result<std::unique_ptr<File>> file =
        real_file_system().open(join_path(directory_, file_store::segment_name(footer.segment)), create);
    if (!file.is_ok()) return file.status();
    LARDER_RETURN_IF_ERROR(write_fully(**file, file_store::encode_segment_header(header), 0));
    const std::vector<std::byte> bytes = file_store::encode_footer(footer);
    out_.index_bytes += bytes.size();
    return write_fully(**file, bytes, footer.start);
  }

  // A page that is read turns out to be a hole, and its footer is told: so the last opening alone reads some.
  [[nodiscard]] Status open_once(bool is_last) {
    LARDER_RETURN_IF_ERROR(drop_page_cache(directory_));
    const std::uint64_t before = process_resident_bytes();
    const double cpu = process_cpu_seconds();
    const TimePoint begin = real_clock().now();
    Result<std::unique_ptr<StorageBackend>> opened = open();
    if (!opened.is_ok()) return opened.status();
    out_.seconds.push_back(seconds_since(begin));
    out_.cpu_seconds.push_back(process_cpu_seconds() - cpu);
    out_.memory_bytes = std::max(out_.memory_bytes, process_resident_bytes() - before);
    StorageBackend& backend = **opened;
    if (backend.stats().pages != out_.pages) {
      return corrupt("the opened store lists " + std::to_string(backend.stats().pages) + " of " +
                     std::to_string(out_.pages) + " pages");
    }
    Rng rng(options_.seed + out_.seconds.size());
    LARDER_RETURN_IF_ERROR(check_existence(backend, rng));
    for (std::uint64_t i = 0; is_last && i < std::min(kSampledReads, out_.pages); ++i) {
      LARDER_RETURN_IF_ERROR(check_hole(backend, rng.below(out_.pages)));
    }
    return backend.close(std::chrono::hours(1));
  }

  // Stored keys and others mixed; each answer must be right.
  [[nodiscard]] Status check_existence(StorageBackend& backend, Rng& rng) {
    for (std::uint64_t asked = 0; asked < kSampledPages; asked += kAskedAtOnce) {
      std::vector<PageKey> keys;
      Presence expected;
      for (std::size_t i = 0; i < kAskedAtOnce; ++i) {
        expected.push_back(rng.below(2) == 0);
        keys.push_back(key_of(options_.seed, rng.below(out_.pages) + (expected.back() ? 0 : out_.pages)));
      }
      const Result<Presence> present = ask(backend, std::move(keys));
      if (!present.is_ok()) return present.status();
      if (*present != expected) return corrupt("exists gave a wrong answer after opening");
      out_.exists_checked += kAskedAtOnce;
    }
    return Status::ok();
  }

  [[nodiscard]] Result<Presence> ask(StorageBackend& backend, std::vector<PageKey> keys) {
    const std::size_t count = keys.size();
    Waiter<ExistsResult> waiter;
    LARDER_RETURN_IF_ERROR(backend.submit_exists({scope_, std::move(keys), {PoolName::kKv}, {}}, waiter.callback()));
    const ExistsResult answer = waiter.wait();
    LARDER_RETURN_IF_ERROR(answer.status);
    Presence present = answer.presence.at(0).present;
    present.resize(count);
    return present;
  }

  // A page whose bytes are not there must be a miss, and is then known to be none.
  [[nodiscard]] Status check_hole(StorageBackend& backend, std::uint64_t number) {
    const PageKey key = key_of(options_.seed, number);
    std::vector<std::byte> bytes(static_cast<std::size_t>(out_.page_bytes));
    ReadRequest request;
    request.scope = scope_;
    request.items.push_back({PoolName::kKv, key, {{bytes.data(), bytes.size()}}});
    Waiter<ReadResult> waiter;
    LARDER_RETURN_IF_ERROR(backend.submit_read(std::move(request), waiter.callback()));
    const StatusCode code = waiter.wait().items.at(0).code();
    const bool is_miss = code == StatusCode::kCorrupt || code == StatusCode::kNotFound;  // sampled twice: not found
    if (!is_miss) return corrupt("a page that is a hole was not read as damaged");
    const Result<Presence> present = ask(backend, {key});
    if (!present.is_ok()) return present.status();
    if ((*present)[0]) return corrupt("a page that was read as damaged is still said to be there");
    ++out_.holes_checked;
    return Status::ok();
  }

  using SegmentId = file_store::SegmentId;
  const StorageBenchOptions& options_;
  const std::string directory_;
  BackendFactory factory_;
  BackendOptions backend_options_;
  ThreadPoolExecutor threads_;
  std::shared_ptr<StoreScope> scope_;
  file_store::StoreId store_{};
  std::uint64_t pages_per_segment_ = 0;
  RestartFigures out_;
};

}  // namespace

Result<RestartFigures> measure_restart(const StorageBenchOptions& options, const std::string& directory) {
  return RestartBench(options, directory).run();
}

std::string restart_text(const RestartFigures& figures) {
  const Spread seconds = spread_of(figures.seconds);
  return fmt::format(
      "restart: {} pages of {} ({} of payload, as holes) in {} segments, {} of page tables read cold\n"
      "ready after {:.2f} s [{:.2f}..{:.2f}] of {} runs, CPU {:.2f} s; memory taken: {}, {} bytes per page\n"
      "checked right after opening: existence of {} keys, stored and not; {} pages without their bytes read as "
      "misses\n",
      count_text(figures.pages), bytes_text(figures.page_bytes), bytes_text(figures.pages * figures.page_bytes),
      count_text(figures.segments), bytes_text(figures.index_bytes), seconds.median, seconds.low, seconds.high,
      figures.seconds.size(), spread_of(figures.cpu_seconds).median, bytes_text(figures.memory_bytes),
      figures.memory_bytes / std::max<std::uint64_t>(figures.pages, 1), count_text(figures.exists_checked),
      count_text(figures.holes_checked));
}

nlohmann::ordered_json restart_json(const RestartFigures& figures) {
  return {{"pages", figures.pages},
          {"page_bytes", figures.page_bytes},
          {"segments", figures.segments},
          {"index_bytes", figures.index_bytes},
          {"seconds", figures.seconds},
          {"cpu_seconds", figures.cpu_seconds},
          {"memory_bytes", figures.memory_bytes},
          {"exists_checked", figures.exists_checked},
          {"holes_checked", figures.holes_checked}};
}

}  // namespace larder
