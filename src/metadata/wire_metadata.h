// SPDX-License-Identifier: Apache-2.0
// The asking side of MetadataService's calls as messages: all of a client but the way that a message takes.
//
//   call ──► encode_*() ──► exchange(): HTTP (HttpMetadata), or a simulated line ──► open_answer(), decode_*() ──►
//   answer
//
// Threads: as exchange(). Cost: one message of some dozens of bytes a key, once each way (metadata_wire.h).
// Errors: those of exchange(), and of the message: kInvalidArgument: a call is larger than a message can be, or a name
// or a key is too long; kCorrupt: the answer is broken.
#pragma once

#include <string>

#include "metadata/metadata_wire.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

class WireMetadata : public MetadataService {
 public:
  [[nodiscard]] bool is_remote() const override { return true; }
  [[nodiscard]] Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override;
  [[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                              Nanos lease) override;
  [[nodiscard]] Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                   std::span<const ReserveItems> wanted,
                                                                   Nanos ttl) override;
  [[nodiscard]] Result<std::vector<Status>> confirm(const ConfirmRequest& request) override;
  [[nodiscard]] Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override;
  [[nodiscard]] Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override;
  [[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> stats() override;

 private:
  // The answer's bytes. Blocks until they are there, or an error is sure.
  [[nodiscard]] virtual Result<std::string> exchange(const std::string& message) = 0;
  // A message out, the payload of its answer through `decode` in.
  template <class T, class Decode>
  [[nodiscard]] Result<T> call(metadata::WireOperation operation, const Result<std::string>& message, Decode decode);
};

}  // namespace larder
