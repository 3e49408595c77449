// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/probe.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/rng.h"

namespace larder {
namespace {

constexpr std::array<std::size_t, 4> kSizes{1, 4095, std::size_t{16} << 10, std::size_t{64} << 10};
constexpr std::array<PoolName, 2> kPools{PoolName::kIndexer, PoolName::kKv};  // the anchor last
constexpr std::size_t kGuard = 64;                                            // bytes beside what is read
constexpr std::byte kGuardByte{0xa5};
constexpr int kOffers = 3;
constexpr std::uint64_t kLayoutSeed = 0x70726f6265;

struct ProbePage {
  PoolName pool;
  PageKey key;
  std::size_t group = 0;
  std::vector<std::byte> content;
  std::vector<std::byte> back;  // guard, content, guard
};

// Everything that an operation may touch after the probe has given up.
struct ProbeBuffers {
  std::shared_ptr<const StoreScope> scope;
  std::vector<PageKey> keys;     // one per group
  std::vector<ProbePage> pages;  // groups in order, the anchor last in each
  PageKey absent_key;
  std::vector<std::byte> odd;  // for reads that must miss
};

PageKey random_digest(Rng& rng) {
  PageKey key;
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(rng.next_u64());
  return key;
}

std::shared_ptr<ProbeBuffers> make_buffers(Rng& rng) {
  auto out = std::make_shared<ProbeBuffers>();
  auto scope = std::make_shared<StoreScope>();
  scope->namespace_digest = random_digest(rng);
  // The same in every probe: a store may keep something for each layout for ever, as files of 3FS.
  Rng layouts(kLayoutSeed);
  for (const PoolName pool : kPools) {
    scope->set_pool(pool, random_digest(layouts));
  }
  out->scope = std::move(scope);
  out->absent_key = random_digest(rng);
  out->odd.resize(kSizes.back() + 1);
  for (std::size_t group = 0; group < kSizes.size(); ++group) {
    out->keys.push_back(random_digest(rng));
    for (const PoolName pool : kPools) {
      // The sidecar gets the next size, so that both pools see each of them.
      const std::size_t size = kSizes[pool == PoolName::kKv ? group : (group + 1) % kSizes.size()];
      ProbePage& page = out->pages.emplace_back();
      page.pool = pool;
      page.key = out->keys.back();
      page.group = group;
      page.content.resize(size);
      for (std::byte& byte : page.content) byte = static_cast<std::byte>(rng.next_u64());
    }
  }
  return out;
}

// A result that another thread brings, perhaps when nobody waits any more.
template <class ResultType>
struct Mailbox {
  explicit Mailbox(std::shared_ptr<ProbeBuffers> of) : buffers(std::move(of)) {}
  const std::shared_ptr<ProbeBuffers> buffers;  // lives as long as the operation
  RankedMutex mutex{LockRank::kStorage};
  RankedCondition arrived;
  std::optional<ResultType> result LARDER_GUARDED_BY(mutex);
};

class Probe {
 public:
  Probe(StorageBackend& backend, Clock& clock, Nanos limit, Rng rng)
      : backend_(backend), clock_(clock), deadline_(clock.now() + limit), rng_(rng), buffers_(make_buffers(rng_)) {}

  Status run() {
    Status status = check();
    if (!status.is_ok() && !is_cleared_) clean_up(status.code() != StatusCode::kDeadlineExceeded);
    return status;
  }

 private:
  Status check();
  Status check_exists(const std::string& step, const std::vector<bool>& wanted);
  Status write();
  Status offer(std::vector<std::size_t>& groups);
  Status read_back();
  Status check_page(const ProbePage& page, const Status& status) const;
  Status check_misses();
  Status clear();
  void clean_up(bool is_answering);

  // "storage probe of backend 'x', step 'read back': <what>; <advice>"
  [[nodiscard]] Status fail(StatusCode code, const std::string& step, const std::string& what,
                            const std::string& advice) const {
    return {code,
            "storage probe of backend '" + backend_.info().name + "', step '" + step + "': " + what + "; " + advice};
  }
  [[nodiscard]] Status lie(const std::string& step, const std::string& what) const {
    return fail(StatusCode::kInternal, step, what, "the backend breaks its contract and is not attached: report it");
  }
  [[nodiscard]] Status failure(const std::string& step, const Status& status) const {
    return fail(status.code(), step, status.to_string(),
                "mend the cause (is the medium there, writable, not full, and are the backend's options right?) and "
                "attach again");
  }

