// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/libllama/random_model.h"

#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "base/rng.h"
#include "engine/llama/libllama/llama_host.h"

namespace larder::llama {
namespace {

constexpr std::array<std::string_view, 12> kArchitectures = {"qwen3next", "qwen35", "falcon-h1", "granitehybrid",
                                                             "jamba",     "lfm2",   "mamba2",    "gemma3",
                                                             "gpt-oss",   "qwen3",  "llama",     "deepseek2"};

constexpr std::uint32_t kByteTokens = 256;
constexpr const char* kChatTemplate =
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct GgufCloser {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
struct GgmlCloser {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using GgufHandle = std::unique_ptr<gguf_context, GgufCloser>;

// Sets keys "<architecture>.<name>".
class KeyWriter {
 public:
  KeyWriter(gguf_context* to, std::string_view architecture) : to_(to), prefix_(std::string(architecture) + ".") {}
  void number(std::string_view name, std::uint32_t value) { gguf_set_val_u32(to_, key(name).c_str(), value); }
  void real(std::string_view name, float value) { gguf_set_val_f32(to_, key(name).c_str(), value); }
  void numbers(std::string_view name, const std::vector<std::uint32_t>& values) {
    gguf_set_arr_data(to_, key(name).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  gguf_context* const to_;
  const std::string prefix_;
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> list) {
  return std::ranges::find(list, name) != list.end();
}

// A byte as GPT-2's vocabulary writes it: itself if it can be printed, else a letter from U+0100 on.
std::string byte_token(std::uint32_t byte, std::uint32_t& unprinted) {
  const bool is_printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  const std::uint32_t code = is_printed ? byte : 256 + unprinted++;
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

void add_tokenizer(gguf_context* to) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types(kRandomModelVocabulary, 1);  // normal
  std::uint32_t unprinted = 0;
  for (std::uint32_t byte = 0; byte < kByteTokens; ++byte) tokens.push_back(byte_token(byte, unprinted));
  for (const char* mark : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    types[tokens.size()] = 3;  // control
    tokens.emplace_back(mark);
  }
  tokens.emplace_back("er");
  while (tokens.size() < kRandomModelVocabulary) tokens.push_back(fmt::format("<|unused_{}|>", tokens.size()));
  std::vector<const char*> texts;
  for (const std::string& token : tokens) texts.push_back(token.c_str());
  const char* merge = "e r";
  gguf_set_val_str(to, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(to, "tokenizer.ggml.pre", "qwen2");
  gguf_set_arr_str(to, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(to, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_arr_str(to, "tokenizer.ggml.merges", &merge, 1);
  gguf_set_val_u32(to, "tokenizer.ggml.bos_token_id", kByteTokens);
  gguf_set_val_u32(to, "tokenizer.ggml.eos_token_id", kByteTokens + 2);
  gguf_set_val_bool(to, "tokenizer.ggml.add_bos_token", false);
  gguf_set_val_str(to, "tokenizer.chat_template", kChatTemplate);
}

// The compressed keys of a layer, which are its values, too; and heads of two parts, one of them with positions.
void add_latent_attention(const RandomModel& model, KeyWriter& keys) {
  const std::uint32_t rank = 2 * model.head_length;
  keys.number("attention.head_count", model.heads);
  keys.number("attention.head_count_kv", 1);
  keys.number("attention.q_lora_rank", rank);
  keys.number("attention.kv_lora_rank", rank);
  keys.number("attention.key_length", rank + model.head_length);
  keys.number("attention.value_length", rank);
  keys.number("attention.key_length_mla", 2 * model.head_length);
  keys.number("attention.value_length_mla", model.head_length);
  keys.number("rope.dimension_count", model.head_length);
  keys.number("leading_dense_block_count", model.layers);
  keys.number("expert_feed_forward_length", model.feed_forward);
  keys.number("expert_shared_count", 0);
}

void add_attention(const RandomModel& model, KeyWriter& keys) {
  if (model.architecture == "deepseek2") return add_latent_attention(model, keys);
  const bool has_head_arrays = is_one_of(model.architecture, {"granitehybrid", "jamba", "lfm2"});
  keys.number("attention.head_count", model.heads);
  if (has_head_arrays) {  // layers without heads are recurrent
    std::vector<std::uint32_t> heads(model.layers, 0);
    for (std::uint32_t i = 0; i < model.layers; ++i) {
      if ((i + 1) % model.attention_interval == 0) heads[i] = model.kv_heads;
    }
    keys.numbers("attention.head_count_kv", heads);
  } else {
    keys.number("attention.head_count_kv", model.kv_heads);
  }
  keys.number("attention.key_length", model.head_length);
  keys.number("attention.value_length", model.head_length);
  keys.number("rope.dimension_count", model.head_length);
  keys.real("rope.freq_base", 10000.0f);
  if (model.architecture == "qwen35") {
    const std::uint32_t third = model.head_length / 2 / 3;
    keys.numbers("rope.dimension_sections", {model.head_length / 2 - 2 * third, third, third, 0});
  }
  if (is_one_of(model.architecture, {"gemma3", "gpt-oss"})) {
    keys.number("attention.sliding_window", model.window);
    keys.number("attention.sliding_window_pattern", 2);
  }
}

void add_recurrence(const RandomModel& model, KeyWriter& keys) {
  const bool is_delta_net = is_one_of(model.architecture, {"qwen3next", "qwen35"});
  if (model.architecture == "lfm2") keys.number("shortconv.l_cache", 3);
  if (is_delta_net) keys.number("full_attention_interval", model.attention_interval);
  if (!is_delta_net && !is_one_of(model.architecture, {"falcon-h1", "granitehybrid", "jamba", "mamba2"})) return;
  keys.number("ssm.conv_kernel", 4);
  keys.number("ssm.state_size", model.architecture == "jamba" ? 16 : model.state_size);
  keys.number("ssm.time_step_rank", model.state_heads);
  keys.number("ssm.inner_size", is_delta_net ? model.state_heads * model.state_size : 2 * model.embedding);
  if (model.architecture != "jamba") keys.number("ssm.group_count", is_delta_net ? model.state_groups : 1);
}

GgufHandle metadata_of(const RandomModel& model) {
  GgufHandle out(gguf_init_empty());
  gguf_set_val_str(out.get(), "general.architecture", model.architecture.c_str());
  gguf_set_val_str(out.get(), "general.name", fmt::format("random {}", model.architecture).c_str());
  KeyWriter keys(out.get(), model.architecture);
  keys.number("block_count", model.layers);
  keys.number("context_length", model.context_length);
  keys.number("embedding_length", model.embedding);
  keys.number("feed_forward_length", model.feed_forward);
  keys.number("vocab_size", kRandomModelVocabulary);
  keys.real("attention.layer_norm_rms_epsilon", 1e-5f);
  add_attention(model, keys);
  add_recurrence(model, keys);
  if (is_one_of(model.architecture, {"qwen3next", "gpt-oss"})) {
    keys.number("expert_count", 4);
    keys.number("expert_used_count", 2);
    keys.number("expert_feed_forward_length", model.feed_forward / 4);
    if (model.architecture == "qwen3next") keys.number("expert_shared_feed_forward_length", model.feed_forward / 4);
  }
  add_tokenizer(out.get());
  return out;
}

std::uint64_t seed_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ seed;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Near enough to a normal distribution, of deviation 1, and without functions that differ between libraries.
float spread(Rng& rng) {
  const std::uint64_t bits = rng.next_u64();
  const std::uint64_t sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) * (1.0f / 65536.0f) - 2.0f) * 1.7320508f;
}

// How a tensor is filled: around `mean` with deviation `deviation`, or evenly from -high to -low.
struct Filling {
  float mean = 0, deviation = 0, low = 0, high = 0;
};

Filling filling_of(std::string_view name, const ggml_tensor& tensor) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const float per_input = 1.0f / std::sqrt(static_cast<float>(tensor.ne[0]));
  if (has("attn_q_norm") || has("attn_k_norm")) return {.mean = 2.0f, .deviation = 0.2f};  // peaks of attention
  if (has("norm")) return {.mean = 1.0f, .deviation = 0.1f};
  if (has("ssm_a")) return {.low = 0.0005f, .high = 0.05f};  // slow decays: see the header
  if (has("ssm_d") && !has("ssm_dt")) return {.mean = 0.5f, .deviation = 0.1f};
  if (has("conv1d") || has("shortconv.conv")) return {.deviation = has("bias") ? 0.1f : 0.5f};
  if (has("bias") || has("sinks")) return {.deviation = 0.1f};
  if (has("token_embd")) return {.deviation = 1.0f};
  if (has("attn_q.") || has("attn_k.") || has("attn_q_b") || has("attn_k_b")) return {.deviation = 2.0f * per_input};
  if (has("ffn_gate_inp")) return {.deviation = 2.0f * per_input};  // one expert or another
  return {.deviation = 1.2f * per_input};
}

struct Tensor {
  std::string name;
  std::array<std::int64_t, GGML_MAX_DIMS> sizes{};
  ggml_type type = GGML_TYPE_F32;
  std::vector<std::byte> data;
};

struct Maker {
  const RandomModel& model;
  std::vector<Tensor> tensors;
};

// Called by llama.cpp for each tensor of the model.
void fill_tensor(ggml_tensor* tensor, void* data) {
  auto& maker = *static_cast<Maker*>(data);
  const std::string_view name = ggml_get_name(tensor);
  std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
  Rng rng(seed_of(name, maker.model.seed));
  const Filling filling = filling_of(name, *tensor);
  for (float& number : numbers) {
    number = filling.high > 0 ? -filling.low - (filling.high - filling.low) * static_cast<float>(rng.uniform())
                              : filling.mean + filling.deviation * spread(rng);
  }
  ggml_backend_tensor_set(tensor, numbers.data(), 0, ggml_nbytes(tensor));
  if (name.find("rope_freqs") != std::string_view::npos) return;  // a model does without, and layers share it
  Tensor& out = maker.tensors.emplace_back();
  out.name = name;
  std::copy_n(tensor->ne, GGML_MAX_DIMS, out.sizes.begin());
  const std::int64_t rows = ggml_nelements(tensor) / tensor->ne[0];
  const bool is_matrix = name.ends_with(".weight") && rows > 1 && tensor->ne[0] % 32 == 0 &&
                         name.find("conv1d") == std::string_view::npos && name.find("norm") == std::string_view::npos;
  if (maker.model.is_quantized && is_matrix) {
    out.type = GGML_TYPE_Q4_0;
    out.data.resize(ggml_row_size(out.type, tensor->ne[0]) * static_cast<std::size_t>(rows));
    (void)ggml_quantize_chunk(out.type, numbers.data(), out.data.data(), 0, rows, tensor->ne[0], nullptr);
  } else {
    out.data.resize(numbers.size() * sizeof(float));
    std::memcpy(out.data.data(), numbers.data(), out.data.size());
  }
}

Status write_file(gguf_context* metadata, std::vector<Tensor>& tensors, const std::string& path) {
  const std::size_t bytes = ggml_tensor_overhead() * (tensors.size() + 1);
  const std::unique_ptr<ggml_context, GgmlCloser> context(ggml_init({bytes, nullptr, true}));
  for (Tensor& from : tensors) {
    ggml_tensor* tensor = ggml_new_tensor(context.get(), from.type, GGML_MAX_DIMS, from.sizes.data());
    ggml_set_name(tensor, from.name.c_str());
    tensor->data = from.data.data();
    gguf_add_tensor(metadata, tensor);
  }
  if (gguf_write_to_file(metadata, path.c_str(), false)) return Status::ok();
  return unavailable(path + ": it cannot be written");
}

}  // namespace

std::vector<std::string_view> random_architectures() { return {kArchitectures.begin(), kArchitectures.end()}; }

Status write_random_model(const RandomModel& model, const std::string& path) {
  if (std::ranges::find(kArchitectures, model.architecture) == kArchitectures.end()) {
    return invalid_argument(
        fmt::format("architecture \"{}\": it is one of {}", model.architecture, fmt::join(kArchitectures, ", ")));
  }
  const GgufHandle metadata = metadata_of(model);
  Maker maker{model, {}};
  const ModelHandle made(llama_model_init_from_user(metadata.get(), fill_tensor, &maker, llama_model_default_params()));
  if (!made) return invalid_argument(fmt::format("llama.cpp makes no {} of these sizes", model.architecture));
  return write_file(metadata.get(), maker.tensors, path);
}

}  // namespace larder::llama
