// SPDX-License-Identifier: Apache-2.0
#include "engine/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/log.h"
#include "door/register_backends.h"
#include "engine/option_table.h"
#include "sim/sim_file_system.h"

namespace larder {
namespace {

void expect_refused(const Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "'" << part << "' is not in: " << status.message();
  }
}

void write_file(FileSystem& files, const std::string& path, std::string_view text) {
  auto file = files.open(path, {.write = true, .create = true, .truncate = true});
  ASSERT_TRUE(file.is_ok()) << file.status().to_string();
  ASSERT_TRUE(write_fully(**file, std::as_bytes(std::span(text)), 0));
}

TEST(Options, DefaultsAreValidForEveryPreset) {
  Options options;
  EXPECT_TRUE(validate_options(options));
  for (const char* model : {"gqa-tiny", "gdn-tiny", "dsv4-tiny+draft", "swa-tiny"}) {
    options.model = model;
    const Result<ModelSpec> spec = load_model(options);
    ASSERT_TRUE(spec.is_ok()) << spec.status().to_string();
    EXPECT_TRUE(validate_options_for(options, *spec));
  }
  const Result<CacheConfig> config = cache_config(options);
  ASSERT_TRUE(config.is_ok());
  EXPECT_EQ(config->write_policy, WritePolicy::kWriteThrough);
  EXPECT_EQ(config->max_requests, 8u + 1024u);
}

TEST(Options, TableNamesEveryOptionOnceAndSetsIt) {
  std::set<std::string_view> names;
  for (const OptionInfo& info : option_infos()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_FALSE(info.help.empty());
  }
  Options o;
  EXPECT_TRUE(set_option(o, "hicache-ratio", "3.5"));
  EXPECT_TRUE(set_option(o, "max_total_tokens", "4096"));  // either spelling
  EXPECT_TRUE(set_option(o, "disable-hierarchical-cache", ""));
  EXPECT_TRUE(set_option(o, "hicache-state-on-device-only", "true"));
  EXPECT_TRUE(set_option(o, "radix-eviction-policy", "slru"));
  EXPECT_TRUE(set_option(o, "port", "0"));
  EXPECT_TRUE(set_option(o, "random-seed", "18446744073709551615"));
  EXPECT_EQ(o.hicache_ratio, 3.5);
  EXPECT_EQ(o.max_total_tokens, 4096u);
  EXPECT_FALSE(o.enable_hierarchical_cache);
  EXPECT_TRUE(o.hicache_state_on_device_only);
  EXPECT_EQ(o.radix_eviction_policy, "slru");
  EXPECT_EQ(o.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(o.given.contains("max-total-tokens"));
}

TEST(Options, SettingRefusesWithNameValueAndRange) {
  Options o;
  expect_refused(set_option(o, "hicache-rato", "2"), {"unknown option --hicache-rato", "--hicache-ratio"});
  expect_refused(set_option(o, "", "2"), {"unknown option"});
  expect_refused(set_option(o, "tensor_parallel_size", "4"), {"--tensor-parallel-size is SGLang's", "docs/options.md"});
  EXPECT_TRUE(set_option(o, "tp", "1").is_ok());
  EXPECT_TRUE(set_option(o, "enable_lmcache", "false").is_ok());
  expect_refused(set_option(o, "enable_lmcache", "true"), {"--enable-lmcache is SGLang's"});
  EXPECT_TRUE(set_option(o, "mamba-scheduler-strategy", "extra_buffer").is_ok());
  EXPECT_TRUE(set_option(o, "enable_metrics", "").is_ok());
  EXPECT_EQ(o.without_effect, (std::set<std::string, std::less<>>{"enable-metrics", "mamba-scheduler-strategy"}));
  expect_refused(set_option(o, "page-size", "0"), {"--page-size is 0", "leave the option out"});
  expect_refused(set_option(o, "page-size", "-1"), {"--page-size is '-1'", "whole number"});
  expect_refused(set_option(o, "threads", "-1"), {"--threads is '-1'", "whole number, at least 0 and at most "});
  expect_refused(set_option(o, "page-size", "64x"), {"--page-size is '64x'"});
  expect_refused(set_option(o, "page-size", ""), {"--page-size is ''"});
  expect_refused(set_option(o, "hicache-ratio", "0"), {"--hicache-ratio is 0", "above 0"});
  expect_refused(set_option(o, "hicache-ratio", "nan"), {"--hicache-ratio is nan"});
  expect_refused(set_option(o, "port", "70000"), {"--port is 70000", "at most 65535"});
  expect_refused(set_option(o, "max-running-requests", "0"), {"--max-running-requests is 0", "at least 1"});
  expect_refused(set_option(o, "hicache-write-policy", "lazy"), {"'lazy'", "write_through_selective", "write_back"});
  expect_refused(set_option(o, "radix-eviction-policy", "arc"), {"'arc'", "lru, lfu, slru"});
  expect_refused(set_option(o, "hicache-storage-prefetch-policy", "x"), {"best_effort, wait_complete, timeout"});
  expect_refused(set_option(o, "hicache-mem-layout", "x"), {"page_first_direct", "layer_first"});
  expect_refused(set_option(o, "disable-radix-cache", "maybe"), {"'maybe'", "true or false"});
  EXPECT_TRUE(o.given.empty());
}

bool is_log_level(std::string_view word) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (log_level_name(level) == word) return true;
  }
  return false;
}

