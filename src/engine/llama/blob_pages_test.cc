// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/blob_pages.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/llama/blob_test_util.h"

namespace larder::llama {
namespace {

using blob_test::all_geometries;
using blob_test::BlobWriter;
using blob_test::Bytes;
using blob_test::row_byte;

constexpr std::uint32_t kPage = 4;

std::vector<PageBytes> views_of(const std::vector<Bytes>& pages) { return {pages.begin(), pages.end()}; }

// All that is kept of a sequence of `end` tokens.
struct Kept {
  std::vector<Bytes> full, window;
  WindowPages window_kind;
  Bytes checkpoint;
};

void cut_all(const AttentionPart& part, const AttentionGeometry& geometry, std::uint32_t tokens, std::uint32_t begin,
             std::uint32_t end, std::vector<Bytes>& pages) {
  for (std::uint32_t at = begin + tokens; at <= end; at += tokens) {
    Bytes& page = pages.emplace_back(geometry.page_bytes(tokens));
    const Status status = cut_page(part, geometry, at, tokens, page);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
}

Kept keep(const BlobGeometry& geometry, const SequenceBlob& blob, std::uint32_t end) {
  Kept kept;
  if (blob.full) cut_all(*blob.full, *geometry.full, kPage, 0, end, kept.full);
  if (blob.window) {
    kept.window_kind = window_pages(kPage, geometry.window_tokens);
    const auto [tokens, pages] = kept.window_kind;
    if (pages == 1) {
      EXPECT_TRUE(cut_page(*blob.window, *geometry.window, end, tokens,
                           kept.window.emplace_back(geometry.window->page_bytes(tokens)))
                      .is_ok());
    } else {
      cut_all(*blob.window, *geometry.window, tokens, end - std::min(end, tokens * pages), end, kept.window);
    }
  }
  if (blob.recurrent) kept.checkpoint.assign(blob.recurrent->bytes.begin(), blob.recurrent->bytes.end());
  return kept;
}

BlobContents contents_of(const std::vector<PageBytes>& full, const std::vector<PageBytes>& window, const Kept& kept,
                         std::uint32_t end, BlobForm form) {
  BlobContents contents;
  contents.form = form;
  contents.sequence = 3;
  contents.end = end;
  contents.page_size = kPage;
  if (!form.is_partial) contents.full = full;
  contents.window_kind = kept.window_kind;
  contents.window = window;
  contents.checkpoint = kept.checkpoint;
  return contents;
}

Bytes compose(const BlobGeometry& geometry, const BlobContents& contents) {
  const auto size = composed_bytes(geometry, contents);
  EXPECT_TRUE(size) << size.status().to_string();
  Bytes bytes(size.value_or(0), std::byte{0xcc});
  const Status status = compose_blob(geometry, contents, bytes);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return bytes;
}

TEST(BlobPages, CutAndComposedBlobsAreTheSameBytes) {
  for (const auto& [name, geometry] : all_geometries()) {
    for (const std::uint32_t end : {4u, 8u, 16u}) {
      for (const BlobForm form : {BlobForm{true, false}, {false, false}, {true, true}}) {
        if (form.is_partial && !geometry.has_partial_form()) continue;
        SCOPED_TRACE(name + " " + std::to_string(end));
        BlobWriter writer(geometry);
        const Bytes whole = writer.write(end);
        const auto blob = parse_sequence_blob(whole, geometry, {});
        ASSERT_TRUE(blob) << blob.status().to_string();
        const Kept kept = keep(geometry, *blob, end);
        const auto full = views_of(kept.full), window = views_of(kept.window);
        EXPECT_EQ(compose(geometry, contents_of(full, window, kept, end, form)), writer.write(end, form));
      }
    }
  }
}

TEST(BlobPages, CellsInAnyOrderGiveTheSamePages) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    Rng rng(7);
    std::vector<std::uint32_t> positions(16);
    std::iota(positions.begin(), positions.end(), 0u);
    const Bytes whole = BlobWriter(geometry).write(positions);
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = positions.size(); i > 1; --i) std::swap(positions[i - 1], positions[rng.below(i)]);
      const Bytes shuffled = BlobWriter(geometry).write(positions);
      const auto blob = parse_sequence_blob(shuffled, geometry, {});
      ASSERT_TRUE(blob) << blob.status().to_string();
      const Kept kept = keep(geometry, *blob, 16);
      const auto full = views_of(kept.full), window = views_of(kept.window);
      ASSERT_EQ(compose(geometry, contents_of(full, window, kept, 16, {})), whole);
    }
  }
}

