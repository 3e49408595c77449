// SPDX-License-Identifier: Apache-2.0
#include "sim/world/story.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "sim/sim_file_system.h"
#include "sim/world/service_line.h"
#include "sim/world/small_models.h"

namespace larder::sim {
namespace {

constexpr std::array<VerbInfo, kVerbCount> kVerbs = {{
    {"begin", {"history", "keep", "more", "words", "new", "tenant", "priority", "returns"}},
    {"move", {"job", "chunk", "leave"}},
    {"abort", {"job"}},
    {"retract", {"job"}},
    {"fork", {"job"}},
    {"cancel", {"job", "step", "how"}},
    {"time", {"us"}},
    {"flush", {}},
    {"explain", {"history", "keep"}},
    {"detach", {}},
    {"attach", {}},
    {"clear", {}},
    {"policies", {"prefetch", "write"}},
    {"file-fault", {"rank", "after", "count", "kind"}},
    {"rot", {"rank", "file", "offset", "bit"}},
    {"copy-fault", {"direction", "after", "only", "count"}},
    {"storage-plan", {"rank", "refuse", "hang", "fail", "partial"}},
    {"storage-fault", {"rank", "after", "kind"}},
    {"service-fault", {"rank", "after", "count", "kind"}},
    {"post-fault", {"rank", "after", "count"}},
    {"journal", {"mood"}},
    {"service-crash", {"kept"}},
    {"release-hung", {}},
    {"restart", {}},
    {"crash", {"kept"}},
    {"part", {"rank"}},
    {"expect", {"finished", "device", "host", "storage", "corrupt", "struck", "left", "starved"}},
}};

// How often each verb is drawn, of 1000; the rest is "move".
struct Weight {
  Verb verb;
  unsigned permille;
};
constexpr Weight kWeights[] = {
    {Verb::kBegin, 110},      {Verb::kTime, 330},       {Verb::kAbort, 12},    {Verb::kFlush, 25},
    {Verb::kExplain, 5},      {Verb::kDetach, 4},       {Verb::kAttach, 8},    {Verb::kClear, 3},
    {Verb::kPolicies, 5},     {Verb::kFileFault, 6},    {Verb::kRot, 4},       {Verb::kCopyFault, 4},
    {Verb::kStoragePlan, 5},  {Verb::kReleaseHung, 6},  {Verb::kRestart, 4},   {Verb::kCrash, 4},
    {Verb::kStorageFault, 3}, {Verb::kServiceFault, 4}, {Verb::kPostFault, 4}, {Verb::kJournalMood, 4},
    {Verb::kServiceCrash, 3}, {Verb::kRetract, 6},      {Verb::kFork, 12},     {Verb::kCancel, 12},
    {Verb::kPart, 2},
};

// What a calm world has less of.
bool is_trouble(Verb verb) {
  switch (verb) {
    case Verb::kBegin:
    case Verb::kMove:
    case Verb::kTime:
    case Verb::kExplain:
    case Verb::kRetract:
    case Verb::kFork:
    case Verb::kCancel:
    case Verb::kReleaseHung: return false;
    default: return true;
  }
}

struct Setting {
  std::string_view name;
  std::string WorldSpec::*text = nullptr;
  std::uint64_t WorldSpec::*number = nullptr;
  std::string_view words = {};  // of a text: those allowed, a space between them
};
constexpr Setting kSettings[] = {
    {"model", &WorldSpec::model, nullptr},  // simulated_model() knows them
    {"storage", &WorldSpec::storage, nullptr, "memory file hf3fs"},
    {"service", &WorldSpec::service, nullptr, "inside remote"},
    {"door", &WorldSpec::door, nullptr, "cache connector"},
    {"write", &WorldSpec::write, nullptr, "write_through write_through_selective write_back"},
    {"prefetch", &WorldSpec::prefetch, nullptr, "best_effort wait_complete timeout"},
    {"layout", &WorldSpec::layout, nullptr, "page_first page_first_direct page_head layer_first"},
    {"eviction", &WorldSpec::eviction, nullptr, "lru lfu slru fifo mru filo priority value"},
    {"tiers", &WorldSpec::tiers, nullptr, "inclusive exclusive"},
    {"tenants", &WorldSpec::tenants, nullptr, "equal bounded"},
    {"without", &WorldSpec::without, nullptr, "nothing host_states host_full cache"},
    {"listeners", &WorldSpec::listeners, nullptr, "all first none"},
    {"seed", nullptr, &WorldSpec::seed},
    {"journal", nullptr, &WorldSpec::journal},
    {"ranks", nullptr, &WorldSpec::ranks},
    {"device-pages", nullptr, &WorldSpec::device_pages},
    {"device-states", nullptr, &WorldSpec::device_states},
    {"host-pages", nullptr, &WorldSpec::host_pages},
    {"prompt-pages", nullptr, &WorldSpec::prompt_pages},
    {"disk-kib", nullptr, &WorldSpec::disk_kib},
    {"operations", nullptr, &WorldSpec::operations},
    {"namespaces", nullptr, &WorldSpec::namespaces},
    {"requests", nullptr, &WorldSpec::requests},
    {"least-us", nullptr, &WorldSpec::least_us},
    {"most-us", nullptr, &WorldSpec::most_us},
    {"service-us", nullptr, &WorldSpec::service_us},
    {"ahead", nullptr, &WorldSpec::ahead},
    {"headroom", nullptr, &WorldSpec::headroom},
    {"odd", nullptr, &WorldSpec::odd},
    {"trouble", nullptr, &WorldSpec::trouble},
};

template <class Item, std::size_t kCount>
const std::string& pick(Rng& rng, const std::array<Item, kCount>& from) {
  return from[rng.below(kCount)];
}

Status at_line(std::size_t line, const std::string& what) {
  return invalid_argument("story, line " + std::to_string(line) + ": " + what);
}

Status parse_number(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size()) return Status::ok();
  return invalid_argument("'" + std::string(text) + "' is not a whole number");
}

Status check_text(const Setting& setting, const std::string& value) {
  if (setting.words.empty()) return simulated_model(value).status();
  const std::string among = " " + std::string(setting.words) + " ";
  if (value.find(' ') == std::string::npos && among.find(" " + value + " ") != std::string::npos) return Status::ok();
  return invalid_argument("'" + std::string(setting.name) + "=" + value + "' is not one of " +
                          std::string(setting.words));
}

Status set_world(WorldSpec& world, std::string_view name, std::string_view value) {
  for (const Setting& setting : kSettings) {
    if (setting.name != name) continue;
    if (setting.number != nullptr) return parse_number(value, world.*setting.number);
    world.*setting.text = std::string(value);
    return check_text(setting, world.*setting.text);
  }
  std::string known;
  for (const Setting& setting : kSettings) known += " " + std::string(setting.name);
  return invalid_argument("a world has no '" + std::string(name) + "'; it has" + known);
}

Status set_argument(Event& event, std::string_view name, std::string_view value) {
  const VerbInfo& info = info_of(event.verb);
  for (std::size_t i = 0; i < kMaxArguments; ++i) {
    if (!name.empty() && info.arguments[i] == name) return parse_number(value, event.arguments[i]);
  }
  return invalid_argument("'" + std::string(info.name) + "' has no '" + std::string(name) + "'");
}

// The verb of the line, or an error that lists them.
Result<Verb> parse_verb(const std::string& word) {
  std::string known = "world";
  for (std::size_t i = 0; i < kVerbCount; ++i) {
    if (kVerbs[i].name == word) return static_cast<Verb>(i);
    known += ", " + std::string(kVerbs[i].name);
  }
  return invalid_argument("'" + word + "' is not one of " + known);
}

Status parse_line(const std::string& line, Story& story) {
  std::istringstream words(line);
  std::string word;
  if (!(words >> word)) return Status::ok();
  const bool is_world = word == "world";
  Event event;
  if (!is_world) {
    const Result<Verb> verb = parse_verb(word);
    if (!verb.is_ok()) return verb.status();
    event.verb = *verb;
  }
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return invalid_argument("NAME=VALUE is expected, not '" + word + "'");
    const std::string_view name = std::string_view(word).substr(0, equals);
    const std::string_view value = std::string_view(word).substr(equals + 1);
    LARDER_RETURN_IF_ERROR(is_world ? set_world(story.world, name, value) : set_argument(event, name, value));
  }
  if (!is_world) story.events.push_back(event);
  return Status::ok();
}

}  // namespace

