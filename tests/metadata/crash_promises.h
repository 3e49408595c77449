// SPDX-License-Identifier: Apache-2.0
// What clients of a metadata service were told, and whether the service still knows it after kill -9.
//
// A killed process loses nothing that it gave to the system, so every answer counts, durable or not:
//   a confirmed key is at its page and generation, or (where pages are evicted) its page was given to another key
//   a key that was removed, cleared or never confirmed is not there
//   no page has two keys, no generation comes twice, and no page is lost
// What had been asked for and was not answered may have happened or not; what is seen after the restart is a promise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "metadata/embedded_metadata.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder::conformance {

inline constexpr std::uint64_t kCrashClients = 3, kCrashKeys = 53;  // keys of a client
inline constexpr std::uint64_t kMostItems = 3;                      // of one call

struct CrashSpace {
  char letter = 0;
  MetadataNamespace name;
  std::uint64_t pages = 0;
  bool evicts = false;  // it has fewer pages than keys
};
// "big" and "small" are those of CrashClient; "kv" that of one client of the reference's calls, which know no
// generations, and of a key's name only.
[[nodiscard]] const std::vector<CrashSpace>& crash_spaces();
[[nodiscard]] const MetadataNamespace& crash_space(char letter);
// A key is the business of one client, so the order of its events is that of what happened.
[[nodiscard]] inline std::string crash_prefix(std::uint64_t client) { return "c" + std::to_string(client) + "/"; }
[[nodiscard]] inline std::string crash_key(std::uint64_t client, std::uint64_t number) {
  return crash_prefix(client) + std::to_string(number);
}

// The service in `directory`, with its namespaces. `rest`: how long pages rest after a restart.
[[nodiscard]] Result<std::unique_ptr<EmbeddedMetadata>> open_crash_service(const std::string& directory, Clock& clock,
                                                                           Nanos rest);

enum class CrashWord : char {
  kReserved = 'V',    // the page is the key's, to be written
  kConfirming = 'T',  // the confirmation is sent
  kConfirmed = 'C',
  kRefused = 'R',   // the confirmation was refused, for this key's sake
  kWithheld = 'W',  // it was refused, for the sake of any key of its group
  kReleased = 'L',
  kForgetting = 'X',  // a removal is sent
  kForgotten = 'x',
  kFound = 'F',
  kMissed = 'N',  // asked for, and not found
  kWrong = '!',   // `key` is a text: what must not happen
};
struct CrashEvent {
  CrashWord word = CrashWord::kWrong;
  char space = 'b';
  std::string key;
  PageRef ref;
};
[[nodiscard]] std::string to_line(const CrashEvent& event);
[[nodiscard]] CrashEvent event_of(const std::string& line);

// Threads: confined. Violations are failures of the test that runs.
class CrashPromises {
 public:
  // Events of one client in order, those of several in any.
  void note(const CrashEvent& event);
  // After a restart, before the clients go on. `unanswered`: how many pages calls without an answer may have taken.
  // `let_pages_rest` lets so much time go by that no page rests any more.
  void verify(MetadataService& service, std::uint64_t unanswered, const std::function<void()>& let_pages_rest);
  [[nodiscard]] std::uint64_t confirmed() const { return confirmed_; }

 private:
  enum class Fate : std::uint8_t { kAbsent, kReserved, kMaybe, kStored };
  struct Known {
    Fate fate = Fate::kAbsent;
    PageRef ref;
  };
  struct Owner {
    std::string key;
    std::uint64_t generation = 0;
  };

  void note_reserved(const CrashEvent& event, Known& known);
  void note_found(const CrashEvent& event, Known& known);
  // How many keys are there.
  std::uint64_t verify_keys(MetadataService& service, const CrashSpace& space);
  void verify_present(const CrashSpace& space, const std::string& key, PageRef found);
  void verify_missing(const CrashSpace& space, const std::string& key);
  void verify_usable(MetadataService& service, const CrashSpace& space);

  std::map<std::pair<char, std::string>, Known> known_;
  std::map<std::pair<char, std::uint64_t>, Owner> owners_;  // by page: the last that it was given to
  std::map<char, std::uint64_t> last_generation_;
  std::uint64_t confirmed_ = 0;
  std::uint64_t unexplained_ = 0;  // evicted, and nobody was told that he has the page
};

}  // namespace larder::conformance