TEST(BlobPages, APageHasTheRowsOfItsLayersOneAfterTheOther) {
  const BlobGeometry geometry = all_geometries()[5].geometry;  // with extensions
  const AttentionGeometry& part = *geometry.full;
  const Bytes whole = BlobWriter(geometry).write(12);
  const auto blob = parse_sequence_blob(whole, geometry, {});
  ASSERT_TRUE(blob);
  Bytes page(part.page_bytes(kPage));
  ASSERT_TRUE(cut_page(*blob->full, part, 8, kPage, page).is_ok());
  std::size_t at = 0;
  for (std::size_t layer = 0; layer < part.keys.size(); ++layer) {
    for (const unsigned side : {1u, 2u}) {
      const std::size_t row = side == 1 ? part.keys[layer].bytes : part.values[layer].bytes;
      for (std::uint32_t token = 0; token < kPage; ++token) {
        for (std::size_t i = 0; i < row; ++i) ASSERT_EQ(page[at++], row_byte(side, layer, 4 + token, i));
      }
    }
  }
  for (std::uint32_t token = 0; token < kPage; ++token) {
    EXPECT_EQ(load_le<std::uint32_t>(page.data() + at), 4 + token);
    EXPECT_EQ(load_le<std::uint32_t>(page.data() + at + 8), (4 + token) * 7 + 1);
    at += kCellExtensionBytes;
  }
  EXPECT_EQ(at, page.size());
}

TEST(BlobPages, ScratchBlobsHoldPagesOfTheMiddleAndAnEmptyTail) {
  for (const auto& [name, geometry] : all_geometries()) {
    if (!geometry.full) continue;
    SCOPED_TRACE(name);
    const Bytes whole = BlobWriter(geometry).write(16);
    const auto blob = parse_sequence_blob(whole, geometry, {});
    ASSERT_TRUE(blob);
    const Kept kept = keep(geometry, *blob, 16);
    const auto full = views_of(kept.full);
    BlobContents contents;
    contents.end = 12;
    contents.page_size = kPage;
    contents.full = std::span(full).subspan(1, 2);
    const Bytes composed = compose(geometry, contents);
    const auto again = parse_sequence_blob(composed, geometry, {});
    ASSERT_TRUE(again) << again.status().to_string();
    EXPECT_EQ(again->full->begin, 4u);
    EXPECT_EQ(again->full->end, 12u);
    EXPECT_TRUE(!again->window || again->window->runs.empty());
    EXPECT_TRUE(!again->recurrent || !again->recurrent->position);
    Bytes page(geometry.full->page_bytes(kPage));
    ASSERT_TRUE(cut_page(*again->full, *geometry.full, 12, kPage, page).is_ok());
    EXPECT_EQ(page, kept.full[2]);
  }
}

TEST(BlobPages, MaskedCellsStandBeforeTheWindow) {
  const BlobGeometry geometry = all_geometries()[3].geometry;
  for (const std::uint32_t end : {8u, 16u}) {
    const Bytes whole = BlobWriter(geometry).write(end);
    const auto blob = parse_sequence_blob(whole, geometry, {});
    ASSERT_TRUE(blob);
    const Kept kept = keep(geometry, *blob, end);
    const auto full = views_of(kept.full), window = views_of(kept.window);
    BlobContents contents = contents_of(full, window, kept, end, {});
    contents.masked_window_cells = 1;
    const Bytes composed = compose(geometry, contents);
    const auto again = parse_sequence_blob(composed, geometry, {});
    ASSERT_TRUE(again) << again.status().to_string();
    EXPECT_EQ(again->window->begin, end == 8 ? 0u : end - geometry.window_tokens - 1);
    EXPECT_EQ(again->window->end, end);
  }
}

