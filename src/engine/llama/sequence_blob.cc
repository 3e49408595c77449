// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/sequence_blob.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "engine/llama/blob_reader.h"

namespace larder::llama {
namespace {

constexpr std::int32_t kTypesMax = 256;     // ggml has some forty
constexpr std::uint32_t kStreamsMax = 256;  // sequences of a context

// What must be known to read a blob: its parts, and what no byte of it tells.
struct Shape {
  bool full = false, window = false, recurrent = false;
  bool cell_extensions = false, values = false;
};

// A blob and what it shows of the geometry: nothing of an attention part without cells.
struct Walked {
  SequenceBlob blob;
  std::optional<AttentionGeometry> full, window;
  std::optional<RecurrentGeometry> recurrent;
  std::uint32_t streams = 0;  // of the attention parts; 0: there are none
};

std::size_t bytes_of_cell(bool has_extension) { return kPlainCellBytes + (has_extension ? kCellExtensionBytes : 0); }

// Adds the cell to the runs. Whether positions are there twice shows when the runs are in order.
void add_cell(std::vector<CellRun>& runs, std::uint32_t position, std::uint32_t cell) {
  if (!runs.empty() && runs.back().position + runs.back().count == position) {
    ++runs.back().count;
  } else {
    runs.push_back({position, cell, 1});
  }
}

void read_cells(BlobReader& in, std::uint32_t count, bool has_extension, AttentionPart& part) {
  const std::size_t stride = bytes_of_cell(has_extension);
  const std::span<const std::byte> cells = in.take(std::uint64_t{count} * stride, "the list of cells");
  part.cells = cells.data();
  for (std::uint32_t i = 0; in.ok() && i < count; ++i) {
    const std::byte* cell = part.cells + i * stride;
    const auto position = load_le<std::uint32_t>(cell), sequences = load_le<std::uint32_t>(cell + 4);
    if (position >= std::numeric_limits<std::int32_t>::max()) {
      return in.fail(corrupt(fmt::format("cell {} has position {}", i, static_cast<std::int32_t>(position))));
    }
    if (sequences != 1) {
      return in.fail(corrupt(fmt::format("cell {} belongs to {} sequences, and must to 1", i, sequences)));
    }
    if (has_extension && !is_text_cell(cell + 8, position)) {
      return in.fail(unsupported(fmt::format("the cell of position {} is no cell of text", position)));
    }
    add_cell(part.runs, position, i);
  }
}

void order_runs(BlobReader& in, AttentionPart& part) {
  std::ranges::sort(part.runs, {}, &CellRun::position);
  part.begin = part.runs.front().position;
  part.end = part.begin;
  for (const CellRun& run : part.runs) {
    if (run.position != part.end) {
      return in.fail(unsupported(fmt::format("positions are not contiguous: {} follows {} (was the context shifted?)",
                                             run.position, std::int64_t{part.end} - 1)));
    }
    part.end += run.count;
  }
}

// One row kind, and the rows of all cells behind it.
RowKind read_rows(BlobReader& in, std::uint64_t cells, std::string_view what, std::vector<const std::byte*>* places) {
  const RowKind kind{in.number_i32(what), in.number<std::uint64_t>(what)};
  if (in.ok() && (kind.type < 0 || kind.type >= kTypesMax || kind.bytes > kRowBytesMax)) {
    in.fail(corrupt(
        fmt::format("{} before byte {} has type {} and rows of {} bytes", what, in.offset(), kind.type, kind.bytes)));
  }
  if (in.ok() && places != nullptr) places->push_back(in.here());
  (void)in.take(in.ok() ? cells * kind.bytes : 0, what);
  return kind;
}

void read_stream(BlobReader& in, const Shape& shape, std::uint32_t cells, AttentionPart& part,
                 std::optional<AttentionGeometry>& shown) {
  read_cells(in, cells, shape.cell_extensions, part);
  if (!in.ok()) return;
  order_runs(in, part);
  const auto is_transposed = in.number<std::uint32_t>("v_trans"), layers = in.number<std::uint32_t>("layers");
  if (in.ok() && is_transposed == 1) {
    in.fail(unsupported("V is transposed, so that it has no rows: switch flash attention on"));
  } else if (in.ok() && (is_transposed > 1 || layers == 0 || layers > kBlobLayersMax)) {
    in.fail(corrupt(fmt::format("v_trans is {}, and there are {} layers", is_transposed, layers)));
  }
  AttentionGeometry geometry;
  geometry.has_cell_extensions = shape.cell_extensions;
  for (std::uint32_t i = 0; in.ok() && i < layers; ++i) {
    geometry.keys.push_back(read_rows(in, cells, "a layer of K", &part.keys));
  }
  for (std::uint32_t i = 0; in.ok() && shape.values && i < layers; ++i) {
    geometry.values.push_back(read_rows(in, cells, "a layer of V", &part.values));
  }
  shown = std::move(geometry);
}

void read_attention(BlobReader& in, const Shape& shape, AttentionPart& part, std::optional<AttentionGeometry>& shown,
                    std::uint32_t& all_streams) {
  const auto streams = in.number<std::uint32_t>("the number of streams");
  const std::uint32_t known = all_streams == 0 ? streams : all_streams;
  if (in.ok() && (streams == 0 || streams > kStreamsMax || streams != known)) {
    return in.fail(corrupt(fmt::format("{} streams of cells, where there must be {}", streams,
                                       all_streams == 0 ? "1 to 256" : std::to_string(all_streams))));
  }
  all_streams = streams;
  for (std::uint32_t i = 0; in.ok() && i < streams; ++i) {
    const auto cells = in.number<std::uint32_t>("the number of cells");
    if (!in.ok() || cells == 0) continue;
    if (!part.runs.empty()) return in.fail(unsupported("a sequence with cells in several streams"));
    read_stream(in, shape, cells, part, shown);
  }
}

// No byte tells how many layers are recurrent: the part is the last one, and half of what is there is the convolution.
void read_recurrent(BlobReader& in, RecurrentPart& part, std::optional<RecurrentGeometry>& shown) {
  const std::byte* begin = in.here();
  const std::size_t from = in.offset();
  const auto cells = in.number<std::uint32_t>("the number of recurrent cells");
  if (in.ok() && cells > 1) return in.fail(unsupported(fmt::format("{} recurrent cells of one sequence", cells)));
  if (cells == 1) {
    const auto position = in.number<std::uint32_t>("the position of the state");
    const auto sequences = in.number<std::uint32_t>("the sequences of the state");
    if (in.ok() && (position >= std::numeric_limits<std::int32_t>::max() || sequences != 0)) {
      return in.fail(corrupt(fmt::format("a state of position {} in {} sequences", position, sequences)));
    }
    part.position = position + 1;
  }
  const auto is_transposed = in.number<std::uint32_t>("s_trans");
  RecurrentGeometry geometry;
  geometry.model_layers = in.number<std::uint32_t>("the layers of the model");
  if (in.ok() && (is_transposed != 0 || geometry.model_layers == 0 || geometry.model_layers > kBlobLayersMax)) {
    return in.fail(
        corrupt(fmt::format("s_trans is {}, and there are {} layers", is_transposed, geometry.model_layers)));
  }
  std::vector<RowKind> rows;
  while (in.ok() && in.left() > 0) {
    if (rows.size() == 2 * std::size_t{geometry.model_layers}) {
      return in.fail(corrupt(fmt::format("{} bytes follow the states of all layers", in.left())));
    }
    rows.push_back(read_rows(in, cells, "a recurrent row", nullptr));
  }
  if (!in.ok()) return;
  const auto half = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  if (rows.empty() || rows.size() % 2 != 0) {
    return in.fail(corrupt(fmt::format("{} recurrent rows: they come in pairs", rows.size())));
  }
  geometry.conv.assign(rows.begin(), half);
  geometry.state.assign(half, rows.end());
  // All layers of a model have rows of one kind; another picture is one that was taken apart in the wrong way.
  const auto differ = [](const RowKind& a, const RowKind& b) { return !(a == b); };
  if (std::ranges::adjacent_find(geometry.conv, differ) != geometry.conv.end() ||
      std::ranges::adjacent_find(geometry.state, differ) != geometry.state.end()) {
    return in.fail(unsupported("recurrent layers differ in their rows"));
  }
  part.bytes = {begin, in.offset() - from};
  shown = std::move(geometry);
}

// `streams`: as many as there must be; 0: any.
Result<Walked> walk(std::span<const std::byte> bytes, const Shape& shape, BlobForm form, std::uint32_t streams) {
  BlobReader in(bytes);
  if (form.has_header) {
    const auto magic = in.number<std::uint32_t>("the magic number");
    if (in.ok() && magic != kBlobMagic) {
      return corrupt(fmt::format("the bytes begin with {:#x}, a sequence blob with {:#x}", magic, kBlobMagic));
    }
    (void)in.number<std::uint32_t>("the sequence");
  }
  Walked walked;
  walked.streams = streams;
  SequenceBlob& blob = walked.blob;
  const bool is_partial = form.is_partial && (shape.window || shape.recurrent);
  if (shape.full && !is_partial) read_attention(in, shape, blob.full.emplace(), walked.full, walked.streams);
  if (shape.window) read_attention(in, shape, blob.window.emplace(), walked.window, walked.streams);
  if (shape.recurrent) read_recurrent(in, blob.recurrent.emplace(), walked.recurrent);
  if (in.ok() && in.left() > 0) {
    return corrupt(fmt::format("{} bytes follow the last part, from byte {}", in.left(), in.offset()));
  }
  if (!in.ok()) return in.status();
  if (blob.full && blob.window && !blob.full->runs.empty() && blob.window->end != blob.full->end) {
    if (!blob.window->runs.empty()) {
      return corrupt(
          fmt::format("all layers end at position {}, the sliding ones at {}", blob.full->end, blob.window->end));
    }
  }
  return walked;
}

Shape shape_of(const BlobGeometry& geometry) {
  Shape shape{geometry.full.has_value(), geometry.window.has_value(), geometry.recurrent.has_value()};
  const auto& some = geometry.full ? geometry.full : geometry.window;
  shape.cell_extensions = some && some->has_cell_extensions;
  shape.values = some && !some->values.empty();
  return shape;
}

template <class Geometry>
Status check_same(const std::optional<Geometry>& shown, const std::optional<Geometry>& known, std::string_view part) {
  if (!shown || shown == known) return Status::ok();
  return corrupt(fmt::format("layers, row types or row bytes of the {} part are not those of this model", part));
}

// The ways in which blobs are made of parts.
std::vector<Shape> all_shapes(bool has_window) {
  std::vector<Shape> shapes;
  for (const bool window : {false, true}) {
    if (window && !has_window) continue;
    for (const bool recurrent : {false, true}) {
      for (const bool extensions : {false, true}) {
        for (const bool values : {false, true}) shapes.push_back({true, window, recurrent, extensions, values});
      }
    }
  }
  shapes.push_back({.recurrent = true});
  return shapes;
}

// Of a sequence of one token or none, parts may look like others.
bool has_all_cells(const Walked& walked) {
  const SequenceBlob& blob = walked.blob;
  return (!blob.full || blob.full->end - blob.full->begin >= 2) &&
         (!blob.window || blob.window->end > blob.window->begin) &&
         (!blob.recurrent || blob.recurrent->position.value_or(0) >= 2);
}

}  // namespace

bool is_text_cell(const std::byte* extension, std::uint32_t position) {
  const auto x = load_le<std::uint32_t>(extension), y = load_le<std::uint32_t>(extension + 4);
  return x == y && (x == position || x == 0);
}

Result<SequenceBlob> parse_sequence_blob(std::span<const std::byte> bytes, const BlobGeometry& geometry,
                                         BlobForm form) {
  Result<Walked> walked = walk(bytes, shape_of(geometry), form, geometry.streams);
  if (!walked) return walked.status();
  LARDER_RETURN_IF_ERROR(check_same(walked->full, geometry.full, "full"));
  LARDER_RETURN_IF_ERROR(check_same(walked->window, geometry.window, "window"));
  LARDER_RETURN_IF_ERROR(check_same(walked->recurrent, geometry.recurrent, "recurrent"));
  return std::move(walked->blob);
}

Result<BlobGeometry> learn_geometry(std::span<const std::byte> bytes, bool has_header, std::uint32_t window_tokens) {
  if (window_tokens > kWindowTokensMax) {
    return unsupported(fmt::format("a sliding window of {} tokens: at most {}", window_tokens, kWindowTokensMax));
  }
  std::optional<BlobGeometry> found;
  Status refusal = corrupt("the bytes are no sequence blob of two tokens or more");
  for (const Shape& shape : all_shapes(window_tokens > 0)) {
    Result<Walked> walked = walk(bytes, shape, {has_header, false}, 0);
    if (!walked && refusal.code() == StatusCode::kCorrupt) refusal = walked.status();
    if (!walked || !has_all_cells(*walked)) continue;
    if (found) return unsupported("the blob can be taken apart in two ways: learn from a longer sequence");
    found.emplace(BlobGeometry{std::move(walked->full), std::move(walked->window), shape.window ? window_tokens : 0,
                               std::move(walked->recurrent), std::max(walked->streams, 1u)});
  }
  if (!found) return refusal;
  return std::move(*found);
}

Status check_checkpoint(std::span<const std::byte> bytes, const RecurrentGeometry& geometry, std::uint32_t position) {
  BlobReader in(bytes);
  RecurrentPart part;
  std::optional<RecurrentGeometry> shown;
  read_recurrent(in, part, shown);
  LARDER_RETURN_IF_ERROR(in.status());
  if (shown != geometry) return corrupt("a checkpoint with layers or rows that are not those of this model");
  if (part.position != position) {
    return corrupt(fmt::format("a checkpoint of position {} in place of {}", part.position.value_or(0), position));
  }
  return Status::ok();
}

}  // namespace larder::llama
