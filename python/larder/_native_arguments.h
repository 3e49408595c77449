// SPDX-License-Identifier: Apache-2.0
// Python arguments as the plain arrays that the C interface takes, and errors as larder.Error. All under the GIL.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "larder/larder.h"

namespace nb = nanobind;

namespace larder_python {

// ---- errors ----

inline PyObject* g_error_class = nullptr;  // larder.Error(code, message); set once at import, never freed

[[noreturn]] inline void raise_error(int code, const std::string& message) {
  if (g_error_class == nullptr) {
    throw std::runtime_error(message);
  }
  const nb::object error = nb::borrow(g_error_class)(code, message);
  PyErr_SetObject(g_error_class, error.ptr());
  throw nb::python_error();
}

[[noreturn]] inline void raise_argument(const std::string& message) { raise_error(LARDER_INVALID_ARGUMENT, message); }

[[noreturn]] inline void raise_error(larder_code code, const larder_error& error) {
  if (error.message[0] != '\0') {
    raise_error(static_cast<int>(code), error.message);
  }
  raise_error(static_cast<int>(code), larder_code_name(code));
}
// ---- arguments ----

inline constexpr std::size_t kKeyBytes = LARDER_KEY_BYTES;

constexpr std::array<int8_t, 256> make_hex_table() {
  std::array<int8_t, 256> table{};
  for (int8_t& value : table) {
    value = -1;
  }
  for (int i = 0; i < 10; ++i) {
    table[static_cast<std::size_t>('0' + i)] = static_cast<int8_t>(i);
  }
  for (int i = 0; i < 6; ++i) {
    table[static_cast<std::size_t>('a' + i)] = static_cast<int8_t>(10 + i);
    table[static_cast<std::size_t>('A' + i)] = static_cast<int8_t>(10 + i);
  }
  return table;
}
inline constexpr std::array<int8_t, 256> kHex = make_hex_table();

// 64 hex digits -> 32 bytes at `out`. False: one of them is none.
inline bool read_hex(const char* text, uint8_t* out) {
#ifdef __SSE2__
  const auto between = [](__m128i c, char low, char high) {
    return _mm_and_si128(_mm_cmpgt_epi8(c, _mm_set1_epi8(static_cast<char>(low - 1))),
                         _mm_cmplt_epi8(c, _mm_set1_epi8(static_cast<char>(high + 1))));
  };
  // The values of 16 digits in pairs: bits 0 to 3 of each half of a lane -> one byte a lane.
  const auto join = [](__m128i v) {
    return _mm_and_si128(_mm_or_si128(_mm_slli_epi16(v, 4), _mm_srli_epi16(v, 8)), _mm_set1_epi16(0xff));
  };
  __m128i all = _mm_set1_epi8(-1);
  const auto values = [&](const char* from) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i digit = between(c, '0', '9');
    const __m128i letter = between(_mm_or_si128(c, _mm_set1_epi8(0x20)), 'a', 'f');
    all = _mm_and_si128(all, _mm_or_si128(digit, letter));
    return _mm_add_epi8(_mm_and_si128(c, _mm_set1_epi8(15)), _mm_and_si128(letter, _mm_set1_epi8(9)));
  };
  for (std::size_t half = 0; half < 2; ++half) {
    const __m128i joined = _mm_packus_epi16(join(values(text + 32 * half)), join(values(text + 32 * half + 16)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * half), joined);
  }
  return _mm_movemask_epi8(all) == 0xffff;
#else
  int bad = 0;
  for (std::size_t i = 0; i < kKeyBytes; ++i) {
    const int high = kHex[static_cast<uint8_t>(text[2 * i])];
    const int low = kHex[static_cast<uint8_t>(text[2 * i + 1])];
    bad |= high | low;
    out[i] = static_cast<uint8_t>((high << 4) | low);
  }
  return bad >= 0;
#endif
}