TEST(Options, WordsOfTheTableAreThoseOfTheirParsers) {
  for (const OptionEntry& entry : option_table()) {
    for (const std::string_view word : entry.words) {
      const bool is_of_log = entry.info.name == "log-level"    ? is_log_level(word)
                             : entry.info.name == "log-format" ? word == "text" || word == "json"
                                                               : false;
      EXPECT_TRUE(is_of_log || parse_write_policy(word) || parse_prefetch_policy(word) || parse_host_layout(word) ||
                  parse_eviction_policy(word))
          << word;
    }
  }
  Options o;
  o.hicache_write_policy = "sometimes";
  expect_refused(validate_options(o), {"--hicache-write-policy is 'sometimes'"});
}

TEST(Options, ContradictionsAreNamedWithTheWayOut) {
  Options o;
  o.disable_radix_cache = true;
  EXPECT_TRUE(validate_options(o));  // the host tier's default is simply without work
  o.hicache_storage_backend = "file";
  expect_refused(validate_options(o), {"--disable-radix-cache", "--hicache-storage-backend 'file'", "drop one"});
  o = {};
  o.enable_hierarchical_cache = false;
  o.hicache_storage_backend = "memory";
  expect_refused(validate_options(o), {"--hicache-storage-backend 'memory'", "drop --disable-hierarchical-cache"});
  o = {};
  ASSERT_TRUE(set_option(o, "enable-hierarchical-cache", ""));
  ASSERT_TRUE(set_option(o, "disable-radix-cache", ""));
  expect_refused(validate_options(o), {"contradict"});
  o = {};
  ASSERT_TRUE(set_option(o, "enable-hierarchical-cache", ""));
  ASSERT_TRUE(set_option(o, "disable-hierarchical-cache", ""));
  expect_refused(validate_options(o), {"contradict"});
  o = {};
  o.hicache_storage_backend_extra_config = "{}";
  expect_refused(validate_options(o), {"needs --hicache-storage-backend"});
  o = {};
  o.hicache_state_on_device_only = o.hicache_kv_on_device_only = true;
  expect_refused(validate_options(o), {"--hicache-state-on-device-only", "--hicache-kv-on-device-only"});
  o = {};
  o.hicache_kv_on_device_only = true;
  o.enable_hierarchical_cache = false;
  expect_refused(validate_options(o), {"--hicache-kv-on-device-only", "drop --disable-hierarchical-cache"});
  o = {};
  o.hicache_ratio = -1;
  expect_refused(validate_options(o), {"--hicache-ratio is -1"});
  o = {};
  o.page_size = 64;
  o.max_total_tokens = 63;
  expect_refused(validate_options(o), {"--max-total-tokens is 63", "--page-size 64"});
}

