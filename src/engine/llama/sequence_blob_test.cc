// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/sequence_blob.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/llama/blob_test_util.h"

namespace larder::llama {
namespace {

using blob_test::all_geometries;
using blob_test::BlobWriter;
using blob_test::Bytes;
using blob_test::NamedGeometry;

constexpr std::uint32_t kTokens = 11;

BlobGeometry geometry_named(const std::string& name) {
  for (const NamedGeometry& named : all_geometries()) {
    if (named.name == name) return named.geometry;
  }
  ADD_FAILURE() << name;
  return {};
}

void put(Bytes& bytes, std::size_t at, std::uint32_t value) { store_le(bytes.data() + at, value); }

TEST(SequenceBlob, TakesEveryShapeApart) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    for (const bool has_header : {true, false}) {
      const Bytes bytes = BlobWriter(geometry).write(kTokens, {has_header, false});
      const auto blob = parse_sequence_blob(bytes, geometry, {has_header, false});
      ASSERT_TRUE(blob) << blob.status().to_string();
      EXPECT_EQ(blob->full.has_value(), geometry.full.has_value());
      if (blob->full) {
        EXPECT_EQ(blob->full->begin, 0u);
        EXPECT_EQ(blob->full->end, kTokens);
        EXPECT_EQ(blob->full->runs.size(), 1u);
      }
      if (blob->window) {
        EXPECT_EQ(blob->window->begin, kTokens - geometry.window_tokens);
        EXPECT_EQ(blob->window->end, kTokens);
      }
      EXPECT_TRUE(!blob->recurrent || blob->recurrent->position == kTokens);
    }
  }
}

TEST(SequenceBlob, LearnsEveryGeometryFromABlob) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    const auto learned = learn_geometry(BlobWriter(geometry).write(kTokens), true, geometry.window_tokens);
    ASSERT_TRUE(learned) << learned.status().to_string();
    EXPECT_EQ(*learned, geometry) << learned->to_text();
    EXPECT_EQ(learned->to_text(), geometry.to_text());
  }
}

TEST(SequenceBlob, TextsOfGeometriesDiffer) {
  std::set<std::string> texts;
  for (const auto& [name, geometry] : all_geometries()) {
    EXPECT_TRUE(texts.insert(geometry.to_text()).second) << name << ": " << geometry.to_text();
  }
}

TEST(SequenceBlob, ASecondAttentionPartWithoutASlidingWindowIsRefused) {
  const Bytes bytes = BlobWriter(geometry_named("sliding")).write(kTokens);
  EXPECT_FALSE(learn_geometry(bytes, true, 0));
}

TEST(SequenceBlob, TakesPartialBlobsApart) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    const BlobForm form{true, true};
    const auto blob = parse_sequence_blob(BlobWriter(geometry).write(kTokens, form), geometry, form);
    ASSERT_TRUE(blob) << blob.status().to_string();
    EXPECT_EQ(blob->full.has_value(), !geometry.has_partial_form());
    EXPECT_EQ(blob->recurrent.has_value(), geometry.recurrent.has_value());
  }
}

TEST(SequenceBlob, AnEmptySequenceHasNoPositionsAndNoCheckpoint) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    const auto blob = parse_sequence_blob(BlobWriter(geometry).write(0), geometry, {});
    ASSERT_TRUE(blob) << blob.status().to_string();
    EXPECT_TRUE(!blob->full || blob->full->end == 0);
    if (blob->recurrent) {
      EXPECT_FALSE(blob->recurrent->position);
      EXPECT_EQ(blob->recurrent->bytes.size(), geometry.recurrent->empty_bytes());
    }
    EXPECT_FALSE(learn_geometry(BlobWriter(geometry).write(0), true, geometry.window_tokens));
  }
}

TEST(SequenceBlob, PutsCellsInTheOrderOfPositions) {
  const BlobGeometry geometry = geometry_named("hybrid_rope");
  const auto blob = parse_sequence_blob(BlobWriter(geometry).write({6, 7, 8, 2, 3, 5, 4}), geometry, {});
  ASSERT_TRUE(blob) << blob.status().to_string();
  EXPECT_EQ(blob->full->begin, 2u);
  EXPECT_EQ(blob->full->end, 9u);
  ASSERT_EQ(blob->full->runs.size(), 4u);
  EXPECT_EQ(blob->full->runs[0].cell, 3u);
  EXPECT_EQ(blob->full->runs[0].count, 2u);
  EXPECT_EQ(blob->full->runs[3].cell, 0u);
  EXPECT_EQ(blob->full->runs[3].count, 3u);
}

TEST(SequenceBlob, GapsAndDoublePositionsAreRefused) {
  const BlobGeometry geometry = geometry_named("dense");
  for (const auto& positions : {std::vector<std::uint32_t>{0, 1, 3}, {0, 1, 1, 2}, {5, 4, 4}}) {
    const auto blob = parse_sequence_blob(BlobWriter(geometry).write(positions), geometry, {});
    EXPECT_EQ(blob.status().code(), StatusCode::kUnsupported) << blob.status().to_string();
  }
}

