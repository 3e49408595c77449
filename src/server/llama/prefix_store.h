// SPDX-License-Identifier: Apache-2.0
// Host memory and storage behind a llama-server: tokens -> the longest prefix that can be resumed, and its bytes.
//
//   find() ─► Found, which keeps its pages ─► load(): a slot file's contents ─► (Found dies: pages may go)
//   save(): pages and state of a slot that stands at some token
//
// A Connector (controller/connector.h) on a thread of its own; all waiting is done by the callers.
//
// Threads: every method from any thread, several at once. Calls block until their limit at most.
// Lifetime: the store outlives each Found.
// Errors (rule 5): what cannot be had is a Found of no tokens, or a Status that says why; a request goes on without.
// Limits: host_bytes; beside them an eighth of that for buffers that are used again, and those that are in use (a save:
// one file; a load: two, until it returns one); what storage keeps is the backend's own limit; lookups, saves and loads
// as in connector.h.
// Cost: find() a hash of the prompt and what storage takes; load() and save() two copies of their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strong.h"
#include "controller/connector.h"
#include "door/page_store.h"
#include "events/kv_event_config.h"
#include "server/llama/byte_buffers.h"
#include "server/llama/slot_pages.h"
#include "server/llama/stored_prefix.h"

namespace larder::llama {

struct PrefixStoreOptions {
  std::uint64_t host_bytes = std::uint64_t{4} << 30;
  std::string storage;           // a backend's name (door/register_backends.h); empty: host memory only
  std::string storage_config;    // JSON
  TenantLimits tenant_limits{};  // of the host
  KvEventConfig events;          // who is told of pages that come to the host or leave it
  Nanos storage_limit = std::chrono::seconds(30);  // for reading a prefix, at most
};

struct PrefixStoreCounters {
  CacheCounters tiers;
  std::uint64_t host_blocks = 0, host_blocks_free = 0, block_bytes = 0;
  std::string storage_json = "{}";  // of the backend
  std::string storage_metrics;      // in Prometheus' text format; empty: no storage
};

class PrefixStore {
 public:
  // The storage that the options name; null: they name none. Errors: as its backend's; the message names the option.
  [[nodiscard]] static Result<std::unique_ptr<PageStore>> open_storage(const PrefixStoreOptions& options);
  // format: outlives the store. storage: of the same options. Errors: the model has a shape that the connector does not
  // take, no memory, a storage that belongs to another model; the message names the option.
  [[nodiscard]] static Result<std::unique_ptr<PrefixStore>> open(const SlotFormat& format,
                                                                 const PrefixStoreOptions& options,
                                                                 std::unique_ptr<PageStore> storage);
  virtual ~PrefixStore() = default;
  // The destructor calls `tell`, with words for it, where storage hangs: what that works on is left to it, and no end
  // of the process is in order.
  void on_left(std::function<void(const std::string& what)> tell) { tell_left_ = std::move(tell); }

  class Found {
   public:
    Found() = default;  // nothing was found
    Found(PrefixStore* store, LookupId id, const LookupResult& result, std::uint32_t page_size);
    Found(Found&& other) noexcept { *this = std::move(other); }
    Found& operator=(Found&& other) noexcept;
    ~Found();

    [[nodiscard]] std::uint64_t tokens() const { return tokens_; }         // where it resumes; 0: nowhere
    [[nodiscard]] std::uint64_t known() const { return known_; }           // tokens whose rows are on the host
    [[nodiscard]] std::uint64_t from_storage() const { return storage_; }  // tokens of it that were read just now
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] StopReason reason() const { return reason_; }  // why it is not longer
    [[nodiscard]] ComponentKind component() const { return component_; }
    [[nodiscard]] const Miss& miss() const { return miss_; }  // how that came to be

   private:
    PrefixStore* store_ = nullptr;
    LookupId id_;
    LoadPoint point_;
    std::uint64_t tokens_ = 0, known_ = 0, storage_ = 0, bytes_ = 0;
    StopReason reason_ = StopReason::kNone;
    ComponentKind component_ = ComponentKind::kFull;
    Miss miss_;
    friend class PrefixStoreImpl;
  };

  // asks_storage: false: what is on the host, at once.
  [[nodiscard]] virtual Result<Found> find(std::span<const TokenId> prompt, const std::string& salt,
                                           bool asks_storage) = 0;
  // What storage has of a prompt, without reading it; pools in the order of format.pools. nullopt: there is no storage.
  [[nodiscard]] virtual Result<std::optional<StoredPrefix>> stored(std::span<const TokenId> prompt,
                                                                   const std::string& salt) = 0;
  // The bytes of a slot file that stands at found.tokens(). Precondition: tokens() > 0; `prompt` as in find().
  [[nodiscard]] virtual Result<std::shared_ptr<ByteBuffers::Buffer>> load(const Found& found,
                                                                          std::span<const TokenId> prompt) = 0;
  // Pages [0, end) of a slot, and its window and state at `end`, a multiple of the page size. What is there is not
  // copied again. kOverloaded: no room now. kNotFound: the slot has not all of it.
  [[nodiscard]] virtual Result<SaveResult> save(const std::shared_ptr<const SavedSlot>& slot, std::uint64_t end,
                                                const std::string& salt) = 0;
  // Waits until storage has what it can take. kDeadlineExceeded.
  [[nodiscard]] virtual Status drain(Nanos limit) = 0;
  // Drops what is on the host.
  virtual void flush() = 0;
  [[nodiscard]] virtual PrefixStoreCounters counters() = 0;
  [[nodiscard]] virtual ByteBuffers& buffers() = 0;

 protected:
  virtual void release(LookupId id) = 0;
  void tell_left(const std::string& what) const {
    if (tell_left_) tell_left_(what);
  }

 private:
  std::function<void(const std::string& what)> tell_left_;
};

}  // namespace larder::llama