const VerbInfo& info_of(Verb verb) { return kVerbs[static_cast<std::size_t>(verb)]; }

Status check_world(const WorldSpec& world) {
  constexpr std::uint64_t kMostRanks = 8, kMostServiceUs = 60'000'000, kMostPromptPages = 1000;
  constexpr std::uint64_t kMostAhead = 7, kMostHeadroom = 1'000'000;
  for (const Setting& setting : kSettings) {
    if (setting.text == nullptr) continue;
    if (const Status fits = check_text(setting, world.*setting.text); !fits.is_ok()) {
      return invalid_argument("world: " + fits.message());
    }
  }
  if (world.ranks == 0 || world.ranks > kMostRanks) return invalid_argument("world: ranks: 1 to 8");
  if (world.prompt_pages == 0 || world.prompt_pages > kMostPromptPages) {
    return invalid_argument("world: prompt-pages: 1 to " + std::to_string(kMostPromptPages));
  }
  if (world.ahead > kMostAhead) return invalid_argument("world: ahead: 0 to " + std::to_string(kMostAhead));
  if (world.headroom == 0 || world.headroom > kMostHeadroom) {
    return invalid_argument("world: headroom: 1 to " + std::to_string(kMostHeadroom));
  }
  if (world.namespaces == 0 || world.requests == 0) return invalid_argument("world: namespaces, requests: 1 or more");
  if (world.journal > 1 || world.odd > 1) return invalid_argument("world: journal, odd: 0 or 1");
  if (world.service_us > kMostServiceUs) {
    return invalid_argument("world: service-us: at most " + std::to_string(kMostServiceUs));
  }
  return Status::ok();
}

