// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace larder::llama {
namespace {

constexpr BlobForm kSlotForm{.has_header = false, .is_partial = false};

bool is_window_in_pages(const SlotFormat& format) { return format.pools.window.pages > 1; }

}  // namespace

Result<std::shared_ptr<ByteBuffers::Buffer>> read_slot_file(FileSystem& files, const std::string& path,
                                                            ByteBuffers& buffers) {
  auto file = files.open(path, {});
  if (!file.is_ok()) return file.status();
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  std::shared_ptr<ByteBuffers::Buffer> buffer = buffers.take(static_cast<std::size_t>(size));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, buffer->bytes(), 0));
  return buffer;
}

Result<std::shared_ptr<const SavedSlot>> SavedSlot::parse(const SlotFormat& format,
                                                          std::shared_ptr<ByteBuffers::Buffer> bytes) {
  LARDER_ASSIGN_OR_RETURN(SlotFile file, parse_slot_file(bytes->bytes()));
  LARDER_ASSIGN_OR_RETURN(SequenceBlob blob, parse_sequence_blob(file.blob, format.geometry, kSlotForm));
  const std::shared_ptr<SavedSlot> out(new SavedSlot(format));
  out->bytes_ = std::move(bytes);
  LARDER_RETURN_IF_ERROR(out->take(std::move(file.tokens), std::move(blob)));
  return std::shared_ptr<const SavedSlot>(out);
}

std::shared_ptr<const SavedSlot> SavedSlot::of_export(const SlotFormat& format, std::vector<TokenId> tokens,
                                                      SequenceExport exported) {
  const std::shared_ptr<SavedSlot> out(new SavedSlot(format));
  out->tokens_ = std::move(tokens);
  out->end_ = exported.end();
  out->export_.emplace(std::move(exported));
  return out;
}

Status SavedSlot::take(std::vector<TokenId> tokens, SequenceBlob blob) {
  tokens_ = std::move(tokens);
  blob_ = std::move(blob);
  if (blob_.recurrent) {
    end_ = blob_.recurrent->position.value_or(0);
  } else {
    end_ = blob_.full ? blob_.full->end : blob_.window->end;
  }
  const auto ends_there = [&](const std::optional<AttentionPart>& part) { return !part || part->end == end_; };
  if (!ends_there(blob_.full) || !ends_there(blob_.window) || end_ > tokens_.size()) {
    return conflict(
        fmt::format("a slot of {} tokens has parts that end elsewhere, its state at {}", tokens_.size(), end_));
  }
  return Status::ok();
}

Status SavedSlot::cut(std::size_t pool, std::uint64_t page, std::span<std::byte> into) const {
  const ModelPools& pools = format_.pools;
  const auto end = static_cast<std::uint32_t>((page + 1) * format_.page_size());
  if (pool == pools.kv) return format_.geometry.full ? cut_full(end, into) : Status::ok();  // a marker of no bytes
  if (pools.swa && pool == *pools.swa) return cut_window(end, into);
  return cut_state(end, into);
}

Status SavedSlot::cut_full(std::uint32_t page_end, std::span<std::byte> into) const {
  const std::uint32_t page = format_.page_size(), begin = export_ ? export_->begin() : 0;
  if (page_end > end_ || page_end - page < begin) {
    return not_found(
        fmt::format("rows of [{}, {}): the slot has those of [{}, {})", page_end - page, page_end, begin, end_));
  }
  if (export_) return export_->full_page(page_end, page, into);
  return cut_page(*blob_.full, *format_.geometry.full, page_end, page, into);
}

Status SavedSlot::cut_window(std::uint32_t page_end, std::span<std::byte> into) const {
  const std::uint32_t tokens = format_.pools.window.page_tokens;
  if (export_) return export_->window_page(page_end, tokens, into);
  return cut_page(*blob_.window, *format_.geometry.window, page_end, tokens, into);
}

