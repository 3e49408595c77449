// SPDX-License-Identifier: Apache-2.0
// Every option of a Larder process, in the field's names, from a file and the command line.
// Threads: values and pure functions, but for those that take a FileSystem.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "controller/config.h"
#include "model/model_spec.h"
#include "storage/factory.h"

namespace larder {

struct Options {
  std::string model = "gdn-tiny";             // --model: preset name, or path of a TOML/JSON model file
  std::uint32_t page_size = 0;                // --page-size: tokens; 0: the model's
  std::uint32_t context_length = 0;           // --context-length; 0: the model's
  std::uint64_t max_total_tokens = 32768;     // --max-total-tokens: device KV slots, in tokens
  std::uint32_t max_mamba_cache_size = 64;    // --max-mamba-cache-size: device recurrent states
  double swa_full_tokens_ratio = 0.8;         // --swa-full-tokens-ratio: device swa tokens / full tokens
  std::uint32_t max_running_requests = 8;     // --max-running-requests
  std::uint32_t max_queued_requests = 1024;   // --max-queued-requests
  std::uint32_t chunked_prefill_size = 1024;  // --chunked-prefill-size: tokens
  // --num-reserved-decode-tokens: device slots for output that a request has when it starts
  std::uint32_t num_reserved_decode_tokens = 256;
  std::uint32_t threads = 0;   // --threads: compute threads; 0: one per core
  std::string device = "cpu";  // --device: where pages are: cpu, cuda or cuda:N

  bool disable_radix_cache = false;       // --disable-radix-cache
  bool enable_hierarchical_cache = true;  // --enable-hierarchical-cache / --disable-hierarchical-cache
  double hicache_ratio = 2.0;             // --hicache-ratio: host bytes / device bytes
  double hicache_size_gb = 0;             // --hicache-size: GB (1e9), overrides the ratio when > 0
  std::string hicache_write_policy = "write_through";
  bool exclusive_tiers = false;
  std::uint32_t checkpoint_grid = 8192;  // tokens between checkpoints of recurrent state that nothing asks for; 0: none
  std::string hicache_mem_layout = "page_first";
  std::string radix_eviction_policy = "value";
  std::string tenant_limits;            // --tenant-limits: a file (engine/tenant_file.h); empty: none
  std::string hicache_storage_backend;  // --hicache-storage-backend: "", "memory", "file"
  std::string hicache_storage_prefetch_policy = "timeout";
  std::string hicache_storage_backend_extra_config;  // JSON object text, or @path.{json,toml}
  // Control runs (issue: "kept on the device only").
  bool hicache_state_on_device_only = false;  // --hicache-state-on-device-only
  bool hicache_kv_on_device_only = false;     // --hicache-kv-on-device-only

  std::string host = "127.0.0.1";                // --host
  std::uint16_t port = 30000;                    // --port; 0: any free one, printed
  std::uint32_t max_connections = 768;           // --max-connections
  std::string admin_api_key, api_key;            // --admin-api-key, --api-key
  std::string admin_api_key_file, api_key_file;  // files that hold them; read by whoever starts the server
  // --ssl-certfile, --ssl-keyfile, --ssl-ca-certs: PEM files (server/tls_files.h); without the first plain HTTP
  std::string ssl_certfile, ssl_keyfile, ssl_ca_certs;
  bool allow_no_key = false;              // --allow-no-key: other machines may use it without a key
  bool enable_get_state_changes = false;  // --enable-get-state-changes: SGLang's GET forms of flush and clear
  // --allow-storage-library: paths, separated by commas, that an attach at run time may load. The one that the start
  // names is allowed, too.
  std::string allow_storage_library;
  std::string kv_events_config;  // --kv-events-config: JSON (events/kv_event_config.h); empty: nobody is told
  // --record-trace, -key, -block, -max-size (server/trace/trace_recorder.h); read by whoever starts the server
  std::string record_trace, record_trace_key;
  std::uint64_t record_trace_block = 512;
  std::string record_trace_max_size = "1Gi";
  std::uint32_t stop_wait = 10, stop_delay = 0;         // --stop-wait, --stop-delay: seconds (cli/orderly_stop.h)
  std::string served_model_name;                        // --served-model-name; default: the model's id
  std::string log_level = "info", log_format = "text";  // --log-level, --log-format; set by whoever starts the server
  std::uint64_t seed = 1;                               // --random-seed: sampling