namespace {

// The larger pages of the presets take most of a simulation's time; the small models have the same kinds of pools.
std::string draw_model(Rng& rng) {
  const std::vector<std::string> small = small_model_names(), tiny = tiny_model_names();
  return rng.below(3) > 0 ? small[rng.below(small.size())] : tiny[rng.below(tiny.size())];
}

// Little of everything that states need, many steps ahead, pages of one token.
void make_odd(Rng& rng, WorldSpec& world) {
  world.odd = 1;
  world.device_states = 3 + rng.below(15);
  world.host_pages = 10 + rng.below(rng.below(2) == 0 ? 20 : 100);
  world.ahead = 1 + rng.below(6);
  if (rng.below(2) == 0) world.eviction = "value";
  if (rng.below(2) == 0) world.write = "write_through_selective";
  const std::vector<std::string> small = small_model_names();
  if (rng.below(2) == 0) world.model = small[rng.below(small.size())] + (rng.below(2) == 0 ? ".1" : "");
}

}  // namespace

WorldSpec draw_world(std::uint64_t seed, const WorldWishes& wishes) {
  static const std::array<std::string, 4> kWrites = {"write_through", "write_through", "write_through_selective",
                                                     "write_back"};
  static const std::array<std::string, 5> kPrefetches = {"best_effort", "wait_complete", "wait_complete", "timeout",
                                                         "timeout"};
  static const std::array<std::string, 4> kLayouts = {"page_first", "page_first_direct", "layer_first", "page_head"};
  static const std::array<std::string, 8> kEvictions = {"lru", "lfu",  "slru",     "fifo",
                                                        "mru", "filo", "priority", "value"};
  static const std::array<std::string, 4> kStorages = {"file", "file", "hf3fs", "memory"};
  Rng rng(seed * 0x9e3779b97f4a7c15ull + 1);
  WorldSpec world;
  world.seed = seed;
  world.model = draw_model(rng);
  world.storage = pick(rng, kStorages);
  if (!wishes.storage.empty()) world.storage = wishes.storage;
  world.write = pick(rng, kWrites);
  world.prefetch = pick(rng, kPrefetches);
  world.layout = pick(rng, kLayouts);
  world.eviction = pick(rng, kEvictions);
  world.ranks = std::array<std::uint64_t, 4>{1, 1, 1, rng.below(4) == 0 ? 3 + rng.below(6) : 2}[rng.below(4)];
  world.device_pages = 48 + rng.below(32);
  world.device_states = 8 + rng.below(10);
  world.host_pages = 24 + rng.below(rng.below(2) == 0 ? 40 : 160);
  world.disk_kib = rng.below(3) == 0 ? 192 : 1024;
  world.operations = 8 + rng.below(64);
  world.most_us = 200 + rng.below(6000);
  world.trouble = std::array<std::uint64_t, 4>{0, 10, 40, 100}[rng.below(4)];
  if (world.storage == "hf3fs" && rng.below(2) == 0) world.service = "remote";
  if (world.storage == "hf3fs") world.journal = rng.below(2);
  if (rng.below(16) == 0) world.prompt_pages = 100, world.device_pages += 100;
  if (world.service == "remote") {
    world.service_us = std::array<std::uint64_t, 4>{0, 500, 30'000, 1'500'000}[rng.below(4)];
  }
  world.ahead = rng.below(2) == 0 ? 0 : 1 + rng.below(2);
  if (rng.below(2) == 0) world.headroom = 1 + rng.below(16);
  if (rng.below(5) == 0) world.door = "connector";
  if (!wishes.door.empty()) world.door = wishes.door;
  if (rng.below(3) == 0) world.tiers = "exclusive";
  if (rng.below(3) == 0) world.tenants = "bounded";
  world.listeners = std::array<std::string, 4>{"all", "all", "first", "none"}[rng.below(4)];
  if (!wishes.model.empty()) world.model = wishes.model;
  if (world.door == "connector") return world;
  if (rng.below(4) == 0) world.namespaces = 2 + rng.below(4);
  if (rng.below(8) == 0) world.requests = 3 + rng.below(4);
  if (rng.below(12) == 0) world.without = std::array<std::string, 3>{"host_states", "host_full", "cache"}[rng.below(3)];
  if (rng.below(4) == 0) make_odd(rng, world);
  if (!wishes.model.empty()) world.model = wishes.model;
  return world;
}

Event draw_event(Rng& rng, const WorldSpec& world) {
  Event event;
  event.verb = Verb::kMove;
  std::uint64_t at = rng.below(1000);
  for (const Weight& weight : kWeights) {
    if (at < weight.permille) {
      event.verb = weight.verb;
      break;
    }
    at -= weight.permille;
  }
  const bool is_own = event.verb == Verb::kFork || event.verb == Verb::kCancel || event.verb == Verb::kPart;
  const bool has_cache = world.door == "cache";
  if (is_own && !has_cache) event.verb = Verb::kMove;
  if (is_trouble(event.verb) && rng.below(100) >= world.trouble) event.verb = Verb::kMove;
  auto& a = event.arguments;
  switch (event.verb) {
    case Verb::kBegin:
      // A new conversation, one that goes on where it ended, or one that is continued differently from somewhere.
      a = {rng.below(64),     std::array<std::uint64_t, 4>{0, 1000, 1000, 1 + rng.below(100)}[rng.below(4)],
           1 + rng.below(30), rng.below(rng.below(3) == 0 ? 6 : 40),
           rng.below(20),     rng.below(5) == 0 ? 1 : std::uint64_t{0}};
      if (a[5] > 0 || (world.namespaces < 8 && rng.below(2) == 0)) a[5] = 1 + rng.below(6);
      if (!has_cache) break;
      a[6] = rng.below(4) == 0 ? rng.below(3) : 0;
      a[7] = rng.below(3);
      break;
    case Verb::kMove: a = {rng.below(64), 1 + rng.below(16), rng.below(8) == 0 ? rng.below(4) : 0}; break;
    case Verb::kTime:
      a[0] = rng.below(12) == 0 ? rng.below(2'000'000) : rng.below(8000);
      // The machine slept, or the process was stopped: every deadline and lease is over at once.
      if (rng.below(400) == 0) a[0] = rng.below(7'200) * 1'000'000;
      break;
    case Verb::kFileFault:
      a = {rng.below(world.ranks), 1 + rng.below(40), 1 + rng.below(6), rng.below(kFileFaultCount)};
      break;
    case Verb::kCopyFault:
      a = {rng.below(has_cache ? 3 : 2), 1 + rng.below(8), rng.below(2) == 0 ? 0 : 1 + rng.below(world.ranks)};
      if (has_cache && rng.below(6) == 0) a[3] = 1 + rng.below(200);  // a device that is as good as lost
      break;
    case Verb::kPostFault: a = {rng.below(world.ranks), 1 + rng.below(40), 1 + rng.below(6)}; break;
    case Verb::kJournalMood: a[0] = std::array<std::uint64_t, 4>{0, 0, 1, 2}[rng.below(4)]; break;
    case Verb::kStorageFault: a = {rng.below(world.ranks), 1 + rng.below(20), rng.below(4)}; break;
    case Verb::kServiceFault:
      a = {rng.below(world.ranks), 1 + rng.below(20), 1 + rng.below(4), rng.below(kLineFaultCount)};
      break;
    case Verb::kStoragePlan: {
      const bool heals = rng.below(3) == 0;
      a = {rng.below(world.ranks), heals ? 0 : rng.below(10), heals ? 0 : rng.below(6), heals ? 0 : rng.below(30),
           heals ? 0 : rng.below(30)};
      break;
    }
    case Verb::kRot: a = {rng.below(world.ranks), rng.below(64), rng.below(1 << 20), rng.below(8)}; break;
    default:
      for (std::uint64_t& argument : a) argument = rng.below(64);
  }
  for (std::size_t i = 0; i < kMaxArguments; ++i) {
    if (info_of(event.verb).arguments[i].empty()) a[i] = 0;
  }
  return event;
}

std::string to_text(const WorldSpec& world) {
  std::string out = "world";
  for (const Setting& setting : kSettings) {
    out += ' ';
    out += setting.name;
    out += '=';
    out += setting.number != nullptr ? std::to_string(world.*setting.number) : world.*setting.text;
  }
  return out;
}

std::string to_text(const Event& event) {
  const VerbInfo& info = info_of(event.verb);
  std::string out(info.name);
  for (std::size_t i = 0; i < kMaxArguments && !info.arguments[i].empty(); ++i) {
    if (event.arguments[i] == 0) continue;
    out += ' ';
    out += info.arguments[i];
    out += '=' + std::to_string(event.arguments[i]);
  }
  return out;
}

std::string to_text(const Story& story) {
  std::string out = to_text(story.world) + "\n";
  for (const Event& event : story.events) out += to_text(event) + "\n";
  return out;
}

Result<Story> parse_story(std::string_view text) {
  Story story;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = text.find('\n');
    std::string one(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    one.resize(std::min(one.size(), one.find('#')));
    if (const Status parsed = parse_line(one, story); !parsed.is_ok()) return at_line(line, parsed.message());
  }
  return story;
}

}  // namespace larder::sim
