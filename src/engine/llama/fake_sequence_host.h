// SPDX-License-Identifier: Apache-2.0
// An engine without arithmetic, for tests: whatever a sequence holds goes into each next row, state and logit, so that
// one wrong byte anywhere shows in all that follows. Its blobs are those of llama.cpp for the given geometry.
//
// Threads: confined. Cost: the square of the tokens.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/llama/blob_pages.h"
#include "engine/llama/sequence_blob.h"
#include "engine/llama/sequence_host.h"
#include "key/sha256.h"

namespace larder::llama::blob_test {

class FakeSequenceHost final : public SequenceHost {
 public:
  explicit FakeSequenceHost(BlobGeometry geometry) : geometry_(std::move(geometry)) {}

  Result<std::vector<float>> decode(std::uint32_t id, std::uint32_t position,
                                    std::span<const TokenId> tokens) override {
    Sequence& sequence = sequences_[id];
    Rng random(0);
    for (const TokenId token : tokens) {
      if (geometry_.full && sequence.full.size() != position) return internal_error("positions are not contiguous");
      if (geometry_.recurrent && sequence.state_end != position) return internal_error("the state is of elsewhere");
      random = Rng(content_of(sequence, position, token));
      if (geometry_.full) sequence.full[position] = row_of(*geometry_.full, position, random);
      if (geometry_.window) {
        sequence.window[position] = row_of(*geometry_.window, position, random);
        // A restored one may have masked cells before it.
        const std::uint32_t first = position >= geometry_.window_tokens ? position - geometry_.window_tokens + 1 : 0;
        sequence.window.erase(sequence.window.begin(), sequence.window.lower_bound(first));
      }
      sequence.state_end = ++position;
      if (geometry_.recurrent) sequence.state = checkpoint_of(position, random);
    }
    std::vector<float> logits(8);
    for (float& logit : logits) logit = static_cast<float>(random.uniform()) - 0.5f;
    return logits;
  }

  Result<std::vector<std::byte>> save(std::uint32_t id, bool is_partial) override {
    Sequence& sequence = sequences_[id];
    BlobContents contents;
    contents.form.is_partial = is_partial;
    contents.sequence = id;
    contents.end = std::max(end_of(sequence.full), sequence.state ? sequence.state_end : end_of(sequence.window));
    const std::vector<std::byte> full = page_of(geometry_.full, sequence.full);
    const std::vector<std::byte> window = page_of(geometry_.window, sequence.window);
    const std::vector<PageBytes> full_pages = {full}, window_pages = {window};
    const bool is_whole = !is_partial || !geometry_.has_partial_form();
    if (is_whole && !full.empty()) contents.full = full_pages;
    // Of a window that was shared in part, libllama saves that part, and the fake nothing: nobody may use it.
    const bool is_window_whole = sequence.window.size() >= std::min(geometry_.window_tokens, contents.end);
    if (!window.empty() && is_window_whole) contents.window = window_pages;
    contents.page_size = static_cast<std::uint32_t>(sequence.full.size());
    contents.window_kind = {static_cast<std::uint32_t>(sequence.window.size()), 1};
    if (sequence.state) contents.checkpoint = *sequence.state;
    const auto size = composed_bytes(geometry_, contents);
    if (!size) return size.status();
    std::vector<std::byte> blob(*size);
    LARDER_RETURN_IF_ERROR(compose_blob(geometry_, contents, blob));
    return blob;
  }

  Status load(std::uint32_t id, std::span<const std::byte> blob, bool is_partial) override {
    const auto parsed = parse_sequence_blob(blob, geometry_, {.is_partial = is_partial});
    if (!parsed) return parsed.status();
    Sequence& sequence = sequences_[id];
    if (parsed->full) sequence.full = rows_of(*parsed->full, *geometry_.full);
    if (parsed->window) sequence.window = rows_of(*parsed->window, *geometry_.window);
    if (parsed->recurrent) {
      const PageBytes bytes = parsed->recurrent->bytes;
      sequence.state.reset();
      if (parsed->recurrent->position) sequence.state.emplace(bytes.begin(), bytes.end());
      sequence.state_end = parsed->recurrent->position.value_or(0);
    }
    return Status::ok();
  }

