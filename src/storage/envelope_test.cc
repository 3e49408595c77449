// SPDX-License-Identifier: Apache-2.0
#include "storage/envelope.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/rng.h"

namespace larder {
namespace {

// docs/formats.md, "page envelope". Made by an independent script from that text; a change is a new format version.
constexpr const char* kGolden =
    "4c415244455250470100030150d18284000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f4041424344454647"
    "48494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
    "88776655443322110d0000000000000066f05a3208bae7b72849fb42342a5e902a000000000000000000000000000000";

Digest256 ascending(std::uint8_t from) {
  Digest256 digest;
  for (auto& b : digest.bytes) b = from++;
  return digest;
}

struct Page {
  std::vector<std::byte> payload;
  ExpectedPage expected{PoolName::kIndexer, ascending(0), ascending(0x40), ascending(0x80), 13};
  EnvelopeBytes envelope{};
  [[nodiscard]] Segment segment() { return {payload.data(), payload.size()}; }
};

Page make_page() {
  Page page;
  for (const char c : std::string_view("hello, larder")) page.payload.push_back(static_cast<std::byte>(c));
  const Segment whole = page.segment();
  Envelope e;
  e.pool = PoolName::kIndexer;
  e.flags = kEnvelopeCommitMark;
  e.key = page.expected.key;
  e.namespace_digest = page.expected.namespace_digest;
  e.layout_fingerprint = page.expected.layout_fingerprint;
  e.generation = 0x1122334455667788;
  e.payload_bytes = 13;
  e.checksum = payload_checksum({&whole, 1});
  e.group = 42;
  page.envelope = encode_envelope(e);
  return page;
}

TEST(Envelope, GoldenBytes) {
  const Page page = make_page();
  EXPECT_EQ(hex_encode({reinterpret_cast<const std::uint8_t*>(page.envelope.data()), kEnvelopeBytes}), kGolden);
}

TEST(Envelope, DecodesWhatItEncodes) {
  const Page page = make_page();
  const Result<Envelope> decoded = decode_envelope(page.envelope);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->pool, PoolName::kIndexer);
  EXPECT_EQ(decoded->flags, kEnvelopeCommitMark);
  EXPECT_EQ(decoded->key, ascending(0));
  EXPECT_EQ(decoded->namespace_digest, ascending(0x40));
  EXPECT_EQ(decoded->layout_fingerprint, ascending(0x80));
  EXPECT_EQ(decoded->generation, 0x1122334455667788u);
  EXPECT_EQ(decoded->payload_bytes, 13u);
  EXPECT_EQ(decoded->group, 42u);
}

TEST(Envelope, EveryFlippedBitIsFound) {
  Page page = make_page();
  const Segment whole = page.segment();
  ASSERT_TRUE(verify_page(page.expected, page.envelope, {&whole, 1}).is_ok());
  for (std::size_t bit = 0; bit < kEnvelopeBytes * 8; ++bit) {
    EnvelopeBytes damaged = page.envelope;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_EQ(decode_envelope(damaged).status().code(), StatusCode::kCorrupt) << "bit " << bit;
  }
  for (std::size_t bit = 0; bit < page.payload.size() * 8; ++bit) {
    page.payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_EQ(verify_page(page.expected, page.envelope, {&whole, 1}).code(), StatusCode::kCorrupt) << "bit " << bit;
    page.payload[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}

TEST(Envelope, VerifyNamesTheFieldThatDiffers) {
  Page page = make_page();
  const Segment whole = page.segment();
  const auto status_of = [&](const std::function<void(ExpectedPage&)>& change) {
    ExpectedPage expected = page.expected;
    change(expected);
    return verify_page(expected, page.envelope, {&whole, 1}).to_string();
  };
  EXPECT_NE(status_of([](ExpectedPage& e) { e.pool = PoolName::kKv; }).find("pool"), std::string::npos);
  EXPECT_NE(status_of([](ExpectedPage& e) { e.key = ascending(1); }).find("page key"), std::string::npos);
  EXPECT_NE(status_of([](ExpectedPage& e) { e.namespace_digest = {}; }).find("namespace"), std::string::npos);
  EXPECT_NE(status_of([](ExpectedPage& e) { e.layout_fingerprint = {}; }).find("layout"), std::string::npos);
  EXPECT_NE(status_of([](ExpectedPage& e) { e.payload_bytes = 12; }).find("length"), std::string::npos);
  const Segment shorter{page.payload.data(), 12};
  EXPECT_EQ(verify_page(page.expected, page.envelope, {&shorter, 1}).code(), StatusCode::kCorrupt);
  EXPECT_EQ(verify_page(page.expected, std::span(page.envelope).first(159), {&whole, 1}).code(), StatusCode::kCorrupt);
}

TEST(Envelope, ChecksumDoesNotDependOnTheCuts) {
  const std::uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (const std::size_t size : {0, 1, 13, 240, 241, 1024, 70'001}) {
    std::vector<std::byte> bytes(size);
    for (auto& b : bytes) b = static_cast<std::byte>(rng.next_u64());
    const Segment whole{bytes.data(), bytes.size()};
    const Checksum128 expected = payload_checksum({&whole, 1});
    std::vector<Segment> pieces;
    PayloadHasher hasher;
    for (std::size_t at = 0; at < size;) {
      const std::size_t length = std::min<std::size_t>(rng.below(size + 1), size - at);
      pieces.push_back({bytes.data() + at, length});
      hasher.update(std::span(bytes).subspan(at, length));
      at += length;
    }
    EXPECT_EQ(payload_checksum(pieces), expected) << size;
    EXPECT_EQ(hasher.finish(), expected) << size;
  }
  EXPECT_EQ(payload_checksum({}), PayloadHasher().finish()) << "no segments: the checksum of nothing";
}

TEST(Envelope, GarbageNeverDecodes) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> garbage(rng.below(400));
    for (auto& b : garbage) b = static_cast<std::byte>(rng.next_u64());
    EXPECT_EQ(decode_envelope(garbage).status().code(), StatusCode::kCorrupt);
  }
}

}  // namespace
}  // namespace larder
