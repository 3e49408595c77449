// SPDX-License-Identifier: Apache-2.0
// A simulated run as text: what the world is made of, then what happens in it, a line each.
//
//   world model=full_swa_mamba ranks=2 storage=file write=write_through prefetch=timeout seed=7
//   begin history=0 keep=0 more=24 words=3 new=8 tenant=0      # a request; its prompt follows from the numbers
//                                                              # (keep: so much of an earlier one; 1000: all of it)
//   move job=0 chunk=16 leave=0                                # the engine takes one step of it
//   time us=20000
//   crash
//
// Numbers are taken modulo what there is (job=7 of three running requests is the second), so that a story stays one
// when lines are left out: that is how a failing run is shrunk. '#' starts a comment; empty lines are skipped; an
// argument that is left out is 0. A story replays exactly: all chance comes from the numbers in it.
//
// Threads: values; no shared state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/status.h"

namespace larder::sim {

enum class Verb : std::uint8_t {
  kBegin,         // a request; continues an earlier conversation if keep > 0
  kMove,          // start it, or one engine step of it
  kAbort,         // the client goes away
  kRetract,       // the engine sets a running request aside
  kFork,          // the engine answers a prompt twice from here on
  kCancel,        // the engine gives up an open step of a request, and with it those after it
  kTime,          // simulated time passes; then every rank polls once
  kFlush,         // an operator empties device and host
  kExplain,       // an operator asks
  kDetach,        // an operator takes the storage away
  kAttach,        // ... gives a new one, over the same files; a switch if one is there
  kClear,         // ... empties the storage
  kPolicies,      // ... changes when to write and how long to wait
  kFileFault,     // the n-th file operation of a rank's disk fails
  kRot,           // bits in a file of a rank flip
  kCopyFault,     // the n-th copy of one direction fails, on every rank or on one; or so many in a row
  kStoragePlan,   // how often a rank's storage refuses, hangs, fails, answers in part: percentages
  kStorageFault,  // the n-th operation of a rank's storage is refused, hangs, fails, or fails in part
  kServiceFault,  // the n-th call of a rank to a remote metadata service is lost, or its answer, or it comes twice, or
                  // late; or the service has forgotten everything
  kPostFault,    // a rank's executor refuses the n-th task: a copy, a page of hf3fs, whatever is done in the background
  kJournalMood,  // from now on the journal of the metadata service is well, refuses, or does but denies it
  kServiceCrash,  // the machine of a remote metadata service loses power; its journal keeps a part of what was unsynced
  kReleaseHung,   // what hung in the storage goes on
  kRestart,       // the process ends in order, and starts again
  kCrash,         // the power goes, and comes back
  kPart,          // a rank gives its group up: all ranks end, and start again
  kExpect,        // so much must have happened by now, or the story does not show what it tells; never drawn
};
inline constexpr std::size_t kVerbCount = 27;
inline constexpr std::size_t kMaxArguments = 8;

struct VerbInfo {
  std::string_view name;
  std::array<std::string_view, kMaxArguments> arguments;  // empty: no more
};
[[nodiscard]] const VerbInfo& info_of(Verb verb);

struct Event {
  Verb verb = Verb::kTime;
  std::array<std::uint64_t, kMaxArguments> arguments{};
};

// What there is. Drawn from a seed, or written down.
struct WorldSpec {
  std::string model = "full";      // a small shape (small_model_names()), or a tiny preset
  std::string storage = "file";    // memory | file | hf3fs
  std::string service = "inside";  // of hf3fs; remote: behind a line, and all ranks write into the same files
  std::string door = "cache";      // cache; connector: the engine keeps the books of its memory
  std::string write = "write_through", prefetch = "timeout", layout = "page_first", eviction = "lru";
  std::string tenants = "equal";    // bounded: floors and ceilings (CacheConfig::tenant_limits)
  std::string tiers = "inclusive";  // exclusive: CacheConfig::exclusive_tiers
  std::string without = "nothing";  // a control run: without host_states, host_full (those on the host), or any cache
  std::string listeners = "all";    // to events of pages: all ranks have one, the first, or none
  std::uint64_t seed = 1;           // of delays, faults and contents
  std::uint64_t journal = 0;        // 1: the metadata service has one; inside, it dies and comes back with the process
  std::uint64_t ranks = 1;
  std::uint64_t device_pages = 64, device_states = 16;  // slots: full and window; recurrent state
  std::uint64_t host_pages = 128;
  std::uint64_t prompt_pages = 25;              // a prompt has at most
  std::uint64_t disk_kib = 64;                  // what a rank's storage may take
  std::uint64_t operations = 32;                // in flight at most
  std::uint64_t namespaces = 65536;             // adapters and salts at most
  std::uint64_t requests = 1024;                // at most, with those that are over and have open steps
  std::uint64_t least_us = 10, most_us = 3000;  // a background task takes
  std::uint64_t service_us = 0;                 // a message to or from a remote service takes at most
  std::uint64_t ahead = 0;                      // steps that the engine has open beyond the oldest, drafts in them
  std::uint64_t headroom = 256;                 // tokens that a start reserves for output
  std::uint64_t odd = 0;                        // 1: settings of the cache that few would choose, drawn from the seed
  std::uint64_t trouble = 100;  // percent of what goes wrong, and of what operators do; for draw_event()
};

struct Story {
  WorldSpec world;
  std::vector<Event> events;
};

// What every world must have; empty: as drawn. What else is drawn suits it.
struct WorldWishes {
  std::string model = {}, storage = {}, door = {};
};

// Everything of it follows from the seed and the wishes.
[[nodiscard]] WorldSpec draw_world(std::uint64_t seed, const WorldWishes& wishes = {});
[[nodiscard]] Event draw_event(Rng& rng, const WorldSpec& world);

// kInvalidArgument: a text that is none of the known words, or a number out of its range.
[[nodiscard]] Status check_world(const WorldSpec& world);

[[nodiscard]] std::string to_text(const WorldSpec& world);
[[nodiscard]] std::string to_text(const Event& event);
[[nodiscard]] std::string to_text(const Story& story);
// kInvalidArgument says which line, which word, and what is known.
[[nodiscard]] Result<Story> parse_story(std::string_view text);

}  // namespace larder::sim