  void share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) override {
    for (const auto rows : {&Sequence::full, &Sequence::window}) {
      for (const auto& [position, row] : sequences_[from].*rows) {
        if (position >= begin && position < end) (sequences_[to].*rows)[position] = row;
      }
    }
    sequences_[to].state = sequences_[from].state;
    sequences_[to].state_end = sequences_[from].state_end;
  }
  void clear(std::uint32_t id) override { sequences_.erase(id); }
  std::uint32_t vocabulary_size() const override { return 100; }

 private:
  using Rows = std::map<std::uint32_t, std::vector<std::byte>>;  // by position: K of all layers, V, extension
  struct Sequence {
    Rows full, window;
    std::optional<std::vector<std::byte>> state;
    std::uint32_t state_end = 0;
  };

  static std::uint32_t end_of(const Rows& rows) { return rows.empty() ? 0 : rows.rbegin()->first + 1; }

  // All that a token sees.
  std::uint64_t content_of(const Sequence& sequence, std::uint32_t position, TokenId token) const {
    Sha256 digest;
    digest.update(&position, sizeof position).update(&token, sizeof token);
    for (const auto& entry : sequence.full) digest.update(entry.second.data(), entry.second.size());
    for (const auto& [at, row] : sequence.window) {
      if (at + geometry_.window_tokens > position) digest.update(row.data(), row.size());
    }
    if (sequence.state) digest.update(sequence.state->data(), sequence.state->size());
    return digest.finish().prefix64();
  }
  static std::vector<std::byte> row_of(const AttentionGeometry& part, std::uint32_t position, Rng& random) {
    std::vector<std::byte> row(static_cast<std::size_t>(part.token_bytes()));
    for (std::byte& byte : row) byte = static_cast<std::byte>(random.below(256));
    if (part.has_cell_extensions) {
      store_le(row.data() + row.size() - kCellExtensionBytes, position);
      store_le(row.data() + row.size() - kCellExtensionBytes + 4, position);
    }
    return row;
  }
  // Calls copy(offset in the row, offset in the page, bytes) for token `i` of `count`.
  template <class Copy>
  static void for_each_piece(const AttentionGeometry& part, std::size_t i, std::size_t count, Copy copy) {
    std::size_t in_row = 0, in_page = 0;
    const auto piece = [&](std::size_t bytes) {
      copy(in_row, in_page + i * bytes, bytes);
      in_row += bytes;
      in_page += count * bytes;
    };
    for (std::size_t layer = 0; layer < part.keys.size(); ++layer) {
      piece(part.keys[layer].bytes);
      if (!part.values.empty()) piece(part.values[layer].bytes);
    }
    if (part.has_cell_extensions) piece(kCellExtensionBytes);
  }
  static std::vector<std::byte> page_of(const std::optional<AttentionGeometry>& part, const Rows& rows) {
    if (!part) return {};
    std::vector<std::byte> page(static_cast<std::size_t>(part->token_bytes()) * rows.size());
    std::size_t i = 0;
    for (const auto& entry : rows) {
      for_each_piece(*part, i++, rows.size(), [&](std::size_t in_row, std::size_t in_page, std::size_t bytes) {
        std::copy_n(entry.second.data() + in_row, bytes, page.data() + in_page);
      });
    }
    return page;
  }
  static Rows rows_of(const AttentionPart& part, const AttentionGeometry& geometry) {
    Rows rows;
    for (std::uint32_t at = part.begin; at < part.end; ++at) {
      std::vector<std::byte> row(static_cast<std::size_t>(geometry.token_bytes()));
      if (cut_page(part, geometry, at + 1, 1, row).is_ok()) rows[at] = std::move(row);
    }
    return rows;
  }
  std::vector<std::byte> checkpoint_of(std::uint32_t end, Rng& random) const {
    const RecurrentGeometry& part = *geometry_.recurrent;
    std::vector<std::byte> bytes;
    const auto number = [&](auto value) {
      bytes.resize(bytes.size() + sizeof value);
      store_le(bytes.data() + bytes.size() - sizeof value, value);
    };
    for (const std::uint32_t value : {1u, end - 1, 0u, 0u, part.model_layers}) number(value);
    for (const auto* rows : {&part.conv, &part.state}) {
      for (const RowKind& kind : *rows) {
        number(static_cast<std::uint32_t>(kind.type));
        number(kind.bytes);
        for (std::uint64_t i = 0; i < kind.bytes; ++i) bytes.push_back(static_cast<std::byte>(random.below(256)));
      }
    }
    return bytes;
  }

  const BlobGeometry geometry_;
  std::map<std::uint32_t, Sequence> sequences_;
};

}  // namespace larder::llama::blob_test