  // Runs submit(done) and waits for what done gets.
  template <class ResultType, class Submit>
  Result<ResultType> await(const std::string& step, const Submit& submit) {
    auto box = std::make_shared<Mailbox<ResultType>>(buffers_);
    const Status submitted = submit([box](ResultType result) {
      LockGuard guard(box->mutex);
      box->result.emplace(std::move(result));
      box->arrived.notify_all();
    });
    if (!submitted.is_ok()) return failure(step, submitted);
    LockGuard guard(box->mutex);
    auto& result = box->result;
    while (!result) {
      const Nanos left = deadline_ - clock_.now();
      if (left > Nanos(0) && box->arrived.wait_for(box->mutex, left)) continue;
      if (result) break;
      return fail(StatusCode::kDeadlineExceeded, step, "no answer within the time limit",
                  "the medium hangs or is very slow: see the kernel log and the peer, or allow more time");
    }
    return std::move(*result);
  }
  [[nodiscard]] OperationTerms terms() const { return {Urgency::kWaiting, deadline_, nullptr}; }

  StorageBackend& backend_;
  Clock& clock_;
  const TimePoint deadline_;
  Rng rng_;
  const std::shared_ptr<ProbeBuffers> buffers_;
  std::vector<bool> is_written_ = std::vector<bool>(kSizes.size(), false);  // per group
  bool is_cleared_ = false;
};

Status Probe::check() {
  const std::vector<bool> none(kSizes.size(), false);
  LARDER_RETURN_IF_ERROR(check_exists("exists before the write", none));
  LARDER_RETURN_IF_ERROR(write());
  LARDER_RETURN_IF_ERROR(check_exists("exists after the write", is_written_));
  LARDER_RETURN_IF_ERROR(read_back());
  LARDER_RETURN_IF_ERROR(check_misses());
  LARDER_RETURN_IF_ERROR(clear());
  is_cleared_ = true;
  return check_exists("exists after the clear", none);
}

Status Probe::check_exists(const std::string& step, const std::vector<bool>& wanted) {
  ExistsRequest request{buffers_->scope, buffers_->keys, {kPools.begin(), kPools.end()}, terms()};
  const Result<ExistsResult> got = await<ExistsResult>(step, [&](StorageBackend::ExistsDone done) {
    return backend_.submit_exists(std::move(request), std::move(done));
  });
  if (!got.is_ok()) return got.status();
  if (!got->status.is_ok()) return failure(step, got->status);
  if (got->presence.size() != kPools.size()) return lie(step, "it did not answer for each pool");
  for (std::size_t pool = 0; pool < kPools.size(); ++pool) {
    const PoolPresence& presence = got->presence[pool];
    const std::string name(pool_name(kPools[pool]));
    if (presence.pool != kPools[pool]) return lie(step, "it answered for another pool than '" + name + "'");
    for (std::size_t group = 0; group < wanted.size(); ++group) {
      const bool is_present = group < presence.present.size() && presence.present[group];
      if (is_present == wanted[group]) continue;
      if (is_present) return lie(step, "it claims to have a page of pool '" + name + "' that it cannot have");
      return lie(step, "it says that a page of pool '" + name + "' is absent, which it said it had stored");
    }
  }
  return Status::ok();
}

Status Probe::write() {
  std::vector<std::size_t> groups{0, 1, 2, 3};
  static_assert(kSizes.size() == 4);
  for (int i = 0; i < kOffers && !groups.empty(); ++i) LARDER_RETURN_IF_ERROR(offer(groups));
  if (groups.size() < kSizes.size()) return Status::ok();
  return fail(StatusCode::kUnsupported, "write", "every page was declined, so nothing could be verified",
              "loosen the backend's admission policy, or attach without a probe");
}

Status Probe::offer(std::vector<std::size_t>& groups) {
  WriteRequest request{buffers_->scope, {}, backend_.info().persistent, terms()};
  for (const std::size_t group : groups) {
    PageGroup& out = request.groups.emplace_back();
    for (ProbePage& page : buffers_->pages) {
      if (page.group == group) out.items.push_back({page.pool, page.key, {{page.content.data(), page.content.size()}}});
    }
  }
  const Result<WriteResult> got = await<WriteResult>("write", [&](StorageBackend::WriteDone done) {
    return backend_.submit_write(std::move(request), std::move(done));
  });
  if (!got.is_ok()) return got.status();
  if (got->groups.size() != groups.size()) return lie("write", "it did not answer for each group");
  std::vector<std::size_t> declined;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Status& status = got->groups[i];
    if (status.code() == StatusCode::kUnsupported) {
      declined.push_back(groups[i]);
    } else if (!status.is_ok()) {
      return failure("write", status);
    } else {
      is_written_[groups[i]] = true;
    }
  }
  groups = std::move(declined);
  return Status::ok();
}

Status Probe::read_back() {
  ReadRequest request{buffers_->scope, {}, terms()};
  std::vector<const ProbePage*> wanted;
  for (ProbePage& page : buffers_->pages) {
    if (!is_written_[page.group]) continue;
    page.back.assign(page.content.size() + 2 * kGuard, kGuardByte);
    std::byte* const to = page.back.data() + kGuard;
    for (std::size_t i = 0; i < page.content.size(); ++i) to[i] = ~page.content[i];  // no byte is right by chance
    const auto cut = static_cast<std::size_t>(rng_.below(page.content.size() + 1));
    request.items.push_back({page.pool, page.key, {{to, cut}, {to + cut, page.content.size() - cut}}});
    wanted.push_back(&page);
  }
  const Result<ReadResult> got = await<ReadResult>("read back", [&](StorageBackend::ReadDone done) {
    return backend_.submit_read(std::move(request), std::move(done));
  });
  if (!got.is_ok()) return got.status();
  if (got->items.size() != wanted.size()) return lie("read back", "it did not answer for each page");
  for (std::size_t i = 0; i < wanted.size(); ++i) LARDER_RETURN_IF_ERROR(check_page(*wanted[i], got->items[i]));
  return Status::ok();
}

Status Probe::check_page(const ProbePage& page, const Status& status) const {
  const std::string what =
      "page of pool '" + std::string(pool_name(page.pool)) + "', " + std::to_string(page.content.size()) + " bytes: ";
  if (status.code() == StatusCode::kNotFound) return lie("read back", what + "lost after it was stored");
  if (!status.is_ok()) return failure("read back", {status.code(), what + status.message()});
  const auto begin = page.back.begin() + kGuard;
  const auto end = begin + static_cast<std::ptrdiff_t>(page.content.size());
  const auto differs = std::mismatch(page.content.begin(), page.content.end(), begin);
  if (differs.first != page.content.end()) {
    return fail(StatusCode::kCorrupt, "read back",
                what + "byte " + std::to_string(differs.first - page.content.begin()) + " is not what was written",
                "the medium or the backend changes bytes and is not attached: test the medium");
  }
  const auto is_guard = [](std::byte byte) { return byte == kGuardByte; };
  if (!std::all_of(page.back.begin(), begin, is_guard) || !std::all_of(end, page.back.end(), is_guard)) {
    return lie("read back", what + "it wrote beside the buffer it was given");
  }
  return Status::ok();
}

Status Probe::check_misses() {
  const auto written = std::find(is_written_.begin(), is_written_.end(), true);
  const auto group = static_cast<std::size_t>(written - is_written_.begin());
  const auto page = std::find_if(buffers_->pages.begin(), buffers_->pages.end(), [group](const ProbePage& candidate) {
    return candidate.group == group && candidate.pool == PoolName::kKv;
  });
  const std::size_t longer = page->content.size() + 1;
  // Two items share no bytes: the odd buffer is longer than both together, but for the largest page.
  ReadRequest request{buffers_->scope, {}, terms()};
  request.items.push_back({page->pool, page->key, {{buffers_->odd.data(), longer}}});
  std::vector<Segment> elsewhere;
  if (longer < buffers_->odd.size()) elsewhere.push_back({buffers_->odd.data() + longer, 1});
  request.items.push_back({page->pool, buffers_->absent_key, std::move(elsewhere)});
  const Result<ReadResult> got = await<ReadResult>("read what is not there", [&](StorageBackend::ReadDone done) {
    return backend_.submit_read(std::move(request), std::move(done));
  });
  if (!got.is_ok()) return got.status();
  if (got->items.size() != 2) return lie("read what is not there", "it did not answer for each page");
  if (got->items[0].is_ok()) return lie("read what is not there", "it delivered a page of another length");
  if (got->items[1].is_ok()) return lie("read what is not there", "it delivered a page that was never written");
  return Status::ok();
}

Status Probe::clear() {
  // Boxed: a Result of a Status could not tell the two apart.
  const auto got = await<std::array<Status, 1>>("clear", [&](std::function<void(std::array<Status, 1>)> done) {
    return backend_.submit_clear(buffers_->scope, [done = std::move(done)](const Status& status) { done({status}); });
  });
  if (!got.is_ok()) return got.status();
  const Status& status = got->front();
  return status.is_ok() ? status : failure("clear", status);
}

void Probe::clean_up(bool is_answering) {
  if (is_answering) {
    (void)clear();
    return;
  }
  (void)backend_.submit_clear(buffers_->scope, [buffers = buffers_](const Status&) {});
}

}  // namespace

Status probe_backend(StorageBackend& backend, Clock& clock, Nanos limit, std::uint64_t seed) {
  // Two probes of one store must not meet, also not those of two processes: the seed is stirred before time is added,
  // or a seed that was made of the same clock would cancel it.
  Rng stirred(seed);
  Rng rng(stirred.next_u64() + static_cast<std::uint64_t>(clock.now().time_since_epoch().count()) +
          (static_cast<std::uint64_t>(clock.wall_unix_seconds()) << 32));
  return Probe(backend, clock, limit, rng).run();
}

}  // namespace larder
