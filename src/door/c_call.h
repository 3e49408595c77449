// SPDX-License-Identifier: Apache-2.0
// What the C functions share: handles, structs of a caller's version, codes, and exceptions that stay inside.
//
// Threads: any. Included by the C functions and their tests only.
#pragma once

#include <larder/larder.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "door/page_store.h"

struct larder_cancel {
  std::shared_ptr<std::atomic<bool>> flag = std::make_shared<std::atomic<bool>>(false);
};

struct larder_store {
  std::unique_ptr<larder::PageStore> store;
  std::atomic<std::uint64_t> spaces{0};
  std::atomic<std::uint64_t> connectors{0};  // that it is attached to
};

struct larder_space {
  larder_store* owner = nullptr;
  larder::PageSpace space;
};

namespace larder::c {

// Fills `error`, if there is one, and returns the code.
larder_code fail(const Status& status, larder_error* error);
larder_code wrong(const char* message, larder_error* error);
// No exception leaves the library: no memory or no thread is a full resource, anything else a bug of ours.
template <class Body>
larder_code guarded(larder_error* error, Body&& body) {
  try {
    return fail(body(), error);
  } catch (const std::bad_alloc&) {
    return fail(Status(StatusCode::kOverloaded, "out of memory"), error);
  } catch (const std::system_error& e) {  // of std::thread
    const bool is_full = e.code() == std::errc::resource_unavailable_try_again;
    return fail(is_full ? Status(StatusCode::kOverloaded, "the system has no thread to spare: a limit of processes?")
                        : Status(StatusCode::kInternal, e.what()),
                error);
  } catch (const std::exception& e) {
    return fail(Status(StatusCode::kInternal, e.what()), error);
  } catch (...) {  // NOLINT: nothing may leave
    return fail(Status(StatusCode::kInternal, "an unknown exception"), error);
  }
}

// kInvalidArgument: `size` is no struct_size of a `name`.
[[nodiscard]] Status check_struct_size(std::uint32_t size, const char* name);
// kUnsupported: the caller's struct has something in fields of a later version, behind the `known` bytes.
[[nodiscard]] Status check_later_fields(const void* from, std::size_t known, std::size_t size, const char* name);

// The caller's struct, with zeros where its version of it ends.
template <class Struct>
Status read_struct(const Struct* from, const char* name, Struct& out) {
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  if (from == nullptr) return Status::ok();
  LARDER_RETURN_IF_ERROR(check_struct_size(from->struct_size, name));
  LARDER_RETURN_IF_ERROR(check_later_fields(from, sizeof out, from->struct_size, name));
  std::memcpy(static_cast<void*>(&out), from, std::min<std::size_t>(from->struct_size, sizeof out));
  return Status::ok();
}

// What the caller's version of the struct has of `from`; zeros in its fields of a later version. Its size is checked.
template <class Struct>
void write_struct(Struct from, Struct* out) {
  const std::size_t size = out->struct_size;
  from.struct_size = out->struct_size;
  if (size > sizeof from) std::memset(reinterpret_cast<std::byte*>(out) + sizeof from, 0, size - sizeof from);
  std::memcpy(static_cast<void*>(out), &from, std::min(size, sizeof from));
}

[[nodiscard]] Status read_seconds(double seconds, Nanos& out);  // what is above 0 stays above 0
// Memory to be registered. kInvalidArgument names the segment that is none of a process.
[[nodiscard]] Status read_memory(const larder_segment* from, std::size_t count, std::vector<Segment>& out);
// The length of `from`; what fits of it, with a final zero, goes to `text`.
std::size_t copy_text(const std::string& from, char* text, std::size_t size);
[[nodiscard]] std::string text_of(const char* text);  // null: ""
[[nodiscard]] Status read_space(const larder_space_options* from, SpaceDescription& out);

}  // namespace larder::c
