#include "tests/metadata/crash_rounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <utility>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "tests/metadata/embedded_harness.h"
#include "tests/support/real_killed_process.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

constexpr std::uint64_t kKeys = 160, kThreads = 3, kSmallPages = 24, kBigPages = 2 * kKeys;
constexpr int kKillsPerDirectory = 10;
const MetadataNamespace kBig{0, "big"}, kSmall{0, "small"};

std::string key_name(std::uint64_t key) { return "key" + std::to_string(key); }

Result<std::unique_ptr<EmbeddedMetadata>> open_service(const std::string& directory, Clock& clock, Nanos rest) {
  auto journal = metadata::open_rocksdb_journal(directory);
  if (!journal) return journal.status();
  EmbeddedMetadataOptions options;
  options.max_lease = options.max_io_lifetime = rest;
  auto service = EmbeddedMetadata::create(options, clock, std::move(*journal));
  if (!service) return service;
  for (const auto& [space, pages] : {std::pair(&kBig, kBigPages), std::pair(&kSmall, kSmallPages)}) {
    const auto given = (*service)->initialize(*space, pages);
    if (!given) return given.status();
  }
  return service;
}

// One thread of the child.
class Client {
 public:
  Client(MetadataService& service, std::uint64_t number, std::uint64_t seed)
      : service_(service), number_(number), rng_(seed * kThreads + number) {}

  void run_for_ever() {
    for (;;) {
      rng_.chance(1, 6) ? remove() : store();
    }
  }

 private:
  std::string any_key() { return key_name(rng_.below(kKeys / kThreads) * kThreads + number_); }

  void store() {
    const std::string key = any_key(), parent = key_name(rng_.below(kKeys));
    const MetadataSession session{{number_, rng_.next_u64()}, 1};
    const std::vector<ReserveItems> wanted{{&kBig, {{key, parent}}}, {&kSmall, {{key, parent}}}};
    const auto reserved = service_.reserve(session, wanted, std::chrono::seconds(1));
    if (!reserved) return;
    ConfirmRequest request{session, {{}}, {}, rng_.chance(1, 8)};
    std::string said, confirmed_text;
    for (std::size_t i = 0; i < 2; ++i) {
      const Reserved& page = reserved->at(i).at(0);
      if (page.outcome != ReserveOutcome::kReserved) continue;
      request.groups[0].push_back({i == 0 ? &kBig : &kSmall, key, page.ref});
      const std::string rest =
          fmt::format(" {} {} {} {}\n", i == 0 ? 'b' : 's', key, page.ref.page, page.ref.generation);
      said += "V" + rest;
      confirmed_text += "C" + rest;
    }
    if (said.empty()) return;
    support::say(said);
    if (rng_.chance(1, 20)) return;  // never confirmed
    const auto confirmed = service_.confirm(request);
    if (confirmed && confirmed->at(0).is_ok()) support::say(confirmed_text);
  }

  void remove() {
    const std::string key = any_key();
    const std::vector<ConfirmItem> items{{&kBig, key, {}}};
    support::say("X " + key + "\n");
    if (service_.remove(items).is_ok()) support::say("x " + key + "\n");
  }

  MetadataService& service_;
  const std::uint64_t number_;
  Rng rng_;
};

