// SPDX-License-Identifier: Apache-2.0
// One call into a backend library, and what its answer means (internal to storage/plugin).
//
// Threads: confined to the thread that calls.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "storage/plugin/larder_backend.h"

namespace larder::plugin {

// The answers that make sense in a place. Any other becomes kInternal.
enum class Answers : std::uint8_t {
  kWholeCall,   // OK, or a failure
  kExistsItem,  // OK, NOT_FOUND, or a failure
  kReadItem,    // OK, NOT_FOUND, CORRUPT, or a failure
  kWriteItem,   // OK, ALREADY, or a failure
};

class PluginCall {
 public:
  // `place`: "backend library 'directory', read".
  PluginCall(std::string place, std::uint32_t flags = 0) : place_(std::move(place)) {
    abi_ = {flags, static_cast<std::uint32_t>(text_.size()), text_.data()};
  }
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

  // Runs `function(LarderBackendCall*)`; an exception out of a library becomes an answer that is not known.
  template <class Function>
  [[nodiscard]] std::int32_t run(const Function& function) {
    try {
      return function(&abi_);
    } catch (...) {  // NOLINT: a library in C++ that breaks the rule of no exceptions must not take a worker down
      return kThrew;
    }
  }
  // What `code` says in a place; the message has the library's own words.
  [[nodiscard]] Status status_of(std::int32_t code, Answers answers) const;
  // kInternal: the library broke its contract, in our words.
  [[nodiscard]] Status broken(std::string_view what) const;

 private:
  static constexpr std::int32_t kThrew = INT32_MIN;
  static constexpr std::size_t kTextBytes = 512;
  [[nodiscard]] std::string message(std::string_view what) const;

  const std::string place_;
  std::array<char, kTextBytes> text_{};
  LarderBackendCall abi_{};
};

}  // namespace larder::plugin
