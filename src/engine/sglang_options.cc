// SPDX-License-Identifier: Apache-2.0
#include "engine/sglang_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace larder {
namespace {

constexpr SglangAnswer kTaken = SglangAnswer::kTaken, kRefused = SglangAnswer::kRefused;

constexpr std::array kOptions{
    // What publications on hybrid models and HiCache start with.
    SglangOption{"model-path", "PATH", "required", kRefused, "--model names a preset, a model file, or a GGUF file"},
    SglangOption{"tp-size, tp, tensor-parallel-size", "COUNT", "1", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"pp-size, pp, pipeline-parallel-size", "COUNT", "1", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"dp-size, dp, data-parallel-size", "COUNT", "1", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"attn-cp-size, attention-context-parallel-size", "COUNT", "1", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"ep-size, ep, expert-parallel-size", "COUNT", "1", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"nnodes", "COUNT", "1", kRefused, "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"node-rank", "NUMBER", "0", kRefused, "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"dist-init-addr", "ADDRESS", "none", kRefused,
                 "the small engine has one rank; under SGLang there may be more"},
    SglangOption{"hicache-io-backend", "WORD", "kernel", kTaken,
                 "how pages are copied between device and host is chosen by their sizes"},
    SglangOption{"mamba-radix-cache-strategy, mamba-scheduler-strategy", "WORD", "auto", kTaken,
                 "checkpoints are taken at the ends of prompts and outputs, at forks, and by --checkpoint-grid"},
    SglangOption{"mamba-track-interval", "TOKENS", "256", kTaken,
                 "the state of an output is tracked page by page in one slot"},
    SglangOption{"mamba-max-states-per-path", "COUNT", "-1", kRefused,
                 "--radix-eviction-policy decides which states leave"},
    SglangOption{"mamba-full-memory-ratio", "RATIO", "0.9", kRefused,
                 "--max-mamba-cache-size says how many states the device has"},
    SglangOption{"mamba-ssm-dtype", "TYPE", "the model's", kRefused, "the model file says it"},
    SglangOption{"enable-int8-mamba-checkpoint", "", "off", kRefused, "states are stored as they are"},
    SglangOption{"int8-mamba-ckpt-size", "COUNT", "none", kRefused, "states are stored as they are"},
    SglangOption{"enable-metrics", "", "off", kTaken, "/metrics is always there"},
    SglangOption{"enable-cache-report", "", "off", kTaken, "usage always says how many tokens were cached"},
    SglangOption{"trust-remote-code", "", "off", kTaken, "no code of a model is loaded"},
    SglangOption{"attention-backend", "WORD", "by the model", kTaken, "the small engine has kernels of its own"},
    SglangOption{"cuda-graph-max-bs", "COUNT", "by the GPU", kTaken, "the small engine has no CUDA graphs"},
    SglangOption{"disable-cuda-graph", "", "off", kTaken, "the small engine has no CUDA graphs"},
    SglangOption{"mem-fraction-static", "RATIO", "by the GPU", kRefused,
                 "--max-total-tokens and --max-mamba-cache-size say how much the device has"},
    SglangOption{"max-prefill-tokens", "TOKENS", "16384", kRefused,
                 "--chunked-prefill-size says how many prompt tokens a step has"},
    SglangOption{"reasoning-parser", "WORD", "none", kRefused, "answers are plain text"},
    SglangOption{"tool-call-parser", "WORD", "none", kRefused, "answers are plain text"},
    SglangOption{"quantization", "WORD", "none", kRefused, "the model file says what its weights are"},
    SglangOption{"kv-cache-dtype", "TYPE", "auto", kRefused, "the model file says the type of each pool"},
    SglangOption{"dtype", "TYPE", "auto", kRefused, "the model file says it"},
    SglangOption{"speculative-algorithm", "WORD", "none", kRefused,
                 "nothing is drafted; pools of drafts are kept where a model file has them"},
    // Other options of its caches.
    SglangOption{"hicache-host-memory-mode", "WORD", "cache", kRefused,
                 "the host is always a tier here, never a staging buffer alone"},
    SglangOption{"hicache-host-memory-fraction", "RATIO", "0.8", kRefused,
                 "--hicache-size or --hicache-ratio says how large the host tier is"},
    SglangOption{"hicache-storage-prefetch-retry-poll-interval", "COUNT", "8", kTaken,
                 "a request that queues asks storage again when it has lost something; nothing is polled"},
    SglangOption{"hicache-storage-prefetch-retry-max-attempts", "COUNT", "8", kTaken, "at most eight times"},
    SglangOption{"radix-eviction-policy-config", "JSON", "none", kRefused, "policies have no parameters"},
    SglangOption{"radix-cache-backend", "WORD", "none", kRefused, "there is one tree"},
    SglangOption{"enable-session-radix-cache", "", "off", kRefused, "there are no sessions"},
    SglangOption{"enable-streaming-session", "", "off", kRefused, "there are no sessions"},
    SglangOption{"enable-unified-memory", "", "off", kRefused,
                 "device pools have fixed sizes; the host has one budget for all, always"},
    SglangOption{"enable-unified-cache-external-linker", "", "off", kRefused, "it is for SGLang's tree alone"},
    SglangOption{"enable-lmcache", "", "off", kRefused, "it is another cache"},
    SglangOption{"lmcache-config-file", "FILE", "none", kRefused, "it is another cache's"},
    SglangOption{"enable-flexkv", "", "off", kRefused, "it is another cache"},
    SglangOption{"flexkv-config-file", "FILE", "none", kRefused, "it is another cache's"},
    SglangOption{"enable-hisparse", "", "off", kRefused, "all pages of a prefix are read"},
    SglangOption{"hisparse-config", "JSON", "none", kRefused, "all pages of a prefix are read"},
    SglangOption{"disaggregation-mode", "WORD", "null", kRefused, "prefill and decoding are one server"},
    SglangOption{"disaggregation-transfer-backend", "WORD", "mooncake", kRefused,
                 "prefill and decoding are one server"},
    SglangOption{"disaggregation-bootstrap-port", "PORT", "8998", kRefused, "prefill and decoding are one server"},
    SglangOption{"disaggregation-ib-device", "NAMES", "none", kRefused, "prefill and decoding are one server"},
    SglangOption{"disaggregation-decode-enable-offload-kvcache", "", "off", kRefused,
                 "prefill and decoding are one server"},
};

bool has_name(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::size_t comma = names.find(", ");
    if (names.substr(0, comma) == name) return true;
    names = comma == names.npos ? std::string_view() : names.substr(comma + 2);
  }
  return false;
}

}  // namespace

std::span<const SglangOption> sglang_options() { return kOptions; }

const SglangOption* find_sglang_option(std::string_view name) {
  const auto found =
      std::find_if(kOptions.begin(), kOptions.end(), [&](const SglangOption& o) { return has_name(o.names, name); });
  return found == kOptions.end() ? nullptr : &*found;
}

std::string about_sglang_option(const SglangOption& option, std::string_view name) {
  if (option.answer == kTaken) return fmt::format("--{} changes nothing here: {}", name, option.why);
  return fmt::format("--{} is SGLang's, and not here: {} (docs/options.md)", name, option.why);
}

}  // namespace larder
