// SPDX-License-Identifier: Apache-2.0
// A run: a stretch of a shared, reference-counted array.
//
// Purpose: the tokens, slots and keys of an edge. Splitting an edge makes two runs over one array and moves nothing.
// Picture:   [header | item item item item item item]     run A -> item 0, run B -> item 4, header.refs = 2
// A run does not know its length: that is the edge's (pages, or pages * page_size for tokens). Whoever gives a run to a
// node says so with add_used(), and remove_used() when the node lets go, so that an array of which little is left can
// be found and made smaller (TreeState::compact_ancestors()). append() joins runs of two arrays. Threads: confined with
// the tree (the count is not atomic). Cost: 16 bytes; one allocation per array.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace larder::tree {

template <class T>
class Run {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T> && alignof(T) <= 8);

 public:
  Run() = default;
  Run(Run&& other) noexcept : header_(std::exchange(other.header_, nullptr)), data_(other.data_) {}
  Run& operator=(Run&& other) noexcept {
    if (this != &other) {
      reset();
      header_ = std::exchange(other.header_, nullptr);
      data_ = other.data_;
    }
    return *this;
  }
  ~Run() { reset(); }

  // A new array of `count` items for the caller to fill through mutable_data() before anybody shares it.
  [[nodiscard]] static Run with_room_for(std::size_t count) {
    Run run;
    void* raw = ::operator new(sizeof(Header) + count * sizeof(T));
    run.header_ = new (raw) Header{count, 0, 1, 0};
    run.data_ = reinterpret_cast<T*>(run.header_ + 1);
    return run;
  }
  [[nodiscard]] static Run copy_of(std::span<const T> items) {
    Run run = with_room_for(items.size());
    if (!items.empty()) std::memcpy(static_cast<void*>(run.data_), items.data(), items.size_bytes());
    return run;
  }

  // Makes this run, of `count` items in use, go on with the `more` items in use of `next`, which gives them up. In
  // place if the array has room and nothing else behind this run; else in a new array, for up to `most` items. O(more)
  // on average over appends, O(count + more) at worst.
  void append(std::size_t count, Run& next, std::size_t more, std::size_t most) {
    if (header_ == nullptr || continues_in(next, count)) return;
    const bool is_last = data_ + count == begin() + (header_->count - header_->spare);
    if (!is_last || header_->spare < more) {
      Run grown = with_room_for(std::max(count + more, std::min(2 * (count + more), most)));
      std::memcpy(static_cast<void*>(grown.data_), data_, count * sizeof(T));
      grown.header_->spare = static_cast<std::uint32_t>(grown.header_->count - count);
      remove_used(count);
      grown.add_used(count);
      *this = std::move(grown);
    }
    std::memcpy(static_cast<void*>(data_ + count), next.data_, more * sizeof(T));
    header_->spare -= static_cast<std::uint32_t>(more);
    add_used(more);
    next.remove_used(more);
  }

  // A second run over the same array, `skip` items further on.
  [[nodiscard]] Run share(std::size_t skip = 0) const {
    Run run;
    run.header_ = header_;
    run.data_ = data_ + skip;
    if (header_ != nullptr) ++header_->refs;
    return run;
  }
  void advance(std::size_t by) { data_ += by; }
  void reset() {
    if (header_ == nullptr) return;
    if (--header_->refs == 0) ::operator delete(header_);
    header_ = nullptr;
  }

  [[nodiscard]] explicit operator bool() const { return header_ != nullptr; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] T* mutable_data() { return data_; }
  // Does `next` go on in the same array where `count` items of this run end?
  [[nodiscard]] bool continues_in(const Run& next, std::size_t count) const {
    return header_ == next.header_ && (header_ == nullptr || data_ + count == next.data_);
  }
  [[nodiscard]] bool same_array(const Run& other) const { return header_ == other.header_; }
  void add_used(std::size_t count) {
    if (header_ != nullptr) header_->used += count;
  }
  void remove_used(std::size_t count) {
    if (header_ != nullptr) header_->used -= count;
  }
  // Little of a large array is used.
  [[nodiscard]] bool is_sparse() const {
    return header_ != nullptr && header_->count > kSmallArray && header_->used < header_->count / 4;
  }

 private:
  static constexpr std::size_t kSmallArray = 64;  // items; not worth copying
  struct Header {
    std::size_t count, used;
    std::uint32_t refs;
    std::uint32_t spare;  // items at the end that hold nothing yet
  };
  [[nodiscard]] const T* begin() const { return reinterpret_cast<const T*>(header_ + 1); }
  Header* header_ = nullptr;
  T* data_ = nullptr;  // meaningful only while header_ is set
};

}  // namespace larder::tree
