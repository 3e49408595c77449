// SPDX-License-Identifier: Apache-2.0
// Sequence blobs and slot files of llama.cpp (engine/llama/sequence_blob.h, blob_pages.h, slot_file.h).
//
// Fed: a mode, a geometry, then bytes: a blob of that geometry, a blob of an unknown one, or a slot file; or choices of
// which a right blob is made, with some bytes changed.
// Checked: refusals are kCorrupt or kUnsupported and say why. What is taken apart holds each position once; cut into a
// page and a checkpoint and composed again, it gives a blob that is taken apart into the same page. What is learned
// from a blob reads that blob. A slot file's blob is the end of the file.
#include "engine/llama/blob_test_util.h"
#include "engine/llama/slot_file.h"
#include "fuzz/fuzz_input.h"

namespace larder::fuzz {
namespace {

using namespace larder::llama;
using Bytes = std::vector<std::byte>;

const std::vector<blob_test::NamedGeometry>& geometries() {
  static const std::vector<blob_test::NamedGeometry> all = blob_test::all_geometries();
  return all;
}

void check_refusal(const Status& status) {
  fuzz_check(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
             "refused with " + status.to_string());
  check_explains(status, "a refusal");
}

void check_part(const AttentionPart& part) {
  std::uint32_t at = part.begin;
  for (const CellRun& run : part.runs) {
    fuzz_check(run.position == at && run.count > 0, "runs that do not follow each other");
    at += run.count;
  }
  fuzz_check(at == part.end, "runs that do not cover the part");
}

// All positions as one page.
Bytes page_of(const AttentionPart& part, const AttentionGeometry& geometry) {
  const std::uint32_t tokens = part.end - part.begin;
  Bytes page(static_cast<std::size_t>(geometry.page_bytes(tokens)));
  const Status status = cut_page(part, geometry, part.end, tokens, page);
  fuzz_check(status.is_ok(), "a part is not cut: " + status.to_string());
  return page;
}

void check_composed(const SequenceBlob& blob, const BlobGeometry& geometry, BlobForm form) {
  if (!blob.full || blob.full->begin == blob.full->end) return;
  const Bytes page = page_of(*blob.full, *geometry.full);
  const std::vector<PageBytes> pages = {page};
  BlobContents contents;
  contents.form = form;
  contents.end = blob.full->end;
  contents.page_size = blob.full->end - blob.full->begin;
  contents.full = pages;
  if (blob.recurrent && blob.recurrent->position == contents.end) contents.checkpoint = blob.recurrent->bytes;
  const auto size = composed_bytes(geometry, contents);
  fuzz_check(size.is_ok(), "a blob is not composed: " + size.status().to_string());
  Bytes composed(*size);
  fuzz_check(compose_blob(geometry, contents, composed).is_ok(), "a blob of a known size is not composed");
  const auto again = parse_sequence_blob(composed, geometry, form);
  fuzz_check(again.is_ok(), "what was composed is refused: " + again.status().to_string());
  fuzz_check(page_of(*again->full, *geometry.full) == page, "what was composed has other rows");
}

void check_blob(std::span<const std::byte> bytes, const BlobGeometry& geometry, BlobForm form) {
  const auto blob = parse_sequence_blob(bytes, geometry, form);
  if (!blob.is_ok()) return check_refusal(blob.status());
  if (blob->full) check_part(*blob->full);
  if (blob->window) check_part(*blob->window);
  const bool is_partial = form.is_partial && geometry.has_partial_form();
  if (!is_partial) check_composed(*blob, geometry, form);
}

void check_learning(std::span<const std::byte> bytes, std::uint32_t window_tokens) {
  const auto learned = learn_geometry(bytes, true, window_tokens);
  if (!learned.is_ok()) return check_refusal(learned.status());
  fuzz_check(parse_sequence_blob(bytes, *learned, {}).is_ok(), "a blob does not fit what was learned from it");
  check_blob(bytes, *learned, {});
}

void check_slot_file(std::span<const std::byte> bytes) {
  const auto file = parse_slot_file(bytes);
  if (!file.is_ok()) return check_refusal(file.status());
  fuzz_check(file->blob.data() + file->blob.size() == bytes.data() + bytes.size(), "a blob that is not the file's end");
  Bytes head(slot_head_bytes(file->tokens.size()));
  write_slot_head(file->tokens, head);
  const auto again = parse_slot_file(head);
  const bool is_marked = !file->tokens.empty() && file->tokens.front() == 0xffffffff;
  fuzz_check(is_marked || (again.is_ok() && again->tokens == file->tokens), "tokens are read as others");
}

void check_made(FuzzInput& input, const BlobGeometry& geometry, BlobForm form) {
  const auto tokens = static_cast<std::uint32_t>(input.below(24));
  std::vector<std::uint32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), static_cast<std::uint32_t>(input.below(3)));
  for (std::size_t swaps = input.below(4); swaps > 0 && tokens > 0; --swaps) {
    std::swap(positions[input.below(tokens)], positions[input.below(tokens)]);
  }
  blob_test::BlobWriter writer(geometry);
  Bytes bytes = writer.write(positions, form);
  fuzz_check(parse_sequence_blob(bytes, geometry, form).is_ok(), "a right blob is refused");
  for (std::size_t changes = input.below(4); changes > 0; --changes) {
    bytes[writer.metadata()[input.below(writer.metadata().size())]] ^= static_cast<std::byte>(input.below(256));
  }
  check_blob(bytes, geometry, form);
  check_learning(bytes, static_cast<std::uint32_t>(input.below(16)));
}

void run(FuzzInput input) {
  const std::uint64_t mode = input.below(4);
  const BlobGeometry& geometry = geometries()[input.below(geometries().size())].geometry;
  const std::uint64_t bits = input.below(4);
  const BlobForm form{(bits & 1) == 0, (bits & 2) != 0};
  switch (mode) {
    case 0: return check_blob(input.rest(), geometry, form);
    case 1: return check_learning(input.rest(), geometry.window_tokens);
    case 2: return check_slot_file(input.rest());
    default: return check_made(input, geometry, form);
  }
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
