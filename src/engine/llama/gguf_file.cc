// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "engine/llama/blob_reader.h"
#include "key/sha256.h"

namespace larder::llama {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kNameBytesMax = 1 << 16, kTextBytesMax = 1 << 26;
constexpr std::uint32_t kDimsMax = 4;
constexpr std::uint64_t kAlignmentMax = 1 << 20;
constexpr std::size_t kFirstRead = std::size_t{1} << 22, kHashRead = std::size_t{1} << 22, kSampleBytes = 4096;

enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// Bytes of a value of fixed size; 0: a string, an array, or nothing known.
std::size_t bytes_of(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    default: return 0;
  }
}

std::string_view text_at(BlobReader& in, std::uint64_t max, std::string_view what) {
  const auto size = in.number<std::uint64_t>(what);
  if (in.ok() && size > max) {
    in.fail(corrupt(fmt::format("{} before byte {} has {} bytes, at most {}", what, in.offset(), size, max)));
  }
  const std::span<const std::byte> bytes = in.take(size, what);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

GgufValue scalar_at(BlobReader& in, ValueType type, std::string_view key) {
  switch (type) {
    case ValueType::kU8: return std::uint64_t{in.number<std::uint8_t>(key)};
    case ValueType::kI8: return std::int64_t{static_cast<std::int8_t>(in.number<std::uint8_t>(key))};
    case ValueType::kU16: return std::uint64_t{in.number<std::uint16_t>(key)};
    case ValueType::kI16: return std::int64_t{static_cast<std::int16_t>(in.number<std::uint16_t>(key))};
    case ValueType::kU32: return std::uint64_t{in.number<std::uint32_t>(key)};
    case ValueType::kI32: return std::int64_t{static_cast<std::int32_t>(in.number<std::uint32_t>(key))};
    case ValueType::kF32: return double{std::bit_cast<float>(in.number<std::uint32_t>(key))};
    case ValueType::kU64: return in.number<std::uint64_t>(key);
    case ValueType::kI64: return static_cast<std::int64_t>(in.number<std::uint64_t>(key));
    case ValueType::kF64: return std::bit_cast<double>(in.number<std::uint64_t>(key));
    default: break;
  }
  const auto truth = in.number<std::uint8_t>(key);
  if (truth > 1) in.fail(corrupt(fmt::format("key {} is neither true nor false: {}", key, truth)));
  return truth == 1;
}

// False: no whole number, or one beyond int64.
bool is_whole(const GgufValue& value, std::int64_t& number) {
  if (const auto* n = std::get_if<std::int64_t>(&value))
    number = *n;
  else if (const auto* b = std::get_if<bool>(&value))
    number = *b ? 1 : 0;
  else if (const auto* u = std::get_if<std::uint64_t>(&value); u != nullptr && std::in_range<std::int64_t>(*u))
    number = static_cast<std::int64_t>(*u);
  else
    return false;
  return true;
}

GgufArray array_at(BlobReader& in, std::string_view key) {
  GgufArray array;
  const auto type = static_cast<ValueType>(in.number<std::uint32_t>(key));
  array.count = in.number<std::uint64_t>(key);
  if (!in.ok()) return array;
  const std::size_t size = bytes_of(type);
  if (size == 0 && type != ValueType::kString) {
    in.fail(corrupt(fmt::format("key {} is an array of type {}", key, static_cast<std::uint32_t>(type))));
    return array;
  }
  // Each element has a byte or more (a string eight): what cannot be there is refused before it is walked.
  if (array.count > in.left()) {
    (void)in.take(array.count, key);
    return array;
  }
  if (type == ValueType::kString) {
    for (std::uint64_t i = 0; in.ok() && i < array.count; ++i) (void)text_at(in, kTextBytesMax, key);
    return array;
  }
  if (array.count > kGgufArrayMax) {
    (void)in.take(array.count * size, key);
    return array;
  }
  for (std::uint64_t i = 0; in.ok() && i < array.count; ++i) {
    std::int64_t number = 0;
    if (is_whole(scalar_at(in, type, key), number)) array.numbers.push_back(number);
  }
  if (array.numbers.size() != array.count) array.numbers.clear();
  return array;
}

void read_metadata(BlobReader& in, std::uint64_t count, GgufFile& file) {
  for (std::uint64_t i = 0; in.ok() && i < count; ++i) {
    std::string key(text_at(in, kNameBytesMax, "the name of a key"));
    const auto type = static_cast<ValueType>(in.number<std::uint32_t>(key));
    if (!in.ok()) return;
    GgufValue value;
    if (type == ValueType::kArray)
      value = array_at(in, key);
    else if (type == ValueType::kString)
      value = std::string(text_at(in, kTextBytesMax, key));
    else if (bytes_of(type) > 0)
      value = scalar_at(in, type, key);
    else
      return in.fail(corrupt(fmt::format("key {} has type {}", key, static_cast<std::uint32_t>(type))));
    if (!file.metadata.try_emplace(key, std::move(value)).second) {
      return in.fail(corrupt(fmt::format("key {} is there twice", key)));
    }
  }
}

void read_tensors(BlobReader& in, std::uint64_t count, GgufFile& file) {
  for (std::uint64_t i = 0; in.ok() && i < count; ++i) {
    GgufTensor tensor;
    tensor.name = text_at(in, kNameBytesMax, "the name of a tensor");
    const auto dims = in.number<std::uint32_t>("the dimensions of a tensor");
    if (in.ok() && dims > kDimsMax) {
      return in.fail(corrupt(fmt::format("tensor {} has {} dimensions", tensor.name, dims)));
    }
    for (std::uint32_t d = 0; in.ok() && d < dims; ++d) tensor.sizes.push_back(in.number<std::uint64_t>(tensor.name));
    tensor.type = in.number<std::uint32_t>(tensor.name);
    tensor.offset = in.number<std::uint64_t>(tensor.name);
    file.tensors.push_back(std::move(tensor));
  }
}

Status check_head(BlobReader& in, GgufFile& file, std::uint64_t& tensors, std::uint64_t& keys) {
  const auto magic = in.number<std::uint32_t>("the magic number");
  file.version = in.number<std::uint32_t>("the version");
  if (in.ok() && magic != kMagic)
    return corrupt(fmt::format("a GGUF file begins with \"GGUF\", this one with {:#x}", magic));
  if (in.ok() && (file.version < 2 || file.version > 3)) {
    const bool is_swapped = file.version != 0 && (file.version & 0xffff) == 0;
    return unsupported(is_swapped ? std::string("a big-endian GGUF file")
                                  : fmt::format("GGUF version {}: 2 and 3 are known", file.version));
  }
  tensors = in.number<std::uint64_t>("the number of tensors");
  keys = in.number<std::uint64_t>("the number of keys");
  if (in.ok() && (tensors > kGgufItemsMax || keys > kGgufItemsMax)) {
    return corrupt(fmt::format("{} tensors and {} keys: at most {} each", tensors, keys, kGgufItemsMax));
  }
  return Status::ok();
}

// Behind the tensors: where the data begin, and whether they can be in the file.
Status finish(GgufFile& file, std::uint64_t head_bytes, std::uint64_t file_bytes) {
  const std::uint64_t alignment = file.number("general.alignment").value_or(32);
  if (alignment == 0 || alignment > kAlignmentMax || !std::has_single_bit(alignment)) {
    return corrupt(fmt::format("general.alignment is {}", alignment));
  }
  file.data_offset = (head_bytes + alignment - 1) / alignment * alignment;
  if (file.tensors.empty()) return Status::ok();
  for (const GgufTensor& tensor : file.tensors) {
    if (file.data_offset > file_bytes || tensor.offset > file_bytes - file.data_offset) {
      return corrupt(fmt::format("tensor {} begins at byte {} of the data, and the file has {} bytes: is it cut short?",
                                 tensor.name, tensor.offset, file_bytes));
    }
  }
  return Status::ok();
}

}  // namespace

