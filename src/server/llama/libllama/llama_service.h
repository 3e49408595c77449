// SPDX-License-Identifier: Apache-2.0
// `larder serve --model x.gguf`: llama.cpp's model in this process, behind the routes of llama-server.
//
//   POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /completion, /infill   (and their aliases)
//   POST /tokenize, /detokenize, /apply-template, /v1/messages/count_tokens
//   GET  /health, /v1/models, /props, /metrics
//   GET  /larder/ui, /larder/status, /larder/recent; POST /larder/explain, /larder/flush    from this machine only
//
// Templates, samplers, grammars, and the forms of requests and answers are those of llama.cpp's own libraries; which
// sequence computes what, and what is kept of it, is llama_engine.h; host memory and storage are prefix_store.h.
//
// Threads: a listener's, `workers` that each carry one request, the engine's, one for saves, one for the cache.
// Lifetime: files and registry outlive it. Destroying it ends open requests.
// Errors of create(): kInvalidArgument: an option, or a file that llama.cpp does not load; kUnsupported: a model whose
// sequences do not survive being taken apart (engine/llama/self_probe.h); kConflict: the port is taken.
// Cost of create(): the model is loaded, and proven on 4 pages of 16 tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/metrics.h"
#include "base/status.h"
#include "server/http_listener.h"
#include "server/llama/completion_front.h"
#include "server/llama/prefix_store.h"
#include "server/llama/save_points.h"
#include "server/trace/trace_recorder.h"

namespace larder::llama {

struct ServeSettings {
  ListenOptions listen;
  std::string model_path;
  std::string alias;                     // the model's name in answers; empty: the file's name
  std::string chat_template;             // Jinja; empty: the model's
  std::string api_key;                   // empty: none is asked for
  std::uint32_t slots = 4;               // answers at once
  std::uint32_t context_tokens = 32768;  // of all sequences together
  std::uint32_t batch_tokens = 512;
  std::uint32_t threads = 0;  // 0: one less than the machine has processors, at least one
  std::uint32_t gpu_layers = 0;
  std::string cache_type_k = "f16", cache_type_v = "f16";
  bool hashes_data = false;  // all bytes of the model are its identity, not head and samples
  SavePolicy saves;
  PrefixStoreOptions store;
  TraceOptions trace;
  std::uint32_t workers = 64;              // requests at once, those that wait for a slot included
  std::uint64_t ask_storage_tokens = 256;  // prompts that have fewer to compute do not wait for storage
};

class LlamaService : public CompletionFront {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LlamaService>> create(const ServeSettings& settings, FileSystem& files,
                                                                    MetricsRegistry& registry);
};

}  // namespace larder::llama