  std::set<std::string, std::less<>> given;           // names of the options that set_option() set; of
                                                      // two switches for one thing the one that says what is meant
  std::set<std::string, std::less<>> without_effect;  // those of SGLang that change nothing here (sglang_options.h)
};

// One option as a command line or a configuration file names it.
struct OptionInfo {
  std::string_view name;   // "hicache-ratio"
  std::string_view value;  // what follows it ("TOKENS"); empty: a switch
  std::string_view help;   // one line, with the default
};
// All options, in the order of Options.
[[nodiscard]] std::span<const OptionInfo> option_infos();

// The words that an option of words takes: "lru, lfu". Precondition: `name` is one.
[[nodiscard]] std::string option_words(std::string_view name);

// Sets one option from text and notes that it was given. name: without the leading dashes, '-' or '_' between words.
// text: a switch takes "true" / "false" ("": true). kInvalidArgument names the option, the value, what is allowed, for
// an unknown name the nearest known one, and for one of SGLang's why it is not here.
[[nodiscard]] Status set_option(Options& options, std::string_view name, std::string_view text);

// Sets every option of a .json, .toml or .yaml file: one flat object whose keys are option names (the storage extra
// configuration is text there, too). An option of text takes text alone, but for sizes. kInvalidArgument names file and
// key. At most 1 MiB.
[[nodiscard]] Status set_options_from_file(Options& options, const std::string& path,
                                           FileSystem& files = real_file_system());

// An option as one source gave it.
struct GivenOption {
  std::string name, text;  // as of set_option(), with '-' between words
};
// Sets the options of a source that wins over all before it, in their order: a key's file over an earlier key, a switch
// over an earlier opposite. kInvalidArgument: all that is wrong with them, a line each.
[[nodiscard]] Status set_options(Options& options, std::span<const GivenOption> given);

// Ranges and cross-field checks; kInvalidArgument names the options and how to mend them (contradictory ones too).
[[nodiscard]] Status validate_options(const Options& options);
// What can be said only with the model: control runs of a component that it has not, pools too small for one page.
[[nodiscard]] Status validate_options_for(const Options& options, const ModelSpec& model);

// Of a model whose prompts are never longer than a page; else empty.
[[nodiscard]] std::string reuse_warning(const ModelSpec& model);

// Loads the model (preset or file) with page size and context length applied.
[[nodiscard]] Result<ModelSpec> load_model(const Options& options, FileSystem& files = real_file_system());
// Policies, limits, and the extra configuration's own keys (prefetch_threshold, prefetch_timeout_*).
[[nodiscard]] Result<CacheConfig> cache_config(const Options& options, FileSystem& files = real_file_system());

// --hicache-storage-backend-extra-config, taken apart.
struct ExtraConfig {
  BackendOptions backend;                           // what the backend's creator gets
  std::optional<std::uint32_t> prefetch_threshold;  // tokens
  std::optional<Nanos> prefetch_timeout_base, prefetch_timeout_per_ki_token, prefetch_timeout_max;
};
// kInvalidArgument: `extra` names a library, an interpreter or a folder of modules that this process may not load
// (allow_storage_library, and the start's).
[[nodiscard]] Status check_library(const Options& options, const ExtraConfig& extra,
                                   FileSystem& files = real_file_system());
// What to parse for a backend: the text that was given; else, for hf3fs and mooncake, the file that the reference's
// variable SGLANG_HICACHE_HF3FS_CONFIG_PATH or SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names (its keys are among ours), as
// "@path"; else nothing.
[[nodiscard]] std::string extra_config_source(std::string_view backend, std::string_view text);
// text: "" (nothing), a JSON object, or @path of a .json or .toml file. Values are text, numbers and switches; a nested
// object, list or null is refused by name. hicache_storage_pass_prefix_keys and tp_lcm_size are accepted and change
// nothing here: our keys chain, and this server has one rank.
[[nodiscard]] Result<ExtraConfig> parse_extra_config(std::string_view text, FileSystem& files = real_file_system());

}  // namespace larder