TEST(BlobPages, AWindowThatIsNoMultipleOfPagesIsKeptWhole) {
  EXPECT_EQ(window_pages(64, 1024).pages, 16u);
  EXPECT_EQ(window_pages(64, 1024).page_tokens, 64u);
  EXPECT_EQ(window_pages(64, 1000).pages, 1u);
  EXPECT_EQ(window_pages(64, 1000).page_tokens, 1000u);
}

TEST(BlobPages, WhatIsNotInTheBlobIsRefused) {
  const BlobGeometry geometry = all_geometries()[3].geometry;
  const Bytes whole = BlobWriter(geometry).write(16);
  const auto blob = parse_sequence_blob(whole, geometry, {});
  ASSERT_TRUE(blob);
  Bytes page(geometry.window->page_bytes(kPage));
  EXPECT_FALSE(cut_page(*blob->window, *geometry.window, 8, kPage, page).is_ok());   // gone
  EXPECT_FALSE(cut_page(*blob->window, *geometry.window, 20, kPage, page).is_ok());  // not there yet
  EXPECT_FALSE(cut_page(*blob->window, *geometry.window, 0, kPage, page).is_ok());
  EXPECT_FALSE(cut_page(*blob->window, *geometry.window, 16, kPage + 1, page).is_ok());
  EXPECT_TRUE(cut_page(*blob->window, *geometry.window, 16, kPage, page).is_ok());
}

TEST(BlobPages, WithMropeAPageInAWrongPlaceIsNoticed) {
  const BlobGeometry geometry = all_geometries()[5].geometry;
  const Bytes whole = BlobWriter(geometry).write(16);
  const auto blob = parse_sequence_blob(whole, geometry, {});
  ASSERT_TRUE(blob);
  const Kept kept = keep(geometry, *blob, 16);
  auto full = views_of(kept.full);
  EXPECT_TRUE(composed_bytes(geometry, contents_of(full, {}, kept, 16, {})));
  std::swap(full[1], full[2]);
  EXPECT_EQ(composed_bytes(geometry, contents_of(full, {}, kept, 16, {})).status().code(), StatusCode::kCorrupt);
}

TEST(BlobPages, PiecesThatDoNotBelongTogetherAreRefused) {
  const BlobGeometry geometry = all_geometries()[7].geometry;  // all parts; a window of one page of 6 tokens
  const Bytes whole = BlobWriter(geometry).write(16);
  const auto blob = parse_sequence_blob(whole, geometry, {});
  ASSERT_TRUE(blob);
  const Kept kept = keep(geometry, *blob, 16);
  const auto full = views_of(kept.full), window = views_of(kept.window);
  const BlobContents right = contents_of(full, window, kept, 16, {});
  ASSERT_TRUE(composed_bytes(geometry, right));
  const auto refused = [&](auto change) {
    BlobContents contents = right;
    change(contents);
    const auto size = composed_bytes(geometry, contents);
    Bytes room(16);
    return !size && !compose_blob(geometry, contents, room).is_ok();
  };
  const std::vector<PageBytes> short_pages(4, std::span(kept.full[0]).first(5));
  EXPECT_TRUE(refused([](BlobContents& c) { c.end = 12; }));  // pages, and the checkpoint of another position
  EXPECT_TRUE(refused([&](BlobContents& c) {
    c.end = 20;
    c.window = {};
  }));
  EXPECT_TRUE(refused([&](BlobContents& c) { c.full = short_pages; }));
  EXPECT_TRUE(refused([&](BlobContents& c) { c.window = full; }));
  EXPECT_TRUE(refused([](BlobContents& c) { c.page_size = 0; }));
  EXPECT_TRUE(refused([](BlobContents& c) { c.page_size = 5; }));
  EXPECT_TRUE(refused([](BlobContents& c) { c.form.is_partial = true; }));
  EXPECT_TRUE(refused([&](BlobContents& c) { c.checkpoint = c.checkpoint.first(c.checkpoint.size() - 1); }));
  EXPECT_TRUE(refused([](BlobContents& c) { c.end = 0xffffffff; }));
  Bytes room(*composed_bytes(geometry, right) + 1);
  EXPECT_FALSE(compose_blob(geometry, right, room).is_ok());
  const BlobGeometry dense = all_geometries()[0].geometry;
  EXPECT_FALSE(composed_bytes(dense, right));
}

}  // namespace
}  // namespace larder::llama
