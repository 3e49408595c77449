// SPDX-License-Identifier: Apache-2.0
#include "sim/world/real_last_words.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>

// There in builds with a sanitizer only.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());  // NOLINT: their name

namespace larder::sim {
namespace {

constexpr std::array kSignals = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGTERM};
constexpr std::size_t kMostBytes = 500;

// Written between worlds, read by the handler in the same thread, or in one that ends the process.
char words[kMostBytes];
std::atomic<std::size_t> words_size{0};

std::array<struct sigaction, kSignals.size()> before{};

void say() {
  const std::size_t size = words_size.exchange(0);  // once
  if (size > 0) (void)!::write(STDERR_FILENO, words, size);
}

void on_signal(int signal) {
  say();
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == signal) ::sigaction(signal, &before[i], nullptr);
  }
  // Blocked in here, and comes when this returns. A fault comes again by itself, and a sanitizer then sees where.
  if (signal == SIGABRT || signal == SIGINT || signal == SIGTERM) ::raise(signal);
}

}  // namespace

LastWords::LastWords() {
  decltype(before)::value_type action{};
  action.sa_handler = on_signal;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &before[i]);
    if (before[i].sa_handler == SIG_IGN) ::sigaction(kSignals[i], &before[i], nullptr);  // it ends nothing
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say);
}

LastWords::~LastWords() {
  words_size = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
}

void LastWords::set(std::string_view text) {
  words_size = 0;
  const std::size_t size = std::min(text.size(), kMostBytes);
  std::copy_n(text.data(), size, words);
  words_size = size;
}

}  // namespace larder::sim