// 64 hex digits or 32 bytes -> 32 bytes at `out`. False: it is neither.
inline bool read_key(PyObject* item, uint8_t* out) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(item)) {
    const char* text = PyUnicode_AsUTF8AndSize(item, &size);
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    if (size != static_cast<Py_ssize_t>(2 * kKeyBytes)) {
      return false;
    }
    return read_hex(text, out);
  }
  char* bytes = nullptr;
  if (!PyBytes_Check(item) || PyBytes_AsStringAndSize(item, &bytes, &size) != 0 ||
      size != static_cast<Py_ssize_t>(kKeyBytes)) {
    PyErr_Clear();
    return false;
  }
  std::memcpy(out, bytes, kKeyBytes);
  return true;
}

// A text for C: what is behind a zero character would be lost, and with it a difference between two identities.
inline const char* c_text(const std::string& text, const char* name) {
  if (text.find('\0') != std::string::npos) {
    raise_argument(std::string(name) + " holds a zero character");
  }
  return text.c_str();
}

inline nb::object as_list(nb::handle items) {
  if (PyList_Check(items.ptr())) {
    return nb::borrow(items);
  }
  PyObject* list = PySequence_List(items.ptr());
  if (list == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(list);
}

// Keys as one array. `keys`: a sequence of 64-digit str or 32-byte bytes, or one bytes object with all of them.
inline std::vector<uint8_t> read_keys(nb::handle keys) {
  if (PyBytes_Check(keys.ptr())) {
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    PyBytes_AsStringAndSize(keys.ptr(), &bytes, &size);
    if (size % static_cast<Py_ssize_t>(kKeyBytes) != 0) {
      raise_argument("keys: " + std::to_string(size) + " bytes are no whole number of 32-byte keys");
    }
    return {bytes, bytes + size};
  }
  const nb::object list = as_list(keys);
  const auto count = static_cast<std::size_t>(PyList_Size(list.ptr()));
  std::vector<uint8_t> out(count * kKeyBytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (!read_key(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)), out.data() + i * kKeyBytes)) {
      raise_argument("keys[" + std::to_string(i) + "] is neither a str of 64 hex digits nor 32 bytes");
    }
  }
  return out;
}

inline std::optional<std::array<uint8_t, kKeyBytes>> read_optional_key(nb::handle key, const char* name) {
  if (key.is_none()) {
    return std::nullopt;
  }
  std::array<uint8_t, kKeyBytes> out{};
  if (!read_key(key.ptr(), out.data())) {
    raise_argument(std::string(name) + " is neither a str of 64 hex digits nor 32 bytes");
  }
  return out;
}

// A view of a Python buffer, released under the GIL.
class BufferView {
 public:
  BufferView(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      throw nb::python_error();
    }
  }
  BufferView(BufferView&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  BufferView& operator=(BufferView&&) = delete;
  ~BufferView() {
    if (view_.obj != nullptr) {
      PyBuffer_Release(&view_);
    }
  }
  [[nodiscard]] const Py_buffer& get() const { return view_; }

 private:
  Py_buffer view_{};
};

// `value` as an Int; an error if it does not fit.
template <typename Int>
Int narrow_integer(int64_t value, const char* name, std::size_t place) {
  const auto out = static_cast<Int>(value);
  if (value < 0 || static_cast<int64_t>(out) != value) {
    raise_argument(std::string(name) + "[" + std::to_string(place) + "] is " + std::to_string(value) +
                   ": out of range");
  }
  return out;
}