TEST(Options, APathThatIsNoModelSaysWhy) {
  sim::SimFileSystem files(1);
  ASSERT_TRUE(files.make_dirs("/m/folder"));
  write_file(files, "/m/blob", "GGML");
  write_file(files, "/m/short", "GG");
  write_file(files, "/m/gguf", "GGUF and more");
  Options o;
  const auto refused = [&](const char* model, const char* words) {
    o.model = model;
    expect_refused(load_model(o, files).status(), {"--model: /m/", words});
  };
  refused("/m/folder", "it is a directory");
  refused("/m/blob", "a GGUF file begins with GGUF; this one does not");
  refused("/m/short", "this one does not");
  refused("/m/gguf", "larder serve gives it to llama.cpp");
  o.model = "/m/none";
  EXPECT_EQ(load_model(o, files).status().code(), StatusCode::kNotFound);
  o.model = "none.toml";
  EXPECT_TRUE(load_model(o, files).status().message().starts_with("--model: "));
}

TEST(Options, ModelChecksNameModelAndFlag) {
  Options o;
  o.model = "gqa-tiny";
  o.hicache_state_on_device_only = true;
  expect_refused(validate_options_for(o, load_model(o).value()), {"--hicache-state-on-device-only", "gqa-tiny"});
  o.model = "gdn-tiny";
  EXPECT_TRUE(validate_options_for(o, load_model(o).value()));
  o.max_total_tokens = 63;
  expect_refused(validate_options_for(o, load_model(o).value()), {"--max-total-tokens is 63", "64 tokens"});
  o = {};
  o.model = "dsv4-tiny";
  o.page_size = 100;
  expect_refused(load_model(o).status(), {"--page-size 100", "dsv4-tiny", "128"});
  o.page_size = 256;
  o.context_length = 512;
  EXPECT_EQ(load_model(o)->page_size, 256u);
  EXPECT_EQ(load_model(o)->context_length, 512u);
  o.model = "gpt-5";
  expect_refused(load_model(o).status(), {"--model", "gpt-5", "gdn-tiny"});
}

TEST(Options, ComeFromFilesToo) {
  sim::SimFileSystem files(1);
  write_file(files, "larder.toml",
             "model = 'swa-tiny'\nhicache-ratio = 4\nport = 0\ndisable_radix_cache = true\n"
             "log-level = 'warning'\nlog_format = 'json'\n");
  Options o;
  ASSERT_TRUE(set_options_from_file(o, "larder.toml", files));
  EXPECT_EQ(o.model, "swa-tiny");
  EXPECT_EQ(o.hicache_ratio, 4);
  EXPECT_TRUE(o.disable_radix_cache);
  EXPECT_EQ(o.log_level, "warning");
  EXPECT_EQ(o.log_format, "json");
  write_file(files, "loud.toml", "log-level = 'loud'\n");
  expect_refused(set_options_from_file(o, "loud.toml", files), {"loud.toml", "--log-level is 'loud'", "warning"});
  write_file(files, "bad.json", R"({"hicache-ratio": [1]})");
  expect_refused(set_options_from_file(o, "bad.json", files), {"bad.json", "hicache-ratio"});
  write_file(files, "bad2.json", R"({"hicache-ratios": 1})");
  expect_refused(set_options_from_file(o, "bad2.json", files), {"bad2.json", "--hicache-ratio"});
  write_file(files, "object.json", R"({"kv-events-config": {"publisher": "zmq"}})");
  expect_refused(set_options_from_file(o, "object.json", files), {"kv-events-config", "(write the object as text)"});
  write_file(files, "extra.json", R"({"hicache_storage_backend_extra_config": {"directory": "/x"}})");
  expect_refused(set_options_from_file(o, "extra.json", files), {"(write the object as text, or as @file)"});
  write_file(files, "list.json", "[]");
  expect_refused(set_options_from_file(o, "list.json", files), {"list.json"});
  write_file(files, "x.ini", "a: 1");
  expect_refused(set_options_from_file(o, "x.ini", files), {"Unsupported config file x.ini", ".toml", ".yaml"});
  EXPECT_EQ(set_options_from_file(o, "none.toml", files).code(), StatusCode::kNotFound);
  write_file(files, "m.json", R"({"id": "mine", "layers": ["attention"]})");
  o = {};
  o.model = "m.json";
  EXPECT_EQ(load_model(o, files)->id, "mine");
}

