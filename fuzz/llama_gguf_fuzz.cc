// SPDX-License-Identifier: Apache-2.0
// Heads of GGUF files (engine/llama/gguf_file.h) and what they say about the cache (gguf_geometry.h).
//
// Fed: how many bytes more the file has, and its first bytes; or a right head with some bytes changed.
// Checked: refusals have one of three codes and say why; kNotFound only if the file has more than what was read. What
// is taken is taken with more bytes behind it, too, and gives the same tensors. A geometry has the layers that the file
// names, and its pools are pools, or are refused.
#include "engine/llama/gguf_file.h"
#include "engine/llama/gguf_geometry.h"
#include "engine/llama/gguf_test_util.h"
#include "engine/llama/model_pools.h"
#include "fuzz/fuzz_input.h"

namespace larder::fuzz {
namespace {

using namespace larder::llama;

void check_geometry(const GgufFile& file) {
  for (const std::string_view type : {"f16", "q8_0"}) {
    const auto geometry = gguf_geometry(file, *cache_type(type), *cache_type(type));
    if (!geometry.is_ok()) {
      fuzz_check(geometry.status().code() == StatusCode::kInvalidArgument ||
                     geometry.status().code() == StatusCode::kUnsupported,
                 "a geometry is refused with " + geometry.status().to_string());
      check_explains(geometry.status(), "gguf_geometry");
      continue;
    }
    const BlobGeometry& blob = geometry->blob;
    fuzz_check(geometry->layers > 0 && (blob.full || blob.window || blob.recurrent), "a model without layers");
    const auto pools = model_pools(blob, {});
    if (pools.is_ok()) fuzz_check(PageSpace::create(pools->space).is_ok(), "pools that no store takes");
  }
}

void check_head(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  const auto file = parse_gguf(bytes, file_bytes);
  if (!file.is_ok()) {
    const StatusCode code = file.status().code();
    fuzz_check(code == StatusCode::kCorrupt || code == StatusCode::kUnsupported ||
                   (code == StatusCode::kNotFound && file_bytes > bytes.size()),
               "refused with " + file.status().to_string());
    check_explains(file.status(), "parse_gguf");
    return;
  }
  std::vector<std::byte> longer = copy_of(bytes);
  longer.resize(longer.size() + 40);
  const auto again = parse_gguf(longer, std::max<std::uint64_t>(file_bytes, longer.size()));
  fuzz_check(again.is_ok() && again->tensors.size() == file->tensors.size(), "bytes behind the head change it");
  check_geometry(*file);
}

void run(FuzzInput input) {
  const bool is_made = input.flag();
  const std::uint64_t more = input.below(1000);
  if (!is_made) {
    const std::span<const std::byte> bytes = input.rest();
    return check_head(bytes, bytes.size() + more);
  }
  std::vector<std::byte> bytes = gguf_test::small_model().file(64);
  for (std::size_t changes = input.below(5); changes > 0; --changes) {
    bytes[input.below(bytes.size())] = static_cast<std::byte>(input.below(256));
  }
  check_head(bytes, bytes.size() + more);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