TEST(SequenceBlob, WhatCannotBeCutSaysWhatToChange) {
  const BlobGeometry geometry = geometry_named("dense");
  const Bytes whole = BlobWriter(geometry).write(kTokens);
  const std::size_t layers_at = 16 + kTokens * 12;
  const struct {
    std::size_t at;
    std::uint32_t value;
    const char* text;
  } cases[] = {{8, 4, "streams"}, {layers_at, 1, "flash attention"}, {20, 2, "sequences"}, {0, 1, "begin"}};
  for (const auto& c : cases) {
    Bytes bytes = whole;
    put(bytes, c.at, c.value);
    const auto blob = parse_sequence_blob(bytes, geometry, {});
    ASSERT_FALSE(blob);
    EXPECT_NE(blob.status().message().find(c.text), std::string::npos) << blob.status().to_string();
  }
}

TEST(SequenceBlob, CellsOfImagesAreRefused) {
  const BlobGeometry geometry = geometry_named("hybrid_rope");
  Bytes bytes = BlobWriter(geometry).write(kTokens);
  put(bytes, 16 + 2 * 24 + 8, 77);  // x of cell 2
  EXPECT_EQ(parse_sequence_blob(bytes, geometry, {}).status().code(), StatusCode::kUnsupported);
}

TEST(SequenceBlob, EveryTruncationAndEveryLongerBlobIsRefused) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    Bytes bytes = BlobWriter(geometry).write(kTokens);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      ASSERT_FALSE(parse_sequence_blob(std::span(bytes).first(size), geometry, {})) << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(parse_sequence_blob(bytes, geometry, {}));
  }
}

// Which bytes llama.cpp reads over, so that other values do no harm: the sequence, in the header and in each cell, and
// the token of a cell, which is kept in the page.
bool is_harmless(const BlobGeometry& geometry, std::size_t at, const Bytes& bytes, const Bytes& changed) {
  const auto a = parse_sequence_blob(bytes, geometry, {});
  const auto b = parse_sequence_blob(changed, geometry, {});
  if (!a || !b) return false;
  const auto same = [](const std::optional<AttentionPart>& x, const std::optional<AttentionPart>& y) {
    return !x || (x->begin == y->begin && x->end == y->end && x->runs.size() == y->runs.size());
  };
  const bool is_sequence_of_header = at >= 4 && at < 8;
  const bool is_in_cells = at >= 16;
  return same(a->full, b->full) && same(a->window, b->window) && (is_sequence_of_header || is_in_cells);
}

TEST(SequenceBlob, EveryFlippedByteOfMetadataIsRefusedOrHarmless) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    BlobWriter writer(geometry);
    const Bytes bytes = writer.write(kTokens);
    std::size_t taken = 0;
    for (const std::size_t at : writer.metadata()) {
      for (const unsigned bit : {0u, 3u, 7u}) {
        Bytes changed = bytes;
        changed[at] ^= static_cast<std::byte>(1u << bit);
        const auto blob = parse_sequence_blob(changed, geometry, {});
        if (!blob) continue;
        ++taken;
        if (blob->recurrent && !(blob->recurrent->position == kTokens)) {
          // A checkpoint of another position: whoever wants it by position gets none.
          EXPECT_FALSE(check_checkpoint(blob->recurrent->bytes, *geometry.recurrent, kTokens).is_ok());
          continue;
        }
        EXPECT_TRUE(is_harmless(geometry, at, bytes, changed)) << "byte " << at << ", bit " << bit;
      }
    }
    EXPECT_LT(taken, writer.metadata().size() * 2);
  }
}

TEST(SequenceBlob, AnotherModelsBlobIsRefused) {
  const auto geometries = all_geometries();
  for (const NamedGeometry& mine : geometries) {
    const Bytes bytes = BlobWriter(mine.geometry).write(kTokens);
    for (const NamedGeometry& other : geometries) {
      if (other.name == mine.name) continue;
      EXPECT_FALSE(parse_sequence_blob(bytes, other.geometry, {})) << mine.name << " as " << other.name;
    }
  }
}

TEST(SequenceBlob, RandomBytesAreRefused) {
  const auto geometries = all_geometries();
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    Bytes bytes(rng.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(rng.chance(1, 2) ? 3 : 256));
    if (bytes.size() > 8) put(bytes, 0, kBlobMagic);
    const auto learned = learn_geometry(bytes, true, 4);
    EXPECT_TRUE(!learned || parse_sequence_blob(bytes, *learned, {}).is_ok());
    EXPECT_FALSE(parse_sequence_blob(bytes, geometries[static_cast<std::size_t>(i) % 4].geometry, {}));
  }
}

}  // namespace
}  // namespace larder::llama