std::optional<std::uint64_t> GgufFile::number(std::string_view key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  if (const auto* n = std::get_if<std::uint64_t>(&found->second)) return *n;
  std::int64_t number = 0;
  if (!is_whole(found->second, number) || number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end() || !std::holds_alternative<std::string>(found->second)) return std::nullopt;
  return std::get<std::string>(found->second);
}

std::optional<std::vector<std::uint64_t>> GgufFile::per_layer(std::string_view key, std::size_t count) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  if (const auto* array = std::get_if<GgufArray>(&found->second)) {
    if (array->numbers.size() < count || std::ranges::any_of(array->numbers, [](auto n) { return n < 0; })) {
      return std::nullopt;
    }
    return std::vector<std::uint64_t>(array->numbers.begin(),
                                      array->numbers.begin() + static_cast<std::ptrdiff_t>(count));
  }
  const auto one = number(key);
  if (!one) return std::nullopt;
  return std::vector<std::uint64_t>(count, *one);
}

Result<GgufFile> parse_gguf(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  BlobReader in(bytes);
  GgufFile file;
  std::uint64_t tensors = 0, keys = 0;
  LARDER_RETURN_IF_ERROR(check_head(in, file, tensors, keys));
  read_metadata(in, keys, file);
  read_tensors(in, tensors, file);
  if (!in.ok()) {
    const bool has_more = in.ran_out() && bytes.size() < file_bytes;
    return has_more ? not_found("the head of the file is longer") : in.status();
  }
  LARDER_RETURN_IF_ERROR(finish(file, in.offset(), file_bytes));
  std::byte size[8];
  store_le<std::uint64_t>(size, file_bytes);
  file.head_digest = Sha256().update(bytes.data(), in.offset()).update(size, sizeof size).finish();
  return file;
}

