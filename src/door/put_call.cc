// SPDX-License-Identifier: Apache-2.0
#include "door/put_call.h"

#include <utility>

namespace larder {

void PutCall::make_groups(PutChunk& chunk) const {
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    if (i == chunk.begin || pages_[i].key != pages_[i - 1].key) {
      chunk.group_begin.push_back(i);
      chunk.groups.emplace_back();
    }
    if (chunk.piece) copy_from_segments(pages_[i].segments, staged(chunk, i));
    chunk.groups.back().items.push_back(
        {space_.number_of(pages_[i].pool), pages_[i].key, operation_segments(chunk, i), pages_[i].parent});
  }
  chunk.group_begin.push_back(chunk.end);
}

Status PutCall::start(const std::shared_ptr<Chunk>& base, TimePoint deadline) {
  const auto chunk = std::static_pointer_cast<PutChunk>(base);
  make_groups(*chunk);
  WriteRequest request;
  request.scope = space_.scope();
  // What nobody will write again is the operation's alone.
  request.groups = terms_.retry ? chunk->groups : std::exchange(chunk->groups, {});
  request.durable = terms_.durable;
  request.terms = {Urgency::kBackground, deadline, terms_.cancel};
  request.as_of = begun_;
  // What a call has left behind may still fail, and is worth another try then: its bytes are in the piece.
  const bool may_retry = terms_.retry && chunk->piece;
  return core_.pipeline->submit_write(
      std::move(request), [chunk, may_retry, begun = begun_, retry = core_.retry, scope = space_.scope(),
                           durable = terms_.durable, inbox = inbox_](WriteResult result) {
        chunk->answers = std::move(result.groups);
        const bool is_over = !inbox->post(chunk);
        for (std::size_t i = 0; is_over && may_retry && i < chunk->answers.size() && i < chunk->groups.size(); ++i) {
          if (WriteRetry::is_worth_it(chunk->answers[i])) (void)retry->offer(scope, chunk->groups[i], durable, begun);
        }
      });
}

void PutCall::finish(Chunk& base) {
  auto& chunk = static_cast<PutChunk&>(base);
  const PageGroup none;
  for (std::size_t i = 0; i + 1 < chunk.group_begin.size(); ++i) {
    const Status status = i < chunk.answers.size() ? chunk.answers[i] : internal_error("a write without an answer");
    answer(chunk.group_begin[i], chunk.group_begin[i + 1], terms_.retry ? chunk.groups[i] : none, status);
  }
}

void PutCall::give_up(std::size_t begin, std::size_t end, bool is_in_flight, const Status& why) {
  // Its operation has the bytes, and offers them again if it fails.
  if (is_in_flight && terms_.retry && why.code() != StatusCode::kCancelled) return set_taken(begin, end, why);
  for (std::size_t i = begin; i < end;) {
    std::size_t after = i + 1;
    while (after < end && pages_[after].key == pages_[i].key) ++after;
    answer(i, after, group_of_engine(i, after), why);
    i = after;
  }
}

PageGroup PutCall::group_of_engine(std::size_t begin, std::size_t end) const {
  PageGroup group;
  for (std::size_t i = begin; i < end; ++i) {
    const CallPage& page = pages_[i];
    group.items.push_back(
        {space_.number_of(page.pool), page.key, {page.segments.begin(), page.segments.end()}, page.parent});
  }
  return group;
}

void PutCall::answer(std::size_t begin, std::size_t end, const PageGroup& group, const Status& status) {
  CallCounters& counters = core_.counters;
  if (status.is_ok()) {
    counters.pages_stored += end - begin;
    for (std::size_t i = begin; i < end; ++i) counters.bytes_stored += pool_of(pages_[i]).page_bytes;
  } else if (terms_.retry && WriteRetry::is_worth_it(status) &&
             core_.retry->offer(space_.scope(), group, terms_.durable, begun_)) {
    return set_taken(begin, end, status);
  } else {
    (status.code() == StatusCode::kUnsupported ? counters.pages_declined : counters.pages_refused) += end - begin;
  }
  set(begin, end, status);
}

void PutCall::set_taken(std::size_t begin, std::size_t end, const Status& why) {
  core_.counters.pages_to_retry += end - begin;
  set(begin, end, terms_.durable ? why : Status::ok());  // what is in memory survives no power cut
}

void PutCall::set(std::size_t begin, std::size_t end, const Status& status) {
  for (std::size_t i = begin; i < end; ++i) pages_[i].status = status;
}

}  // namespace larder
