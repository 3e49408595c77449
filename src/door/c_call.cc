// SPDX-License-Identifier: Apache-2.0
#include "door/c_call.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace larder::c {

namespace {

Status read_pool(const larder_pool& from, std::size_t index, PoolDescription& out) {
  const std::string place = "larder_space_options.pools[" + std::to_string(index) + "].";
  if (from.name == nullptr) return invalid_argument(place + "name is null");
  if (from.layout == nullptr) return invalid_argument(place + "layout is null");
  if (from.hit_policy > LARDER_TRAILING_PAGES) return invalid_argument(place + "hit_policy is unknown");
  if ((from.flags & ~LARDER_POOL_REPLICATED) != 0) return invalid_argument(place + "flags has unknown bits");
  out.name = from.name;
  out.page_bytes = from.page_bytes;
  out.layout = from.layout;
  out.policy = static_cast<HitPolicy>(from.hit_policy);
  out.trailing_pages = from.trailing_pages;
  out.is_replicated = (from.flags & LARDER_POOL_REPLICATED) != 0;
  return Status::ok();
}

}  // namespace

larder_code fail(const Status& status, larder_error* error) {
  const auto code = static_cast<larder_code>(status.code());
  if (status.is_ok() || error == nullptr) return code;
  error->code = code;
  std::size_t length = std::min(status.message().size(), sizeof error->message - 1);
  // A cut inside a UTF-8 character takes the whole character.
  while (length < status.message().size() && length > 0 &&
         (static_cast<unsigned char>(status.message()[length]) & 0xc0u) == 0x80u) {
    --length;
  }
  std::memcpy(error->message, status.message().data(), length);
  error->message[length] = '\0';
  return code;
}

larder_code wrong(const char* message, larder_error* error) { return fail(invalid_argument(message), error); }

Status check_struct_size(std::uint32_t size, const char* name) {
  if (size >= 2 * sizeof(std::uint32_t) && size <= 4096) return Status::ok();
  return invalid_argument(std::string(name) + ".struct_size is " + std::to_string(size) + "; set it to sizeof(" + name +
                          ")");
}

Status check_later_fields(const void* from, std::size_t known, std::size_t size, const char* name) {
  const auto* const bytes = static_cast<const std::byte*>(from);
  if (size <= known || std::all_of(bytes + known, bytes + size, [](std::byte b) { return b == std::byte{0}; })) {
    return Status::ok();
  }
  return unsupported(std::string(name) + " asks for something that this version of Larder does not know");
}

Status read_seconds(double seconds, Nanos& out) {
  if (!(seconds >= 0 && seconds <= 1e7)) return invalid_argument("a timeout is 0 to 1e7 seconds");
  out = Nanos(std::max(std::llround(seconds * 1e9), seconds > 0 ? 1ll : 0ll));
  return Status::ok();
}

Status read_memory(const larder_segment* from, std::size_t count, std::vector<Segment>& out) {
  if (from == nullptr && count != 0) return invalid_argument("memory is null, and memory_count is not 0");
  for (std::size_t i = 0; i < count; ++i) {
    if (from[i].data == nullptr || from[i].size > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(from[i].data)) {
      return invalid_argument("memory[" + std::to_string(i) +
                              "] has no address, or more bytes than are behind it: " + std::to_string(from[i].size));
    }
    out.push_back({static_cast<std::byte*>(from[i].data), from[i].size});
  }
  return Status::ok();
}

std::size_t copy_text(const std::string& from, char* text, std::size_t size) {
  if (text != nullptr && size > 0) {
    const std::size_t length = std::min(from.size(), size - 1);
    std::memcpy(text, from.data(), length);
    text[length] = '\0';
  }
  return from.size();
}

std::string text_of(const char* text) { return text == nullptr ? std::string() : std::string(text); }

Status read_space(const larder_space_options* from, SpaceDescription& out) {
  larder_space_options options;
  LARDER_RETURN_IF_ERROR(read_struct(from, "larder_space_options", options));
  if (options.pools == nullptr && options.pool_count != 0) {
    return invalid_argument("larder_space_options.pools is null, and pool_count is not 0");
  }
  if (options.pool_count > LARDER_MAX_POOLS) {
    return invalid_argument("larder_space_options.pool_count is " + std::to_string(options.pool_count) + "; at most " +
                            std::to_string(LARDER_MAX_POOLS));
  }
  out.page_size = options.page_size;
  out.identity = text_of(options.identity);
  out.adapter = text_of(options.adapter);
  out.salt = text_of(options.salt);
  out.tp_rank = options.tp_rank;
  out.tp_size = std::max(options.tp_size, 1u);
  out.pp_rank = options.pp_rank;
  out.pp_size = std::max(options.pp_size, 1u);
  out.cp_rank = options.cp_rank;
  out.cp_size = std::max(options.cp_size, 1u);
  // Pools are an array of the caller's structs: its struct_size is the step.
  const auto* at = reinterpret_cast<const std::byte*>(options.pools);
  const std::size_t step = options.pool_count > 0 ? options.pools[0].struct_size : 0;
  for (std::size_t i = 0; i < options.pool_count; ++i, at += step) {
    larder_pool pool;
    LARDER_RETURN_IF_ERROR(read_struct(reinterpret_cast<const larder_pool*>(at), "larder_pool", pool));
    if (pool.struct_size != step) return invalid_argument("larder_pool.struct_size differs between pools");
    LARDER_RETURN_IF_ERROR(read_pool(pool, i, out.pools.emplace_back()));
  }
  return Status::ok();
}

}  // namespace larder::c
