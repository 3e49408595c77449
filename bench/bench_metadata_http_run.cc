// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "base/http_client.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "bench/bench_metadata_http.h"
#include "bench/quantile.h"
#include "metadata/embedded_metadata.h"
#include "metadata/http_metadata.h"
#include "server/metadata_server.h"

namespace larder {
namespace {

constexpr std::uint64_t kHttpChain = 128;  // pages of one sequence
constexpr std::size_t kBodies = 64;        // prepared requests of a connection
const MetadataNamespace kSpace{0, "kv"};
const MetadataNamespace kStoreSpace{0, "kv-store"};  // of stores, which evict: nothing in it is leased

// 64 characters, as the reference's keys.
std::string hash_key_of(std::uint64_t number) {
  return fmt::format("{:048x}{:016x}", number * 0x9E3779B97F4A7C15ull, number);
}

// Some requests in a row; not ok when one got no answer, or a wrong one.
using Call = std::function<Status()>;

Status check_reply(const Result<HttpReply>& reply) {
  if (!reply.is_ok()) return reply.status();
  if (reply->status == 200) return Status::ok();
  return internal_error("the server answers " + std::to_string(reply->status) + ": " + reply->body.substr(0, 200));
}

struct Part {  // of one connection
  std::vector<double> micros;
  Status status;  // of its last call
};

class HttpBench {
 public:
  explicit HttpBench(const MetadataHttpBenchOptions& options) : options_(options), rng_(options.seed) {}

  Status open() {
    auto service = EmbeddedMetadata::create({}, real_clock());
    if (!service.is_ok()) return service.status();
    service_ = std::move(*service);
    MetadataServerParts parts;
    parts.service = service_.get();
    parts.clock = &real_clock();
    parts.metrics = &metrics_;
    parts.listen.io_threads = options_.io_threads;
    auto server = MetadataServer::create(parts);
    if (!server.is_ok()) return server.status();
    server_ = std::move(*server);
    LARDER_RETURN_IF_ERROR(fill(kSpace));
    return fill(kStoreSpace);
  }

  Result<std::vector<MetadataHttpCell>> run() {
    std::vector<MetadataHttpCell> cells;
    const std::pair<const char*, const char*> kinds[] = {
        {"exists", "json"}, {"exists", "binary"}, {"get", "json"}, {"get", "binary"}, {"store", "binary"}};
    for (const auto& [call, form] : kinds) {
      for (const std::uint32_t keys : options_.keys) {
        for (const std::uint32_t connections : options_.connections) {
          MetadataHttpCell cell{call, form, connections, keys, {}};
          for (std::uint32_t i = 0; i < options_.repeat; ++i) {
            const Result<MetadataHttpRun> one = run_pair(cell, i % 2 == 0);
            if (!one.is_ok()) return one.status();
            cell.runs.push_back(*one);
          }
          cells.push_back(std::move(cell));
        }
      }
    }
    return cells;
  }

 private:
  Status fill(const MetadataNamespace& space) {
    const auto given = service_->initialize(space, options_.stored);
    if (!given.is_ok()) return given.status();
    for (std::uint64_t first = 0; first < options_.stored; first += kHttpChain) {
      const std::uint64_t end = std::min(first + kHttpChain, options_.stored);
      std::vector<std::string> keys;
      for (std::uint64_t i = first; i < end; ++i) keys.push_back(hash_key_of(i));
      LARDER_RETURN_IF_ERROR(store(*service_, space, keys, first));
    }
    next_key_ = options_.stored;
    return Status::ok();
  }

  static Status store(MetadataService& service, const MetadataNamespace& space, const std::vector<std::string>& keys,
                      std::uint64_t operation) {
    ReserveItems wanted{&space, {}};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      wanted.items.push_back({keys[i], i == 0 ? std::string_view{} : std::string_view(keys[i - 1])});
    }
    const MetadataSession session{{1, 2}, operation};
    const auto given = service.reserve(session, {&wanted, 1}, std::chrono::seconds(60));
    if (!given.is_ok()) return given.status();
    ConfirmRequest request{session, {{}}, {}, false};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Reserved& one = given->front()[i];
      if (one.outcome != ReserveOutcome::kReserved) return internal_error("a key got no page");
      request.groups[0].push_back({&space, keys[i], one.ref});
    }
    const auto done = service.confirm(request);
    if (!done.is_ok()) return done.status();
    return done->front();
  }

  std::string head_of(std::string_view target, std::size_t size) const {
    return fmt::format("POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", target, size);
  }

  // Keys that follow each other in a chain, as a lookup asks for them.
  std::vector<std::string> some_keys(std::uint32_t count) {
    const std::uint64_t chains = std::max<std::uint64_t>(options_.stored / kHttpChain, 1);
    const std::uint64_t first = rng_.below(chains) * kHttpChain;
    std::vector<std::string> keys;
    for (std::uint32_t i = 0; i < count; ++i) keys.push_back(hash_key_of(first + i));
    return keys;
  }

  std::string lookup_request(const MetadataHttpCell& cell) {
    const std::vector<std::string> keys = some_keys(cell.keys);
    const bool is_get = cell.call == "get";
    if (cell.form == "binary") {
      const MetadataKeys wanted{&kSpace, {keys.begin(), keys.end()}};
      const auto message = metadata::encode_find({&wanted, 1}, is_get ? Nanos(std::chrono::seconds(1)) : Nanos{0});
      return message.is_ok() ? head_of("/v1/metadata", message->size()) + *message : std::string{};
    }
    std::string body = "{\"keys\":[";
    for (const std::string& key : keys) body += fmt::format("{}\"{}\"", body.back() == '[' ? "" : ",", key);
    body += "],\"namespace\":\"kv\"}";
    return head_of(is_get ? "/0/get_page_indices" : "/0/exists", body.size()) + body;
  }

