// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata_http/server_kills.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "base/metrics.h"
#include "base/thread_pool.h"
#include "metadata/http_metadata.h"
#include "server/metadata_server.h"
#include "tests/metadata/crash_rounds.h"
#include "tests/metadata_http/reference_crash_client.h"
#include "tests/support/real_killed_process.h"

namespace larder::conformance {
namespace {

constexpr Nanos kRest = std::chrono::milliseconds(1);  // of pages, after a restart
constexpr Nanos kPatience = std::chrono::seconds(30);
constexpr std::uint64_t kMostAnswers = 700;
constexpr std::uint64_t kMostMicroseconds = 3000;

// One directory: the servers that follow each other on it, and the clients of all of them.
class KilledServers {
 public:
  KilledServers(std::string directory, Rng& rng) : directory_(std::move(directory)), rng_(rng) {
    const std::uint64_t seed = rng_.next_u64();
    for (std::uint64_t i = 0; i <= kCrashClients; ++i) logs_.emplace_back();
    for (std::uint64_t i = 0; i < kCrashClients; ++i) {
      clients_.push_back(std::make_unique<CrashClient>(i, seed, log_to(i)));
    }
    reference_ = std::make_unique<ReferenceCrashClient>(kCrashClients, seed, log_to(kCrashClients));
  }

  // False: there is no server.
  bool start() {
    EXPECT_TRUE(server_.start({"metadata_server", kServerChild, directory_}).is_ok());
    server_.read_lines(2, kPatience);
    const std::vector<std::string>& said = server_.lines();
    EXPECT_EQ(said.size(), 2u) << (said.empty() ? "the server says nothing" : said[0]);
    if (said.size() != 2) return false;
    EXPECT_EQ(said[0], Status::ok().to_string()) << "check()";
    auto service = HttpMetadata::create({said[1], {}, kPatience}, real_clock());
    EXPECT_TRUE(service.is_ok()) << service.status().to_string();
    if (!service) return false;
    service_ = std::move(*service);
    for (const auto& client : clients_) client->connect(*service_);
    reference_->connect(*parse_http_url(said[1]));
    return true;
  }

  void verify() {
    promises_.verify(*service_, unanswered_, [this] { server_.read_for(5 * kRest); });
  }

  // Load, until the moment has come.
  void kill_under_load() {
    Answers answers;
    answers.wanted = 1 + rng_.below(rng_.chance(1, 4) ? 10 : kMostAnswers);
    ThreadPoolExecutor threads("clients", kCrashClients + 1, kCrashClients + 1);
    for (const auto& client : clients_) ask(threads, *client, answers);
    ask(threads, *reference_, answers);
    EXPECT_EQ(answers.are_there.get_future().wait_for(kPatience), std::future_status::ready)
        << answers.count << " of " << answers.wanted << " answers";
    server_.read_for(std::chrono::microseconds(rng_.below(kMostMicroseconds)));
    const Status killed = server_.kill();
    EXPECT_TRUE(killed.is_ok()) << killed.to_string();
    threads.wait_idle();
    unanswered_ = reference_->unanswered();
    for (const auto& client : clients_) unanswered_ += client->unanswered();
    for (std::vector<CrashEvent>& log : logs_) {
      for (const CrashEvent& event : log) promises_.note(event);
      log.clear();
    }
  }
  [[nodiscard]] std::uint64_t confirmed() const { return promises_.confirmed(); }

 private:
  struct Answers {
    std::uint64_t wanted = 0;
    std::atomic<std::uint64_t> count{0};  // relaxed: a counter
    std::promise<void> are_there;
  };

  CrashLoad::Say log_to(std::uint64_t client) {
    return [this, client](const std::vector<CrashEvent>& events) {
      logs_[client].insert(logs_[client].end(), events.begin(), events.end());
    };
  }
  static void ask(Executor& threads, CrashLoad& client, Answers& answers) {
    const Status posted = threads.post([&client, &answers] {
      while (client.step()) {
        if (answers.count.fetch_add(1, std::memory_order_relaxed) + 1 == answers.wanted) {
          answers.are_there.set_value();
        }
      }
    });
    EXPECT_TRUE(posted.is_ok()) << posted.to_string();
  }

  const std::string directory_;
  Rng& rng_;
  std::vector<std::vector<CrashEvent>> logs_;  // by client; each is its thread's while there is load
  std::vector<std::unique_ptr<CrashClient>> clients_;
  std::unique_ptr<ReferenceCrashClient> reference_;
  std::unique_ptr<HttpMetadata> service_;
  support::KilledProcess server_;
  CrashPromises promises_;
  std::uint64_t unanswered_ = 0;  // pages that the last server may have given away without an answer
};

std::uint64_t kill_servers(const std::string& directory, Rng& rng, int kills) {
  KilledServers servers(directory, rng);
  for (int i = 0; i <= kills && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("after kill " + std::to_string(i) + " of this directory");
    if (!servers.start()) break;
    servers.verify();
    if (i < kills) servers.kill_under_load();
  }
  return servers.confirmed();
}

}  // namespace

int run_server_child(const std::string& directory) {
  auto service = open_crash_service(directory, real_clock(), kRest);
  if (!service) {
    support::say(service.status().to_string() + '\n');
    return 1;
  }
  support::say((*service)->check().to_string() + '\n');
  MetricsRegistry metrics;
  MetadataServerParts parts;
  parts.service = service->get();
  parts.clock = &real_clock();
  parts.metrics = &metrics;
  parts.changes_wait = true;
  parts.reference.process = {17, 4};
  parts.reference.lease = kRest;
  const auto server = MetadataServer::create(parts);
  support::say((server ? (*server)->url() : server.status().to_string()) + '\n');
  std::promise<void>().get_future().wait();
  return 0;
}

void run_server_kills(std::uint64_t seed, int kills) { run_kills(seed, kills, kill_servers); }

}  // namespace larder::conformance