Status SavedSlot::cut_state(std::uint32_t page_end, std::span<std::byte> into) const {
  PageBytes state;
  if (export_) state = export_->checkpoint();
  if (blob_.recurrent) state = blob_.recurrent->bytes;
  if (page_end != end_ || state.empty() || state.size() != into.size()) {
    return not_found(fmt::format("the slot has the state of token {}, not of {}", end_, page_end));
  }
  std::memcpy(into.data(), state.data(), into.size());
  return Status::ok();
}

SlotDraft::SlotDraft(const SlotFormat& format, std::uint64_t pages, std::uint64_t window_from, ByteBuffers& buffers)
    : format_(format), pages_(pages), parts_(format.pools.space.pools.size()) {
  std::size_t size = 0;
  for (std::size_t pool = 0; pool < parts_.size(); ++pool) {
    Part& part = parts_[pool];
    part.page_bytes = format.pools.space.pools[pool].page_bytes;
    if (pool == format.pools.kv) {
      part.pages = pages;
    } else {
      const bool is_paged = format.pools.swa == pool && is_window_in_pages(format);
      part.from = is_paged ? window_from : pages - 1;
      part.pages = pages - part.from;
    }
    part.offset = size;
    size += part.bytes();
  }
  bytes_ = buffers.take(size);
}

Result<std::span<std::byte>> SlotDraft::place(std::size_t pool, std::uint64_t page) {
  if (pool >= parts_.size() || page < parts_[pool].from || page >= pages_) {
    return internal_error(fmt::format("page {} of pool {} is no part of {} pages", page, pool, pages_));
  }
  const Part& part = parts_[pool];
  const auto at = part.offset + static_cast<std::size_t>((page - part.from) * part.page_bytes);
  return bytes_->bytes().subspan(at, static_cast<std::size_t>(part.page_bytes));
}

std::vector<PageBytes> SlotDraft::pages_of(std::size_t pool) const {
  const Part& part = parts_[pool];
  std::vector<PageBytes> out;
  for (std::uint64_t i = 0; i < part.pages && part.page_bytes > 0; ++i) {
    out.push_back(std::as_const(*bytes_).bytes().subspan(part.offset + static_cast<std::size_t>(i * part.page_bytes),
                                                         static_cast<std::size_t>(part.page_bytes)));
  }
  return out;
}

Result<std::shared_ptr<ByteBuffers::Buffer>> SlotDraft::compose(std::span<const TokenId> tokens,
                                                                std::uint32_t masked_cells,
                                                                ByteBuffers& buffers) const {
  const ModelPools& pools = format_.pools;
  BlobContents contents;
  contents.form = format_.is_in_process ? BlobForm{} : kSlotForm;
  contents.end = static_cast<std::uint32_t>(pages_ * format_.page_size());
  contents.page_size = format_.page_size();
  const std::vector<PageBytes> full = pages_of(pools.kv);
  const std::vector<PageBytes> window = pools.swa ? pages_of(*pools.swa) : std::vector<PageBytes>{};
  const std::vector<PageBytes> state = pools.state ? pages_of(*pools.state) : std::vector<PageBytes>{};
  contents.full = full;
  contents.window_kind = pools.window;
  contents.window = window;
  contents.masked_window_cells = pools.swa && !format_.is_in_process ? masked_cells : 0;
  if (!state.empty()) contents.checkpoint = state.front();
  if (contents.end > tokens.size()) {
    return internal_error(fmt::format("{} tokens for a slot of {}", tokens.size(), contents.end));
  }
  LARDER_ASSIGN_OR_RETURN(const std::size_t size, composed_bytes(format_.geometry, contents));
  const std::size_t head = format_.is_in_process ? 0 : slot_head_bytes(contents.end);
  std::shared_ptr<ByteBuffers::Buffer> out = buffers.take(head + size);
  if (head > 0) write_slot_head(tokens.first(contents.end), out->bytes().first(head));
  LARDER_RETURN_IF_ERROR(compose_blob(format_.geometry, contents, out->bytes().subspan(head)));
  return out;
}

}  // namespace larder::llama
