// SPDX-License-Identifier: Apache-2.0
// Reads pages into an engine's memory. See chunk_call.h.
#pragma once

#include "door/chunk_call.h"

namespace larder {

class GetCall final : public ChunkCall {
 public:
  using ChunkCall::ChunkCall;

 protected:
  [[nodiscard]] std::shared_ptr<Chunk> make_chunk() override { return std::make_shared<Chunk>(); }
  [[nodiscard]] Status start(const std::shared_ptr<Chunk>& chunk, TimePoint deadline) override;
  void finish(Chunk& chunk) override;
  void give_up(std::size_t begin, std::size_t end, bool is_in_flight, const Status& why) override;
  [[nodiscard]] Lane lane() const override { return Lane::kRead; }

 private:
  void count(const CallPage& page);
};

}  // namespace larder
