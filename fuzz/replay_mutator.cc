// SPDX-License-Identifier: Apache-2.0
#include "fuzz/replay_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace larder::fuzz {

Bytes Mutator::next() {
  Bytes bytes = any_file();
  for (std::uint64_t left = std::uint64_t{1} << rng_.below(4); left > 0; --left) change(bytes);
  if (bytes.size() > kMaxInputBytes) bytes.resize(kMaxInputBytes);
  return bytes;
}

const Bytes& Mutator::any_file() {
  static const Bytes kEmpty;
  return corpus_.empty() ? kEmpty : corpus_[static_cast<std::size_t>(rng_.below(corpus_.size()))];
}

void Mutator::change(Bytes& bytes) {
  const auto at = static_cast<std::ptrdiff_t>(rng_.below(bytes.size() + 1));
  const auto has_byte = static_cast<std::size_t>(at) < bytes.size();
  switch (rng_.below(8)) {
    case 0:
      if (has_byte) bytes[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1u << rng_.below(8));
      return;
    case 1:
      if (has_byte) bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(rng_.below(256));
      return;
    case 2: set_number(bytes); return;
    case 3: bytes.resize(static_cast<std::size_t>(at)); return;
    case 4: {
      Bytes added(static_cast<std::size_t>(1 + rng_.below(16)));
      for (std::uint8_t& byte : added) byte = static_cast<std::uint8_t>(rng_.below(256));
      bytes.insert(bytes.begin() + at, added.begin(), added.end());
      return;
    }
    case 5:
    case 6: move_block(bytes); return;
    default: splice(bytes); return;
  }
}

// Lengths, counts and offsets are where decoders go wrong: their limits, and neighbours of what is there.
void Mutator::set_number(Bytes& bytes) {
  static constexpr std::array<std::uint64_t, 12> kNumbers = {
      0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~std::uint64_t{0}, 4096, 65536};
  const std::size_t width = std::size_t{1} << rng_.below(4);
  if (bytes.size() < width) return;
  const auto at = static_cast<std::size_t>(rng_.below(bytes.size() - width + 1));
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, width);
  value =
      rng_.chance(1, 2) ? kNumbers[static_cast<std::size_t>(rng_.below(kNumbers.size()))] : value + rng_.below(9) - 4;
  std::memcpy(bytes.data() + at, &value, width);
}

// Takes a block out, doubles it, or puts it somewhere else.
void Mutator::move_block(Bytes& bytes) {
  if (bytes.empty()) return;
  const auto begin = static_cast<std::ptrdiff_t>(rng_.below(bytes.size()));
  const auto length = static_cast<std::ptrdiff_t>(
      1 + rng_.below(std::min<std::uint64_t>(256, bytes.size() - static_cast<std::size_t>(begin))));
  const Bytes block(bytes.begin() + begin, bytes.begin() + begin + length);
  const std::uint64_t what = rng_.below(3);
  if (what != 1) bytes.erase(bytes.begin() + begin, bytes.begin() + begin + length);
  if (what == 0) return;
  const auto to = static_cast<std::ptrdiff_t>(rng_.below(bytes.size() + 1));
  bytes.insert(bytes.begin() + to, block.begin(), block.end());
}

// The front of one file and the end of another.
void Mutator::splice(Bytes& bytes) {
  const Bytes& other = any_file();
  const auto cut = static_cast<std::size_t>(rng_.below(bytes.size() + 1));
  const auto from = static_cast<std::ptrdiff_t>(rng_.below(other.size() + 1));
  bytes.resize(cut);
  bytes.insert(bytes.end(), other.begin() + from, other.end());
}

}  // namespace larder::fuzz