// 0071 would be the key "71", and 4.10 the name "4.1".
TEST(Options, TextOfAFileIsTextInQuotes) {
  sim::SimFileSystem files(1);
  Options o;
  write_file(files, "c.yaml", "api-key: 0071\nserved_model_name: 4.10\nadmin-api-key: true\n");
  expect_refused(set_options_from_file(o, "c.yaml", files),
                 {"c.yaml: api-key: text in quotes is expected", "c.yaml: served_model_name: text in quotes",
                  "c.yaml: admin-api-key: text in quotes"});
  EXPECT_TRUE(o.given.empty());
  write_file(files, "c.toml", "api-key = 71\n");
  expect_refused(set_options_from_file(o, "c.toml", files), {"c.toml: api-key: text in quotes"});
  write_file(files, "c.yaml", "api-key: '0071'\nserved-model-name: \"4.10\"\nrecord-trace-max-size: 4096\nport: 0\n");
  ASSERT_TRUE(set_options_from_file(o, "c.yaml", files));
  EXPECT_EQ(o.api_key, "0071");
  EXPECT_EQ(o.served_model_name, "4.10");
  EXPECT_EQ(o.record_trace_max_size, "4096") << "a size is a number, too";
}

TEST(Options, ALaterSourceWins) {
  using Given = std::vector<GivenOption>;
  Options o;
  ASSERT_TRUE(set_options(o, Given{{"api-key", "old"}, {"admin-api-key", "old"}, {"allow-no-key", "true"}}));
  ASSERT_TRUE(set_options(o, Given{{"disable-hierarchical-cache", "true"}}));
  ASSERT_TRUE(set_options(o, Given{{"api-key-file", "/new"}, {"enable-hierarchical-cache", "true"}}));
  EXPECT_EQ(o.api_key, "") << "it is in the file";
  EXPECT_EQ(o.api_key_file, "/new");
  EXPECT_EQ(o.admin_api_key, "old");
  EXPECT_TRUE(o.enable_hierarchical_cache);
  EXPECT_TRUE(validate_options(o)) << validate_options(o).to_string();
  ASSERT_TRUE(set_options(o, Given{{"allow-no-key", "false"}, {"api-key", "newest"}, {"admin-api-key-file", "/new"}}));
  EXPECT_FALSE(o.allow_no_key);
  EXPECT_EQ(o.api_key, "newest");
  EXPECT_EQ(o.api_key_file, "");
  EXPECT_EQ(o.admin_api_key, "");
  // One source contradicts itself, unless both of its switches mean the same.
  ASSERT_TRUE(set_options(o, Given{{"disable-hierarchical-cache", "false"}, {"enable-hierarchical-cache", "true"}}));
  EXPECT_TRUE(validate_options(o)) << validate_options(o).to_string();
  ASSERT_TRUE(set_options(o, Given{{"disable-hierarchical-cache", "true"}, {"enable-hierarchical-cache", "true"}}));
  expect_refused(validate_options(o), {"contradict"});
  expect_refused(set_options(o, Given{{"port", "-1"}, {"prot", "1"}}), {"--port is '-1'", "\n  unknown option --prot"});
}

TEST(ExtraConfig, SplitsTheCachesOwnKeysFromTheBackends) {
  const Result<ExtraConfig> extra = parse_extra_config(
      R"({"directory": "/var/x", "max_size": 1000, "ratio": 0.5, "direct": true, "offset": -3, "prefetch_threshold": 32,
          "prefetch_timeout_base": 2, "prefetch_timeout_per_ki_token": 0.125, "prefetch_timeout_max": 60,
          "hicache_storage_pass_prefix_keys": false, "tp_lcm_size": 4})");
  ASSERT_TRUE(extra.is_ok()) << extra.status().to_string();
  EXPECT_EQ(
      extra->backend,
      (BackendOptions{
          {"directory", "/var/x"}, {"max_size", "1000"}, {"ratio", "0.5"}, {"direct", "true"}, {"offset", "-3"}}));
  Options o;
  o.hicache_storage_backend = "file";
  o.hicache_storage_backend_extra_config = R"({"prefetch_threshold": 32, "prefetch_timeout_max": 60})";
  const Result<CacheConfig> config = cache_config(o);
  ASSERT_TRUE(config.is_ok());
  EXPECT_EQ(config->prefetch_threshold, 32u);
  EXPECT_EQ(config->prefetch_timeout_max, std::chrono::seconds(60));
  EXPECT_EQ(config->prefetch_timeout_base, std::chrono::seconds(1));
  EXPECT_TRUE(parse_extra_config("")->backend.empty());
}