// What the children of one directory were promised.
class Promises {
 public:
  void read(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) read_line(line);
  }

  void verify(EmbeddedMetadata& service, ManualClock& clock) {
    const Status status = service.check();
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    verify_keys(service, kBig, 'b');
    verify_keys(service, kSmall, 's');
    clock.advance(std::chrono::hours(1));
    for (const MetadataNamespace& space : {kBig, kSmall}) {
      const NamespaceStats stats = Talker(service, space).stats();
      EXPECT_EQ(stats.free + stats.stored, stats.pages) << "everything is usable again";
      const auto next = Talker(service, space).reserve(session_of(9), {"next"});
      EXPECT_EQ(outcomes(next), "R");
      EXPECT_GT(next[0].ref.generation, last_generation_[space == kBig ? 'b' : 's']) << "a generation came again";
      Talker(service, space).release(session_of(9), {"next"}, next);
    }
  }
  [[nodiscard]] std::uint64_t confirmed() const { return confirmed_; }

 private:
  struct Owner {
    std::string key;
    std::uint64_t generation = 0;
  };
  enum class Fate : std::uint8_t { kUnknown, kStored, kRemoved };
  struct Known {
    Fate fate = Fate::kUnknown;
    PageRef ref;
  };

  void read_line(const std::string& line) {
    std::istringstream words(line);
    char kind = 0, space = 'b';
    std::string key;
    PageRef ref;
    words >> kind;
    if (kind == 'V' || kind == 'C') words >> space;
    words >> key;
    if (kind == 'V' || kind == 'C') words >> ref.page >> ref.generation;
    Known& known = known_[{space, key}];
    if (kind == 'V') {
      Owner& owner = owners_[{space, ref.page}];
      if (ref.generation > owner.generation) owner = {key, ref.generation};
      last_generation_[space] = std::max(last_generation_[space], ref.generation);
      known = {Fate::kUnknown, ref};
    } else if (kind == 'C') {
      known = {Fate::kStored, ref};
      ++confirmed_;
    } else {
      known.fate = kind == 'x' ? Fate::kRemoved : Fate::kUnknown;
    }
  }

  void verify_keys(EmbeddedMetadata& service, const MetadataNamespace& space, char letter) {
    for (std::uint64_t number = 0; number < kKeys; ++number) {
      const std::string key = key_name(number);
      const auto found = Talker(service, space).find({key})[0];
      const Known& known = known_[{letter, key}];
      if (found) {
        const Owner& owner = owners_[{letter, found->page}];
        EXPECT_EQ(owner.key, key) << "page " << found->page << " is another key's";
        EXPECT_EQ(owner.generation, found->generation) << key;
        EXPECT_NE(known.fate, Fate::kRemoved) << key << " came back";
      }
      if (letter == 'b' && known.fate == Fate::kStored) {
        EXPECT_EQ(found, known.ref) << key << " was confirmed";
      }
    }
  }

  std::map<std::pair<char, std::uint64_t>, Owner> owners_;  // by space and page: the last it was given to
  std::map<std::pair<char, std::string>, Known> known_;
  std::map<char, std::uint64_t> last_generation_;
  std::uint64_t confirmed_ = 0;
};

}  // namespace

int run_crash_child(const std::string& directory, std::uint64_t seed) {
  auto service = open_service(directory, real_clock(), std::chrono::milliseconds(1));
  if (!service) {
    support::say("E " + service.status().to_string() + "\n");
    return 1;
  }
  std::vector<std::unique_ptr<Client>> clients;
  ThreadPoolExecutor threads("clients", kThreads, kThreads);
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    clients.push_back(std::make_unique<Client>(**service, i, seed));
    if (!threads.post([client = clients.back().get()] { client->run_for_ever(); }).is_ok()) return 1;
  }
  threads.wait_idle();
  return 0;
}

void run_crash_rounds(std::uint64_t seed, int kills) {
  Rng rng(seed);
  std::uint64_t confirmed = 0;
  for (int kill = 0; kill < kills;) {
    support::TemporaryDirectory directory;
    Promises promises;
    for (int i = 0; i < kKillsPerDirectory && kill < kills; ++i, ++kill) {
      support::KilledProcess child;
      ASSERT_TRUE(
          child.start({"metadata_crash", kCrashChild, directory.path(), std::to_string(rng.next_u64())}).is_ok());
      child.read_lines(1 + rng.below(rng.chance(1, 4) ? 10 : 1500), std::chrono::seconds(30));
      const Status killed = child.kill();
      ASSERT_TRUE(killed.is_ok()) << killed.to_string() << "\n" << (child.lines().empty() ? "" : child.lines().back());
      promises.read(child.lines());
      ManualClock clock;
      auto service = open_service(directory.path(), clock, kMaxLease);
      ASSERT_TRUE(service.is_ok()) << service.status().to_string();
      promises.verify(**service, clock);
      ASSERT_FALSE(testing::Test::HasFailure()) << "kill " << kill << "; replay: LARDER_TEST_SEED=" << seed;
    }
    confirmed += promises.confirmed();
  }
  EXPECT_GT(confirmed, static_cast<std::uint64_t>(kills) * 10) << "too little load to show anything";
}

}  // namespace larder::conformance
