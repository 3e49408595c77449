// SPDX-License-Identifier: Apache-2.0
// Clients of a metadata service that is killed again and again: they reserve, confirm, release, remove, clear and look
// up keys of their own, and say what they were told (crash_promises.h).
//
// A call that the service did not answer is made again in the next step, with the same session.
// Threads: confined. The seed decides what they do, but for what the answers are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "storage/hf3fs/metadata_service.h"
#include "tests/metadata/crash_promises.h"

namespace larder::conformance {

// What all clients do; how they ask is their business.
class CrashLoad {
 public:
  using Say = std::function<void(const std::vector<CrashEvent>&)>;
  CrashLoad(std::uint64_t number, std::uint64_t seed, Say say);
  virtual ~CrashLoad() = default;

  // One operation, to its end. False: the service is gone.
  [[nodiscard]] bool step();
  // After that: how many pages of a namespace all reservations without an answer of this service may have taken.
  [[nodiscard]] std::uint64_t unanswered() const { return unanswered_; }

 protected:
  enum class Call : std::uint8_t { kReserve, kConfirm, kRemove, kClear, kFind, kDone };
  struct Operation {
    Call call = Call::kDone;  // the next one
    bool is_repeated = false;
    bool is_durable = false, is_abandoned = false, is_released = false, is_cleared = false;
    MetadataSession session;
    std::vector<std::string> keys;     // a chain
    std::vector<CrashEvent> reserved;  // word: kReserved
  };

  // Each makes one call and says what came of it. Not OK: nobody answered (kUnavailable), or what must not be.
  [[nodiscard]] virtual Status reserve() = 0;  // fills now_.reserved
  [[nodiscard]] virtual Status confirm() = 0;
  [[nodiscard]] virtual Status remove() = 0;
  [[nodiscard]] virtual Status clear() = 0;
  [[nodiscard]] virtual Status find() = 0;
  void begin_service() { unanswered_ = 0; }  // the next call goes to another one
  void say_all(CrashWord word, const std::vector<CrashEvent>& events);
  void wrong(const std::string& text) { say_({{CrashWord::kWrong, 'b', text, {}}}); }
  [[nodiscard]] std::vector<CrashEvent> events_of(char space, const std::vector<std::string>& keys) const;
  [[nodiscard]] std::vector<std::string> all_keys() const;

  const std::uint64_t number_;
  Rng rng_;
  const Say say_;
  Operation now_;
  std::uint64_t unanswered_ = 0;

 private:
  void begin();
  [[nodiscard]] Status call();
};

// Of the port. Where the service is may change between two steps.
class CrashClient final : public CrashLoad {
 public:
  using CrashLoad::CrashLoad;  // number < kCrashClients
  void connect(MetadataService& service) {
    service_ = &service;
    begin_service();
  }

 private:
  [[nodiscard]] Status reserve() override;
  [[nodiscard]] Status confirm() override;
  [[nodiscard]] Status remove() override;
  [[nodiscard]] Status clear() override;
  [[nodiscard]] Status find() override;
  using Wanted = std::vector<ReserveItems>;
  using Answer = std::vector<std::vector<Reserved>>;
  void reserve_again(const Wanted& wanted, const Answer& first);
  [[nodiscard]] Status look_for_halves();
  void confirmed(const Status& answer);

  MetadataService* service_ = nullptr;
};

}  // namespace larder::conformance
