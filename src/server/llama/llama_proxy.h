// SPDX-License-Identifier: Apache-2.0
// `larder proxy`: a reverse proxy before an unmodified llama-server, which remembers prefixes for it.
//
// Every route goes on as it is. Requests with a prompt that can be looked at get a slot with as much of it as the slot,
// host memory or storage have (completion_relay.h). Our own routes:
//   GET  /larder/ui        the operator's page                        } from this machine only
//   GET  /larder/status    slots, tiers, counters as JSON             }
//   GET  /larder/recent    the last requests, and what they reused    }
//   POST /larder/explain   what a prompt would be given, and why      }
//   POST /larder/flush     drops what host memory has                 }
//   GET  /metrics          llama-server's, and ours; ?format=json: ours
//
// Threads: a listener's, `workers` that each carry one request, some for those that use no slot (a full server answers
// GET /health, too), one for saves, one for the cache.
// Lifetime: files, clock and registry outlive it. Destroying it ends open requests.
// Errors of create(): kUnsupported: this model or llama-server cannot be cached, and why; kInvalidArgument: an option;
// kConflict: another proxy uses the folder, or the port is taken; kUnavailable: llama-server does not answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/metrics.h"
#include "base/status.h"
#include "server/http_listener.h"
#include "server/llama/completion_front.h"
#include "server/llama/prefix_store.h"
#include "server/llama/save_points.h"
#include "server/trace/trace_recorder.h"

namespace larder::llama {

inline constexpr const char* kProxyLockName = "larder-proxy.lock";  // in the folder of slot files, held

struct ProxySettings {
  ListenOptions listen;
  std::string upstream;                          // URL of llama-server
  std::string upstream_ca{};                     // who may have issued its certificate, PEM; empty: the system's
  std::string upstream_key;                      // for what the proxy asks by itself; clients' keys go on as they are
  Nanos start_limit = std::chrono::minutes(30);  // for llama-server to load its model
  std::function<Status()> check_wait{};          // asked meanwhile: an error ends the wait, and is create()'s
  std::function<std::uint64_t()> starts{};       // of our own llama-server, so far; empty: it is somebody else's
  Nanos quiet_limit = std::chrono::hours(1);     // without a byte of it, in requests and proofs
  Nanos ask_limit = std::chrono::minutes(1);     // the same, when it is asked who it is
  Nanos slots_limit = std::chrono::seconds(10);  // for all slots to be free, when it is proven again
  Nanos proof_pause = std::chrono::seconds(1);   // behind a proof that failed; twice as long after each further one
  std::string slot_directory;                    // its --slot-save-path
  std::string model_path;                        // of the GGUF; empty: as /props says
  bool hashes_data = false;                      // all bytes of the model are its identity, not head and samples
  std::string identity;                          // what else changes numbers: options of RoPE, control vectors, LoRA
  std::vector<std::string> control_vectors{};    // their files: what they have is part of the identity
  bool shifts_context = false;                   // it was started with --context-shift
  bool caps_slots = false;                       // ... or with --kv-unified-per-slot
  bool has_full_windows = false;                 // ... or with --swa-full
  SavePolicy saves;
  PrefixStoreOptions store;
  TraceOptions trace;
  std::uint32_t workers = 64;  // requests at once, those that wait for a slot included; as many again may queue
};

class LlamaProxy : public CompletionFront {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LlamaProxy>> create(const ProxySettings& settings, FileSystem& files,
                                                                  Clock& clock, MetricsRegistry& registry);
};

}  // namespace larder::llama
