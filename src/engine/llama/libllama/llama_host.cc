// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/libllama/llama_host.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace larder::llama {
namespace {

void log_llama(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR) return;
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  log_line(level == GGML_LOG_LEVEL_ERROR ? LogLevel::kError : LogLevel::kWarning, "llama.cpp", line);
}

llama_state_seq_flags flags_of(bool is_partial) {
  return is_partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

// A batch, freed at the end.
class Batch {
 public:
  explicit Batch(std::span<const BatchRow> rows)
      : batch_(llama_batch_init(static_cast<std::int32_t>(rows.size()), 0, 1)) {
    batch_.n_tokens = static_cast<std::int32_t>(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      batch_.token[i] = static_cast<llama_token>(rows[i].token);
      batch_.pos[i] = static_cast<llama_pos>(rows[i].position);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = static_cast<llama_seq_id>(rows[i].sequence);
      batch_.logits[i] = rows[i].wants_logits;
    }
  }
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  [[nodiscard]] const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

void start_libllama() {
  static const bool is_started = [] {
    llama_log_set(log_llama, nullptr);
    llama_backend_init();
    return true;
  }();
  (void)is_started;
}

void ModelCloser::operator()(llama_model* model) const { llama_model_free(model); }

Result<ModelHandle> load_model(const std::string& path, int gpu_layers) {
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = gpu_layers;
  ModelHandle model(llama_model_load_from_file(path.c_str(), params));
  if (!model) return invalid_argument(path + ": llama.cpp cannot load it; the log says why");
  return model;
}

Result<std::unique_ptr<LlamaHost>> LlamaHost::open(llama_model& model, const HostSettings& settings) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = settings.context_tokens;
  params.n_batch = params.n_ubatch = settings.batch_tokens;
  params.n_seq_max = settings.sequences;
  params.n_threads = params.n_threads_batch = settings.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = static_cast<ggml_type>(settings.keys.type);
  params.type_v = static_cast<ggml_type>(settings.values.type);
  params.kv_unified = true;
  params.swa_full = false;
  params.n_rs_seq = 0;
  params.no_perf = true;
  llama_context* context = llama_init_from_model(&model, params);
  if (context == nullptr) {
    return invalid_argument(fmt::format("llama.cpp makes no context of {} tokens and {} sequences: the log says why",
                                        settings.context_tokens, settings.sequences));
  }
  const std::int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(&model));
  return std::unique_ptr<LlamaHost>(new LlamaHost(context, settings, static_cast<std::uint32_t>(vocabulary)));
}

LlamaHost::~LlamaHost() { llama_free(context_); }

Result<std::vector<float>> LlamaHost::decode(std::uint32_t sequence, std::uint32_t position,
                                             std::span<const TokenId> tokens) {
  std::vector<BatchRow> rows;
  rows.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({sequence, static_cast<std::uint32_t>(position + i), tokens[i], i + 1 == tokens.size()});
  }
  LARDER_RETURN_IF_ERROR(decode(rows));
  const float* logits = llama_get_logits_ith(context_, static_cast<std::int32_t>(tokens.size()) - 1);
  if (logits == nullptr) return internal_error("no logits after llama_decode");
  return std::vector<float>(logits, logits + vocabulary_);
}

Status LlamaHost::decode(std::span<const BatchRow> rows) {
  const auto is_strange = [&](const BatchRow& row) { return row.sequence >= settings_.sequences; };
  if (rows.empty() || rows.size() > settings_.batch_tokens || std::ranges::any_of(rows, is_strange)) {
    return invalid_argument(fmt::format("a batch of {} tokens: at most {} tokens, {} sequences", rows.size(),
                                        settings_.batch_tokens, settings_.sequences));
  }
  const Batch batch(rows);
  const std::int32_t code = llama_decode(context_, batch.get());
  if (code == 1) return overloaded(fmt::format("no cells for {} tokens", rows.size()));
  if (code != 0) return internal_error(fmt::format("llama_decode failed with {}; the log says more", code));
  return Status::ok();
}

bool LlamaHost::trim(std::uint32_t sequence, std::uint32_t end) {
  return llama_memory_seq_rm(llama_get_memory(context_), static_cast<llama_seq_id>(sequence),
                             static_cast<llama_pos>(end), -1);
}

Result<std::vector<std::byte>> LlamaHost::save(std::uint32_t sequence, bool is_partial) {
  const auto id = static_cast<llama_seq_id>(sequence);
  const llama_state_seq_flags flags = flags_of(is_partial);
  std::vector<std::byte> bytes(llama_state_seq_get_size_ext(context_, id, flags));
  const std::size_t written =
      llama_state_seq_get_data_ext(context_, reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size(), id, flags);
  if (bytes.empty() || written != bytes.size()) {
    return internal_error(fmt::format("llama.cpp saved {} of {} bytes of a sequence", written, bytes.size()));
  }
  return bytes;
}

Status LlamaHost::load(std::uint32_t sequence, std::span<const std::byte> blob, bool is_partial) {
  const std::size_t read =
      llama_state_seq_set_data_ext(context_, reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size(),
                                   static_cast<llama_seq_id>(sequence), flags_of(is_partial));
  if (read == blob.size()) return Status::ok();
  clear(sequence);
  return internal_error(
      fmt::format("llama.cpp took {} of {} bytes of a sequence; the log says why", read, blob.size()));
}

void LlamaHost::share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) {
  llama_memory_seq_cp(llama_get_memory(context_), static_cast<llama_seq_id>(from), static_cast<llama_seq_id>(to),
                      static_cast<llama_pos>(begin), static_cast<llama_pos>(end));
}

void LlamaHost::clear(std::uint32_t sequence) {
  (void)llama_memory_seq_rm(llama_get_memory(context_), static_cast<llama_seq_id>(sequence), -1, -1);
}

}  // namespace larder::llama