TEST(ExtraConfig, RefusalsNameTheKey) {
  const auto refused = [](std::string_view text) { return parse_extra_config(text).status(); };
  expect_refused(refused("{"), {"extra-config", "1:"});
  expect_refused(refused("[1]"), {"object is expected"});
  expect_refused(refused(R"({"plugin": {"a": 1}})"), {"'plugin' is a list, an object or null"});
  expect_refused(refused(R"({"disks": ["a"]})"), {"'disks' is a list"});
  expect_refused(refused(R"({"x": null})"), {"'x' is a list, an object or null"});
  expect_refused(refused(R"({"directory": 3})"), {"'directory' is a path: text in quotes is expected"});
  expect_refused(refused(R"({"metadata_api_key": 71})"), {"'metadata_api_key': text in quotes is expected"});
  expect_refused(refused(R"({"prefetch_threshold": "a"})"), {"prefetch_threshold must be int, got text"});
  expect_refused(refused(R"({"prefetch_threshold": 1.5})"), {"prefetch_threshold must be int"});
  expect_refused(refused(R"({"prefetch_timeout_base": "a"})"), {"prefetch_timeout_base must be number"});
  expect_refused(refused(R"({"prefetch_timeout_base": -1})"), {"prefetch_timeout_base must be 0 to"});
  expect_refused(refused(R"({"prefetch_timeout_max": 1e300})"), {"prefetch_timeout_max must be 0 to"});
  expect_refused(refused(R"({"hicache_storage_pass_prefix_keys": 1})"), {"must be bool"});
  expect_refused(refused(R"({"a": 1, "a": 2})"), {"a"});
}

TEST(ExtraConfig, ComesFromFilesToo) {
  sim::SimFileSystem files(1);
  write_file(files, "x.toml", "max_size = '1G'\nprefetch_timeout_base = 0.5\n");
  write_file(files, "x.json", R"({"max_size": "1G"})");
  EXPECT_EQ(parse_extra_config("@x.toml", files)->backend.at("max_size"), "1G");
  EXPECT_EQ(parse_extra_config("@x.toml", files)->prefetch_timeout_base, std::chrono::milliseconds(500));
  EXPECT_EQ(parse_extra_config("@x.json", files)->backend.at("max_size"), "1G");
  EXPECT_EQ(parse_extra_config("@y.json", files).status().code(), StatusCode::kNotFound);
  write_file(files, "x.yaml", "max_size: 1G  # bytes\nprefetch_timeout_base: 0.5\n");
  EXPECT_EQ(parse_extra_config("@x.yaml", files)->backend.at("max_size"), "1G");
  EXPECT_EQ(parse_extra_config("@x.yaml", files)->prefetch_timeout_base, std::chrono::milliseconds(500));
  write_file(files, "x.ini", "a: 1");
  expect_refused(parse_extra_config("@x.ini", files).status(), {"Unsupported config file x.ini"});
}

// An attach at run time comes over HTTP: it loads no code that the start has not named.
TEST(ExtraConfig, OnlyLibrariesThatTheStartNamesAreLoaded) {
  sim::SimFileSystem files(1);
  write_file(files, "evil.json", R"({"library": "/tmp/evil.so"})");
  Options options;
  const auto check = [&](std::string_view text) {
    const Result<ExtraConfig> extra = parse_extra_config(text, files);
    return extra.is_ok() ? check_library(options, *extra, files) : extra.status();
  };
  EXPECT_TRUE(check(R"({"directory": "/d"})").is_ok());
  EXPECT_TRUE(check(R"({"library": ""})").is_ok()) << "the system's";
  expect_refused(check(R"({"library": "/tmp/evil.so"})"), {"/tmp/evil.so", "--allow-storage-library"});
  expect_refused(check("@evil.json"), {"/tmp/evil.so"});
  expect_refused(check(R"({"python": "/tmp/evil"})"), {"/tmp/evil", "--allow-storage-library"});
  expect_refused(check(R"({"package_directory": "/tmp/evil"})"), {"/tmp/evil", "--allow-storage-library"});
  options.allow_storage_library = "/opt/a.so,/opt/b.so";
  EXPECT_TRUE(check(R"({"library": "/opt/a.so"})").is_ok());
  EXPECT_TRUE(check(R"({"library": "/opt/b.so"})").is_ok());
  for (const char* near : {R"({"library": "/opt/a.so,/opt/b.so"})", R"({"library": "/opt/a"})",
                           R"({"library": "/opt/../opt/a.so"})", R"({"library": "/opt/c.so"})"}) {
    expect_refused(check(near), {"--allow-storage-library"});
  }
  options.allow_storage_library.clear();
  options.hicache_storage_backend = "plugin";
  options.hicache_storage_backend_extra_config = R"({"library": "/opt/start.so"})";
  EXPECT_TRUE(check(R"({"library": "/opt/start.so"})").is_ok());
  expect_refused(check(R"({"library": "/tmp/evil.so"})"), {"/tmp/evil.so"});
}

