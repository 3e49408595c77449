// SPDX-License-Identifier: Apache-2.0
#include "door/get_call.h"

#include <utility>

namespace larder {

Status GetCall::start(const std::shared_ptr<Chunk>& chunk, TimePoint deadline) {
  ReadRequest request;
  request.scope = space_.scope();
  request.terms.deadline = deadline;
  request.terms.cancel = terms_.cancel;
  request.items.reserve(chunk->end - chunk->begin);
  for (std::size_t i = chunk->begin; i < chunk->end; ++i) {
    request.items.push_back({space_.number_of(pages_[i].pool), pages_[i].key, operation_segments(*chunk, i)});
  }
  return core_.pipeline->submit_read(std::move(request), [chunk, inbox = inbox_](ReadResult result) {
    chunk->answers = std::move(result.items);
    (void)inbox->post(chunk);
  });
}

void GetCall::finish(Chunk& chunk) {
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    CallPage& page = pages_[i];
    const std::size_t at = i - chunk.begin;
    page.status = at < chunk.answers.size() ? chunk.answers[at] : internal_error("a read without an answer");
    if (page.status.is_ok() && chunk.piece) copy_to_segments(staged(chunk, i), page.segments);
    count(page);
  }
}

void GetCall::give_up(std::size_t begin, std::size_t end, bool, const Status& why) {
  for (std::size_t i = begin; i < end; ++i) {
    pages_[i].status = why;
    count(pages_[i]);
  }
}

void GetCall::count(const CallPage& page) {
  CallCounters& counters = core_.counters;
  switch (page.status.code()) {
    case StatusCode::kOk:
      ++counters.pages_read;
      counters.bytes_read += pool_of(page).page_bytes;
      return;
    case StatusCode::kNotFound: ++counters.pages_missed; return;
    case StatusCode::kCorrupt: ++counters.pages_corrupt; return;
    default: ++counters.pages_failed;
  }
}

}  // namespace larder