  std::shared_ptr<HttpClient> connect() const {
    return std::make_shared<HttpClient>(*parse_http_url(server_->url()), Nanos(std::chrono::seconds(30)));
  }

  Call floor_call() const {
    return [client = connect()] { return check_reply(client->raw("GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")); };
  }

  Call call_of(const MetadataHttpCell& cell) {
    if (cell.call == "store") return store_call(cell.keys);
    std::vector<std::string> requests;
    for (std::size_t i = 0; i < kBodies; ++i) requests.push_back(lookup_request(cell));
    return [client = connect(), requests = std::move(requests), next = std::size_t{0}]() mutable {
      return check_reply(client->raw(requests[next++ % kBodies]));
    };
  }

  Call store_call(std::uint32_t count) {
    HttpMetadataOptions options;
    options.url = server_->url();
    options.connections = 1;
    auto made = HttpMetadata::create(options, real_clock());
    std::shared_ptr<HttpMetadata> client = made.is_ok() ? std::move(*made) : nullptr;
    return [this, client, count] {
      const std::uint64_t first = next_key_.fetch_add(count, std::memory_order_relaxed);
      std::vector<std::string> keys;
      for (std::uint32_t i = 0; i < count; ++i) keys.push_back(hash_key_of(first + i));
      return client ? store(*client, kStoreSpace, keys, first) : unavailable("no connection to the server");
    };
  }

  // Calls for `seconds`, one thread per connection.
  Result<MetadataHttpRun> measure(std::vector<Call> calls, double requests_per_call) const {
    std::vector<Part> parts(calls.size());
    for (Call& call : calls) {
      LARDER_RETURN_IF_ERROR(call());  // and connects
    }
    ThreadPoolExecutor threads("bench", calls.size(), calls.size());
    const TimePoint begin = real_clock().now();
    const TimePoint end = begin + Nanos(static_cast<std::int64_t>(options_.seconds * 1e9));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      LARDER_RETURN_IF_ERROR(threads.post([&call = calls[i], &part = parts[i], end] {
        for (TimePoint now = real_clock().now(); now < end && part.status.is_ok();) {
          part.status = call();
          const TimePoint after = real_clock().now();
          part.micros.push_back(static_cast<double>((after - now).count()) / 1e3);
          now = after;
        }
      }));
    }
    threads.wait_idle();
    const double seconds = static_cast<double>((real_clock().now() - begin).count()) / 1e9;
    std::vector<double> all;
    for (const Part& part : parts) {
      LARDER_RETURN_IF_ERROR(part.status);
      all.insert(all.end(), part.micros.begin(), part.micros.end());
    }
    std::sort(all.begin(), all.end());
    MetadataHttpRun run;
    run.requests_per_second = static_cast<double>(all.size()) * requests_per_call / seconds;
    run.p50_us = quantile_of_sorted(all, 0.5) / requests_per_call;
    run.p99_us = quantile_of_sorted(all, 0.99) / requests_per_call;
    return run;
  }

  Result<MetadataHttpRun> run_pair(const MetadataHttpCell& cell, bool floor_first) {
    std::vector<Call> floor, calls;
    for (std::uint32_t i = 0; i < cell.connections; ++i) {
      floor.push_back(floor_call());
      calls.push_back(call_of(cell));
    }
    Result<MetadataHttpRun> bottom = floor_first ? measure(floor, 1) : Result<MetadataHttpRun>(MetadataHttpRun{});
    Result<MetadataHttpRun> run = measure(std::move(calls), cell.call == "store" ? 2 : 1);
    if (!floor_first) bottom = measure(floor, 1);
    if (!bottom.is_ok()) return bottom.status();
    if (run.is_ok()) run->floor_per_second = bottom->requests_per_second;
    return run;
  }

  const MetadataHttpBenchOptions options_;
  Rng rng_;
  MetricsRegistry metrics_;
  std::unique_ptr<EmbeddedMetadata> service_;
  std::unique_ptr<MetadataServer> server_;
  std::atomic<std::uint64_t> next_key_{0};  // relaxed: only its being unique counts
};

}  // namespace

Result<std::vector<MetadataHttpCell>> run_metadata_http_bench(const MetadataHttpBenchOptions& o) {
  const auto is_in = [](const std::vector<std::uint32_t>& numbers, std::uint32_t high) {
    return !numbers.empty() && std::all_of(numbers.begin(), numbers.end(), [&](auto n) { return n >= 1 && n <= high; });
  };
  if (!is_in(o.connections, 256)) return invalid_argument("--connections: from 1 to 256");
  if (!is_in(o.keys, kHttpChain)) return invalid_argument("--keys: from 1 to 128");
  if (o.stored < 256 || o.stored > 100'000'000) return invalid_argument("--stored: from 256 to 100,000,000");
  if (!(o.seconds > 0 && o.seconds <= 3600)) return invalid_argument("--seconds: above 0, at most 3600");
  if (o.repeat < 1 || o.repeat > 1000) return invalid_argument("--repeat: from 1 to 1000");
  if (o.io_threads < 1 || o.io_threads > 256) return invalid_argument("--io-threads: from 1 to 256");
  HttpBench bench(o);
  LARDER_RETURN_IF_ERROR(bench.open());
  return bench.run();
}

}  // namespace larder
