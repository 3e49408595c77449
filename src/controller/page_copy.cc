// SPDX-License-Identifier: Apache-2.0
#include "controller/page_copy.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

namespace larder {

namespace {
constexpr Nanos kCloseLook = std::chrono::milliseconds(20);
}  // namespace

void PageCopy::add(std::span<const Segment> from, std::span<const Segment> to) {
  std::size_t i = 0, k = 0, read = 0, written = 0;  // places in from[i] and to[k]
  while (i < from.size() && k < to.size()) {
    const std::size_t size = std::min(from[i].size - read, to[k].size - written);
    if (size > 0) pieces_.push_back({to[k].data + written, from[i].data + read, size});
    bytes_ += size;
    read += size;
    written += size;
    if (read == from[i].size) ++i, read = 0;
    if (written == to[k].size) ++k, written = 0;
  }
}

void PageCopy::add_page(PoolName pool, std::uint64_t page, std::vector<Segment> host) {
  for (const Segment& segment : host) bytes_ += segment.size;
  pages_.push_back({pool, page, std::move(host)});
}

bool PageCopy::begin() {
  State expected = State::kWaiting;
  return state_.compare_exchange_strong(expected, State::kRunning, std::memory_order_acq_rel);
}

void PageCopy::revoke() {
  State expected = State::kWaiting;
  (void)state_.compare_exchange_strong(expected, State::kOver, std::memory_order_acq_rel);
}

Status PageCopy::call(const Page& page) {
  if (reader_) return reader_(page.pool, page.page, page.host);
  std::vector<ConstBytes> bytes;
  bytes.reserve(page.host.size());
  for (const Segment& segment : page.host) bytes.emplace_back(segment.data, segment.size);
  return writer_(page.pool, page.page, bytes);
}

Status PageCopy::run() {
  for (const Piece& piece : pieces_) std::memcpy(piece.to, piece.from, piece.size);
  try {
    for (const Page& page : pages_) LARDER_RETURN_IF_ERROR(call(page));
  } catch (const std::bad_alloc&) {  // a text that needs no memory
    return internal_error("no memory");
  } catch (const std::exception& error) {  // of the engine's callback: whoever waits must be told
    return internal_error(std::string("the engine's callback threw: ") + error.what());
  } catch (...) {
    return internal_error("the engine's callback threw");
  }
  return Status::ok();
}

void PageCopier::submit(OpId id, std::shared_ptr<PageCopy> copy) {
  const auto complete = ops_.completion_for(id);
  copies_.emplace(id.v, copy);
  const auto task = [id, copy, complete] {
    if (!copy->begin()) return;
    Status status = copy->run();
    copy->end();
    complete(TransferDone{id, std::move(status), {}, {}});
  };
  if (executor_ == nullptr) return task();
  if (Status posted = executor_->post(task); !posted.is_ok()) {
    copy->revoke();
    complete(TransferDone{id, std::move(posted), {}, {}});
  }
}

void PageCopier::close() {
  for (auto& [id, copy] : copies_) copy->revoke();
  for (auto& [id, copy] : copies_) {
    while (copy->is_running()) ops_.drain(kCloseLook, [](Completion&) {});
  }
  copies_.clear();
}

}  // namespace larder
