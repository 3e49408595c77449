// SPDX-License-Identifier: Apache-2.0
// A slot file, or what a sequence of this process was exported as, as pages and a checkpoint; and pages and a
// checkpoint as a slot file, or as a blob.
//
//   llama-server ── POST /slots/0?action=save ──► file ──► SavedSlot ── page by page ──► PrefixStore
//   llama-server ◄─ POST /slots/0?action=restore ─ file ◄── SlotDraft ◄─ page by page ── PrefixStore
//   LlamaEngine  ── SequenceExport ──────────────────────► SavedSlot ── page by page ──► PrefixStore
//   LlamaEngine  ◄─ blob ────────────────────────────────── SlotDraft ◄─ page by page ── PrefixStore
//
// Threads: values; SavedSlot is read by any number, the pages of a SlotDraft may be filled by several.
// Cost: reading and writing a file, one copy each; a page: one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "base/strong.h"
#include "engine/llama/blob_geometry.h"
#include "engine/llama/blob_pages.h"
#include "engine/llama/model_pools.h"
#include "engine/llama/sequence_blob.h"
#include "engine/llama/sequence_moves.h"
#include "engine/llama/slot_file.h"
#include "server/llama/byte_buffers.h"

namespace larder::llama {

// A model as the proxy knows it; constant once it is learnt.
struct SlotFormat {
  BlobGeometry geometry;
  ModelPools pools;
  // Slots come and go as blobs of libllama (with its header), and not as slot files of llama-server.
  bool is_in_process = false;
  [[nodiscard]] std::uint32_t page_size() const { return pools.space.page_size; }
  // Pages alone are restore points: no state, no window.
  [[nodiscard]] bool is_dense() const { return !geometry.has_partial_form(); }
};

// The bytes of a slot file, all of it.
[[nodiscard]] Result<std::shared_ptr<ByteBuffers::Buffer>> read_slot_file(FileSystem& files, const std::string& path,
                                                                          ByteBuffers& buffers);

class SavedSlot {
 public:
  // kCorrupt, kUnsupported: it is no slot file of this model. kConflict: its parts end at different tokens.
  [[nodiscard]] static Result<std::shared_ptr<const SavedSlot>> parse(const SlotFormat& format,
                                                                      std::shared_ptr<ByteBuffers::Buffer> bytes);
  // Of a sequence of this process that had these tokens. It has no pages before exported.begin().
  [[nodiscard]] static std::shared_ptr<const SavedSlot> of_export(const SlotFormat& format, std::vector<TokenId> tokens,
                                                                  SequenceExport exported);

  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  // Where the state is of, if the model has any; else where the rows end. Tokens.
  [[nodiscard]] std::uint64_t end() const { return end_; }
  // Writes page `page` of pool `pool` (an index in format.pools.space.pools); a state or a whole window is page
  // end / page_size - 1. kNotFound: the slot has not all of it.
  [[nodiscard]] Status cut(std::size_t pool, std::uint64_t page, std::span<std::byte> into) const;

 private:
  explicit SavedSlot(const SlotFormat& format) : format_(format) {}
  [[nodiscard]] Status take(std::vector<TokenId> tokens, SequenceBlob blob);
  [[nodiscard]] Status cut_full(std::uint32_t page_end, std::span<std::byte> into) const;
  [[nodiscard]] Status cut_window(std::uint32_t page_end, std::span<std::byte> into) const;
  [[nodiscard]] Status cut_state(std::uint32_t page_end, std::span<std::byte> into) const;

  const SlotFormat& format_;  // outlives this
  std::vector<TokenId> tokens_;
  // One of both: a file and its parts, which point into it; or an export.
  std::shared_ptr<const void> bytes_;
  SequenceBlob blob_;
  std::optional<SequenceExport> export_;
  std::uint64_t end_ = 0;
};

// What a slot file of `pages` pages is made of.
class SlotDraft {
 public:
  // window_from: the first page of the window, where it is kept in pages.
  SlotDraft(const SlotFormat& format, std::uint64_t pages, std::uint64_t window_from, ByteBuffers& buffers);

  // Where the bytes of a page go. kInternal: it is no part of this.
  [[nodiscard]] Result<std::span<std::byte>> place(std::size_t pool, std::uint64_t page);
  // Once all places are filled. masked_cells: as in BlobContents, for llama-server. kCorrupt: the pages do not belong
  // together.
  [[nodiscard]] Result<std::shared_ptr<ByteBuffers::Buffer>> compose(std::span<const TokenId> tokens,
                                                                     std::uint32_t masked_cells,
                                                                     ByteBuffers& buffers) const;

 private:
  struct Part {
    std::uint64_t from = 0, pages = 0, page_bytes = 0;
    std::size_t offset = 0;
    [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(pages * page_bytes); }
  };
  [[nodiscard]] std::vector<PageBytes> pages_of(std::size_t pool) const;

  const SlotFormat& format_;
  const std::uint64_t pages_;
  std::vector<Part> parts_;  // by index in space.pools
  std::shared_ptr<ByteBuffers::Buffer> bytes_;
};

}  // namespace larder::llama
