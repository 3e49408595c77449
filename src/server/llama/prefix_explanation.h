// What a prompt would be given now, from a slot, from host memory and from storage, and why not more: the answer of
// /larder/explain, in the shape of /explain (`larder explain` prints it).
//
// Nothing is read or restored: storage is asked which pages it has. Host memory and storage are each looked at alone; a
// request may get further with both.
// Threads: any. Errors: kInvalidArgument: neither "text", "input_ids" nor "messages".
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/llama/llama_upstream.h"
#include "server/llama/prefix_store.h"
#include "server/llama/slot_table.h"

namespace larder::llama {

struct ExplainParts {
  const SlotFormat& format;
  PrefixStore& store;
  const SlotTable& slots;
  std::uint64_t ask_storage_tokens = 0;  // RelayParts
};

// body: {"text"} or {"input_ids"}, or a request for /v1/chat/completions; and "cache_salt".
[[nodiscard]] Result<std::string> explain_prefix(const ExplainParts& parts, LlamaUpstream& upstream,
                                                 std::string_view body);

}  // namespace larder::llama