namespace {

Result<GgufFile> read_head(FileSystem& files, const std::string& path) {
  auto file = files.open(path, {});
  if (!file) return file.status();
  const Result<std::uint64_t> size = (*file)->size_bytes();
  if (!size) return size.status();
  for (std::uint64_t wanted = kFirstRead;; wanted *= 4) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(std::min({wanted, *size, std::uint64_t{kGgufHeadBytesMax}})));
    LARDER_RETURN_IF_ERROR(read_exactly(**file, bytes, 0));
    Result<GgufFile> head = parse_gguf(bytes, *size);
    if (head) return head;
    if (head.status().code() == StatusCode::kNotFound && bytes.size() < kGgufHeadBytesMax) continue;
    if (head.status().code() == StatusCode::kNotFound) {
      return unsupported(fmt::format("{}: its metadata have more than {} bytes", path, kGgufHeadBytesMax));
    }
    return Status(head.status().code(), path + ": " + head.status().message());
  }
}

// name-00001-of-00003.gguf: the names of all. The first one must have been given.
Result<std::vector<std::string>> part_paths(const std::string& path, std::uint64_t count) {
  const std::string ending = fmt::format("-{:05}-of-{:05}.gguf", 1, count);
  if (count > kGgufPartsMax) return unsupported(fmt::format("{}: a model in {} files", path, count));
  if (!path.ends_with(ending)) {
    return invalid_argument(
        fmt::format("{}: one of {} files of a model: name the first one, which ends with {}", path, count, ending));
  }
  std::vector<std::string> paths;
  const std::string stem = path.substr(0, path.size() - ending.size());
  for (std::uint64_t i = 1; i <= count; ++i) paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, count));
  return paths;
}

// Adds the names of a file's tensors to those of its model.
Status add_names(const GgufFile& file, const std::string& path, GgufModel& model, std::uint64_t& bytes) {
  for (const GgufTensor& tensor : file.tensors) {
    bytes += tensor.name.size();
    model.tensor_names.push_back(tensor.name);
  }
  if (model.tensor_names.size() <= kGgufItemsMax && bytes <= kGgufHeadBytesMax) return Status::ok();
  return unsupported(
      fmt::format("{}: with it the files of the model have {} tensors, and names of {} bytes: at most "
                  "{} and {}",
                  path, model.tensor_names.size(), bytes, kGgufItemsMax, kGgufHeadBytesMax));
}

}  // namespace

Result<GgufModel> read_gguf(FileSystem& files, const std::string& path) {
  Result<GgufFile> first = read_head(files, path);
  if (!first) return first.status();
  GgufModel model{std::move(*first), {path}, {}};
  const std::uint64_t count = model.first.number("split.count").value_or(1);
  if (count > 1) {
    auto paths = part_paths(path, count);
    if (!paths) return paths.status();
    model.paths = std::move(*paths);
  }
  Sha256 digest;
  digest.update(model.first.head_digest.bytes);
  std::uint64_t name_bytes = 0;
  LARDER_RETURN_IF_ERROR(add_names(model.first, path, model, name_bytes));
  for (std::size_t i = 1; i < model.paths.size(); ++i) {
    const Result<GgufFile> part = read_head(files, model.paths[i]);
    if (!part) return part.status();
    digest.update(part->head_digest.bytes);
    LARDER_RETURN_IF_ERROR(add_names(*part, model.paths[i], model, name_bytes));
  }
  model.identity = digest.finish();
  return model;
}

namespace {

// SHA-256 over `piece` bytes of each file at every multiple of step_of(its size).
template <class StepOf>
Result<Digest256> hash_pieces(FileSystem& files, const GgufModel& model, std::size_t piece, StepOf step_of) {
  Sha256 digest;
  std::vector<std::byte> bytes(piece);
  for (const std::string& path : model.paths) {
    auto file = files.open(path, {});
    if (!file) return file.status();
    const Result<std::uint64_t> size = (*file)->size_bytes();
    if (!size) return size.status();
    for (std::uint64_t at = 0; at < *size; at += step_of(*size)) {
      const auto part = std::span(bytes).first(static_cast<std::size_t>(std::min<std::uint64_t>(*size - at, piece)));
      LARDER_RETURN_IF_ERROR(read_exactly(**file, part, at));
      digest.update(part.data(), part.size());
    }
    std::byte end[8];  // or bytes could move from one file to the next
    store_le<std::uint64_t>(end, *size);
    digest.update(end, sizeof end);
  }
  return digest.finish();
}

}  // namespace

Result<Digest256> hash_gguf(FileSystem& files, const GgufModel& model) {
  return hash_pieces(files, model, kHashRead, [](std::uint64_t) { return kHashRead; });
}

Result<Digest256> sample_gguf(FileSystem& files, const GgufModel& model) {
  return hash_pieces(files, model, kSampleBytes, [](std::uint64_t size) {
    return std::max<std::uint64_t>(kSampleBytes, size / kGgufSamples / kSampleBytes * kSampleBytes);
  });
}

}  // namespace larder::llama
