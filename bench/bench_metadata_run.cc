// SPDX-License-Identifier: Apache-2.0
// The runs of `larder bench metadata`.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/bench_metadata.h"
#include "bench/quantile.h"
#include "bench/real_storage_machine.h"
#include "metadata/embedded_metadata.h"
#include "metadata/real_rocksdb_journal.h"

namespace larder {
namespace {

constexpr std::size_t kChain = 128;
constexpr std::size_t kKeyBytes = 64;
constexpr const char* kFolder = "larder-bench-metadata";  // under --directory

double seconds_between(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

// Key number i, by the seed: half the same for all, half its own, like namespace digest and page key.
class KeyMaker {
 public:
  explicit KeyMaker(std::uint64_t seed) : seed_(seed) {}
  void make(std::uint64_t number, char* into) const {
    Rng space(seed_), own(seed_ ^ (number + 1) * 0x9e3779b97f4a7c15ull);
    for (std::size_t at = 0; at < kKeyBytes; at += 8) {
      const std::uint64_t word = at < kKeyBytes / 2 ? space.next_u64() : own.next_u64();
      std::copy_n(reinterpret_cast<const char*>(&word), 8, into + at);
    }
  }

 private:
  const std::uint64_t seed_;
};

// Some keys, one behind the other.
class KeyBlock {
 public:
  void make(const KeyMaker& maker, std::uint64_t first, std::size_t count) {
    bytes_.resize(count * kKeyBytes);
    for (std::size_t i = 0; i < count; ++i) maker.make(first + i, bytes_.data() + i * kKeyBytes);
  }
  [[nodiscard]] std::string_view operator[](std::size_t i) const { return {bytes_.data() + i * kKeyBytes, kKeyBytes}; }

 private:
  std::vector<char> bytes_;
};

// One service with a full namespace. Stored are the keys [next - stored, next).
class MetadataRunner {
 public:
  MetadataRunner(const MetadataBenchOptions& options, std::string journal, std::uint64_t stored)
      : options_(options),
        journal_(std::move(journal)),
        stored_(stored / kChain * kChain),
        folder_(options.directory + "/" + kFolder),
        maker_(options.seed),
        rng_(options.seed) {}
  ~MetadataRunner() {
    service_.reset();
    remove_bench_directory(folder_);
  }
  MetadataRunner(const MetadataRunner&) = delete;
  MetadataRunner& operator=(const MetadataRunner&) = delete;

  Status fill() {
    remove_bench_directory(folder_);  // of a run that was ended
    LARDER_RETURN_IF_ERROR(open());
    const auto given = service_->initialize(space_, stored_);
    if (!given) return given.status();
    KeyBlock block;
    while (next_ < stored_) {
      block.make(maker_, next_, kChain);
      LARDER_RETURN_IF_ERROR(store(block, 0, kChain));
      next_ += kChain;
    }
    return Status::ok();
  }

  Status measure(MetadataFigures& figures) {
    for (const std::uint32_t keys : options_.keys) {
      LARDER_RETURN_IF_ERROR(cell("exists", keys, figures, [&](MetadataCell& c) { return look(c, keys, false, 0); }));
      LARDER_RETURN_IF_ERROR(cell("absent", keys, figures, [&](MetadataCell& c) { return look(c, keys, true, 0); }));
      LARDER_RETURN_IF_ERROR(cell("reserve+confirm", keys, figures, [&](MetadataCell& c) { return write(c, keys); }));
    }
    for (const std::uint32_t keys : options_.keys) {  // last: leased pages are not evicted
      LARDER_RETURN_IF_ERROR(cell("get", keys, figures, [&](MetadataCell& c) { return look(c, keys, false, 10); }));
    }
    return Status::ok();
  }

  Status reopen(MetadataFigures& figures) {
    service_.reset();
    const TimePoint start = real_clock().now();
    LARDER_RETURN_IF_ERROR(open());
    figures.recoveries.push_back({journal_, stored_, seconds_between(start, real_clock().now())});
    const auto stats = service_->stats();
    if (!stats || stats->at(space_).stored != stored_) return internal_error("pages were lost by reopening");
    return Status::ok();
  }

 private:
  using Sample = std::vector<double>;

  Status open() {
    std::unique_ptr<metadata::Journal> journal;
    if (journal_ == "rocksdb") {
      auto opened = metadata::open_rocksdb_journal(folder_);
      if (!opened) return opened.status();
      journal = std::move(*opened);
    }
    auto service = EmbeddedMetadata::create({}, real_clock(), std::move(journal));
    if (!service) return service.status();
    service_ = std::move(*service);
    return Status::ok();
  }

  template <class Body>
  Status cell(const char* operation, std::uint32_t keys, MetadataFigures& figures, Body body) {
    MetadataCell cell;
    cell.journal = journal_;
    cell.operation = operation;
    cell.stored = stored_;
    cell.keys = keys;
    for (std::uint32_t i = 0; i < options_.repeat; ++i) LARDER_RETURN_IF_ERROR(body(cell));
    figures.cells.push_back(std::move(cell));
    return Status::ok();
  }

  static void finish(Sample& us, std::uint32_t keys, MetadataCell& cell) {
    double total = 0;
    for (const double one : us) total += one;
    std::sort(us.begin(), us.end());
    cell.keys_per_second.push_back(static_cast<double>(us.size()) * keys / total * 1e6);
    cell.p50_us.push_back(quantile_of_sorted(us, 0.5));
    cell.p99_us.push_back(quantile_of_sorted(us, 0.99));
  }

  // Requests of keys that follow each other in a chain, from anywhere.
  Status look(MetadataCell& cell, std::uint32_t keys, bool absent, int lease_seconds) {
    Sample us;
    KeyBlock block;
    std::vector<MetadataKeys> wanted{{&space_, {}}};
    std::uint64_t found = 0, asked = 0;
    const TimePoint end = real_clock().now() + Nanos(static_cast<std::int64_t>(options_.seconds * 1e9));
    while (us.size() < 20 || real_clock().now() < end) {
      const std::uint64_t chain = next_ - stored_ + rng_.below(stored_ / kChain) * kChain;
      block.make(maker_, chain + rng_.below(kChain - keys + 1) + (absent ? std::uint64_t{1} << 60 : 0), keys);
      wanted[0].keys.clear();
      for (std::size_t i = 0; i < keys; ++i) wanted[0].keys.push_back(block[i]);
      const TimePoint start = real_clock().now();
      const auto answer = service_->find(wanted, std::chrono::seconds(lease_seconds));
      us.push_back(seconds_between(start, real_clock().now()) * 1e6);
      if (!answer) return answer.status();
      asked += keys;
      for (const auto& page : answer->at(0)) found += page ? 1 : 0;
    }
    if (found != (absent ? 0 : asked)) return internal_error("the bench does not find what it stored");
    finish(us, keys, cell);
    return Status::ok();
  }

  Status write(MetadataCell& cell, std::uint32_t keys) {
    Sample us;
    KeyBlock block;
    const TimePoint end = real_clock().now() + Nanos(static_cast<std::int64_t>(options_.seconds * 1e9));
    while (us.size() < 20 || real_clock().now() < end) {
      block.make(maker_, next_, kChain);
      for (std::size_t from = 0; from < kChain; from += keys) {
        const std::size_t count = std::min<std::size_t>(keys, kChain - from);
        const TimePoint start = real_clock().now();
        LARDER_RETURN_IF_ERROR(store(block, from, count));
        // A shorter rest of a chain counts as much less as it is shorter.
        const double whole = static_cast<double>(keys) / static_cast<double>(count);
        us.push_back(seconds_between(start, real_clock().now()) * 1e6 * whole);
      }
      next_ += kChain;
    }
    finish(us, keys, cell);
    return Status::ok();
  }

  Status store(const KeyBlock& block, std::size_t from, std::size_t count) {
    std::vector<ReserveItems> wanted{{&space_, {}}};
    wanted[0].items.reserve(count);
    for (std::size_t i = from; i < from + count; ++i) {
      wanted[0].items.push_back({block[i], i == 0 ? std::string_view() : block[i - 1]});
    }
    const MetadataSession session{{1, 2}, ++operation_};
    const auto reserved = service_->reserve(session, wanted, std::chrono::seconds(60));
    if (!reserved) return reserved.status();
    ConfirmRequest request{session, {{}}, {}, false};
    request.groups[0].reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (reserved->at(0)[i].outcome != ReserveOutcome::kReserved) return internal_error("the bench gets no page");
      request.groups[0].push_back({&space_, block[from + i], reserved->at(0)[i].ref});
    }
    const auto confirmed = service_->confirm(request);
    if (!confirmed) return confirmed.status();
    return confirmed->at(0);
  }

  const MetadataBenchOptions& options_;
  const std::string journal_;
  const std::uint64_t stored_;
  const std::string folder_;
  const MetadataNamespace space_;
  const KeyMaker maker_;
  Rng rng_;
  std::uint64_t next_ = 0, operation_ = 0;
  std::unique_ptr<EmbeddedMetadata> service_;
};

}  // namespace

Result<MetadataFigures> run_metadata_bench(const MetadataBenchOptions& options) {
  MetadataFigures figures;
  for (const std::string& journal : options.journals) {
    for (const std::uint64_t stored : options.stored) {
      MetadataRunner runner(options, journal, stored);
      LARDER_RETURN_IF_ERROR(runner.fill());
      LARDER_RETURN_IF_ERROR(runner.measure(figures));
      if (journal != "none") LARDER_RETURN_IF_ERROR(runner.reopen(figures));
    }
  }
  // Rows that differ only in the number of stored pages side by side.
  std::stable_sort(figures.cells.begin(), figures.cells.end(), [](const MetadataCell& a, const MetadataCell& b) {
    return std::tie(a.operation, a.journal, a.keys) < std::tie(b.operation, b.journal, b.keys);
  });
  return figures;
}

}  // namespace larder