template <typename Int>
std::vector<Int> read_integer_buffer(nb::handle items, const char* name) {
  const BufferView buffer(items, PyBUF_CONTIG_RO | PyBUF_FORMAT);
  const auto* data = static_cast<const char*>(buffer.get().buf);
  const auto item = static_cast<std::size_t>(buffer.get().itemsize);
  const std::string format = buffer.get().format == nullptr ? "B" : buffer.get().format;
  const char type = format.find_first_of("@=<") == 0 ? format[1] : format[0];  // '>': of another byte order
  const bool is_signed = std::string_view("ilqn").find(type) != std::string_view::npos;
  const bool is_integer = is_signed || std::string_view("ILQN").find(type) != std::string_view::npos;
  if ((item != 4 && item != 8) || !is_integer) {
    raise_argument(std::string(name) + ": items of format '" + format + "'; integers of 4 or 8 bytes are read");
  }
  std::vector<Int> out(static_cast<std::size_t>(buffer.get().len) / item);
  for (std::size_t i = 0; i < out.size(); ++i) {
    int64_t value = 0;
    if (item == 4) {
      uint32_t half = 0;
      std::memcpy(&half, data + i * 4, 4);
      value = is_signed ? static_cast<int32_t>(half) : int64_t{half};
    } else {
      std::memcpy(&value, data + i * 8, 8);
    }
    out[i] = narrow_integer<Int>(value, name, i);
  }
  return out;
}

// Whole numbers from a list or a contiguous buffer of 4- or 8-byte integers.
template <typename Int>
std::vector<Int> read_integers(nb::handle items, const char* name) {
  if (!PyList_Check(items.ptr()) && PyObject_CheckBuffer(items.ptr()) != 0) {
    return read_integer_buffer<Int>(items, name);
  }
  const nb::object list = as_list(items);
  std::vector<Int> out(static_cast<std::size_t>(PyList_Size(list.ptr())));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const long long value = PyLong_AsLongLong(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)));
    if (value == -1 && PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    out[i] = narrow_integer<Int>(value, name, i);
  }
  return out;
}

// ---- page layouts ----

struct LayoutSegment {
  uint64_t base = 0;         // address of the segment of page 0
  uint64_t page_stride = 0;  // bytes from a page to the next
  uint64_t size = 0;
};

// Where the pages of a host pool lie: page p's segment s is [base_s + p * stride_s, + size_s). Immutable.
class PageLayout {
 public:
  PageLayout(const std::vector<std::tuple<uint64_t, uint64_t, uint64_t>>& segments, uint64_t slots_per_page,
             uint64_t slots)
      : slots_per_page_(slots_per_page), slots_(slots) {
    if (slots_per_page == 0) {
      raise_argument("slots_per_page is 0");
    }
    segments_.reserve(segments.size());
    for (const auto& [base, stride, size] : segments) {
      if (base == 0 || size == 0) {
        raise_argument("a segment has address or size 0");
      }
      segments_.push_back({base, stride, size});
      page_bytes_ += size;
    }
  }

  // Writes the segments of the page that begins at `slot`.
  void locate(uint64_t slot, larder_segment* out) const {
    if (slot % slots_per_page_ != 0 || slot >= slots_ || slots_ - slot < slots_per_page_) {
      raise_argument("slot " + std::to_string(slot) + " begins no page of a pool with " + std::to_string(slots_) +
                     " slots in pages of " + std::to_string(slots_per_page_));
    }
    const uint64_t page = slot / slots_per_page_;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses come as numbers from Python
      out[i].data = reinterpret_cast<void*>(segments_[i].base + page * segments_[i].page_stride);
      out[i].size = segments_[i].size;
    }
  }

  [[nodiscard]] std::vector<std::tuple<uint64_t, uint64_t>> addresses(uint64_t slot) const {
    std::vector<larder_segment> located(segments_.size());
    locate(slot, located.data());
    std::vector<std::tuple<uint64_t, uint64_t>> out;
    for (const larder_segment& segment : located) {
      out.emplace_back(reinterpret_cast<uint64_t>(segment.data), segment.size);
    }
    return out;
  }

  [[nodiscard]] std::size_t segment_count() const { return segments_.size(); }
  [[nodiscard]] uint64_t page_bytes() const { return page_bytes_; }
  [[nodiscard]] uint64_t slots_per_page() const { return slots_per_page_; }
  [[nodiscard]] uint64_t slots() const { return slots_; }

 private:
  std::vector<LayoutSegment> segments_;
  uint64_t slots_per_page_;
  uint64_t slots_;
  uint64_t page_bytes_ = 0;
};

}  // namespace larder_python