TEST(ExtraConfig, TheReferencesVariableNamesTheFileOfHf3fs) {
  constexpr const char* kVariable = "SGLANG_HICACHE_HF3FS_CONFIG_PATH";
  ASSERT_EQ(::unsetenv(kVariable), 0);
  EXPECT_EQ(extra_config_source("hf3fs", ""), "");
  ASSERT_EQ(::setenv(kVariable, "/etc/hf3fs.json", 1), 0);
  EXPECT_EQ(extra_config_source("hf3fs", ""), "@/etc/hf3fs.json");
  EXPECT_EQ(extra_config_source("hf3fs", "{}"), "{}") << "what is given counts";
  EXPECT_EQ(extra_config_source("file", ""), "") << "of another backend";
  ASSERT_EQ(::unsetenv(kVariable), 0);
  // The keys of the reference's own example are known here.
  sim::SimFileSystem files(1);
  write_file(files, "hf3fs.json", R"({"file_path_prefix": "/data/hicache", "file_size": 1099511627776, "numjobs": 16,
                                      "entries": 8, "metadata_server_url": "http://127.0.0.1:18000"})");
  const Result<ExtraConfig> extra = parse_extra_config("@hf3fs.json", files);
  ASSERT_TRUE(extra.is_ok()) << extra.status().to_string();
  BackendFactory factory;
  ASSERT_TRUE(register_backends(factory).is_ok());
  for (const auto& [key, value] : extra->backend) {
    const std::vector<BackendOptionHelp>& known = *factory.options_of("hf3fs");
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const auto& option) { return option.key == key; })) << key;
  }
}

TEST(ExtraConfig, TheReferencesVariableNamesTheFileOfMooncake) {
  constexpr const char* kVariable = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH";
  ASSERT_EQ(::setenv(kVariable, "/etc/mooncake.json", 1), 0);
  EXPECT_EQ(extra_config_source("mooncake", ""), "@/etc/mooncake.json");
  EXPECT_EQ(extra_config_source("hf3fs", ""), "");
  ASSERT_EQ(::unsetenv(kVariable), 0);
  // The keys that the reference reads from it are known here.
  BackendFactory factory;
  ASSERT_TRUE(register_backends(factory).is_ok());
  for (const char* key :
       {"master_server_address", "client_server_address", "local_hostname", "metadata_server", "global_segment_size",
        "protocol", "device_name", "master_metrics_port", "check_server", "standalone_storage", "enable_ssd_offload",
        "ssd_offload_path", "extra_backend_tag", "enable_group_semantics"}) {
    const std::vector<BackendOptionHelp>& known = *factory.options_of("mooncake");
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const auto& option) { return option.key == key; })) << key;
  }
}

TEST(Options, AContextOfOnePageIsWarnedOf) {
  Options o;
  o.model = "gdn-tiny";
  o.page_size = 64;
  for (const auto& [context, is_warned] : {std::pair(10u, true), {64u, true}, {65u, false}, {0u, false}}) {
    o.context_length = context;
    const Result<ModelSpec> model = load_model(o);
    ASSERT_TRUE(model.is_ok()) << model.status().to_string();
    const std::string warning = reuse_warning(*model);
    EXPECT_EQ(warning.find("a page has 64 tokens") != warning.npos, is_warned) << context << ": " << warning;
  }
}

}  // namespace
}  // namespace larder
