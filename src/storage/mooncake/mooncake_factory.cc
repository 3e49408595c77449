// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/mooncake_factory.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "storage/mooncake/mooncake_backend.h"
#include "storage/mooncake/real_helper_link.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using mooncake::HelperOptions;

struct MooncakeOptions {
  HelperOptions helper;
  mooncake::BackendLimits limits;
};

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;  // of a segment: what a machine may have

// An option, else SGLang's variable for it, else `fallback`.
std::string text_or_variable(const BackendOptions& options, const char* key, const char* variable,
                             const char* fallback) {
  std::string text = text_option(options, key, "");
  if (!text.empty()) return text;
  const char* const value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? fallback : value;
}

// Left as it is if the option is not given.
Status read_switch(const BackendOptions& options, const char* key, bool& out) {
  const std::string text = text_option(options, key, out ? "true" : "false");
  out = text == "true" || text == "1";
  if (out || text == "false" || text == "0") return Status::ok();
  return invalid_argument("option '" + std::string(key) + "': '" + text + "' is neither true nor false");
}

Status read_addresses(const BackendOptions& options, mooncake::SetupRequest& out) {
  out.master_server_address = text_or_variable(options, "master_server_address", "MOONCAKE_MASTER", "");
  if (out.master_server_address.empty()) {
    return invalid_argument(
        "option 'master_server_address' is missing: HOST:PORT of a mooncake_master (or the variable MOONCAKE_MASTER)");
  }
  // The older variable is SGLang's, too.
  const std::string host = text_or_variable(options, "local_hostname", "LOCAL_HOSTNAME", "localhost");
  out.local_hostname = text_or_variable(options, "local_hostname", "MOONCAKE_LOCAL_HOSTNAME", host.c_str());
  out.metadata_server = text_or_variable(options, "metadata_server", "MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE");
  out.protocol = text_or_variable(options, "protocol", "MOONCAKE_PROTOCOL", "rdma");
  out.device_name = text_or_variable(options, "device_name", "MOONCAKE_DEVICE", "");
  out.package_directory = text_option(options, "package_directory", "");
  return Status::ok();
}

Status read_bytes(const BackendOptions& options, MooncakeOptions& out) {
  BackendOptions with_variable = options;
  with_variable["global_segment_size"] =
      text_or_variable(options, "global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "4Gi");
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t segment, size_option(with_variable, "global_segment_size", 0));
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t buffer, size_option(options, "local_buffer_size", 0));
  const Result<std::uint64_t> staging = size_option(options, "staging_size", std::uint64_t{64} << 20);
  if (!staging.is_ok()) return staging.status();
  if (segment > kMostBytes) return invalid_argument("option 'global_segment_size': from 0 to 64Ti");
  if (buffer > kMostBytes) return invalid_argument("option 'local_buffer_size': from 0 to 64Ti");
  if (*staging < 65'536 || *staging > std::uint64_t{64} << 30) {
    return invalid_argument("option 'staging_size': from 64Ki to 64Gi; at least one group of pages");
  }
  out.helper.setup.global_segment_size = segment;
  out.helper.setup.local_buffer_size = buffer;
  out.helper.staging_bytes = static_cast<std::size_t>(*staging / 4096 * 4096);
  // Several batches fit, so that one is copied while others move.
  out.limits.read_bytes = std::min<std::uint64_t>(out.limits.read_bytes, out.helper.staging_bytes / 4);
  out.limits.join.bytes = std::min<std::uint64_t>(out.limits.join.bytes, out.helper.staging_bytes / 4);
  return Status::ok();
}

Status read_numbers(const BackendOptions& options, MooncakeOptions& out) {
  std::uint64_t answer = 0, setup = 0;
  LARDER_RETURN_IF_ERROR(read_count(options, "replica_num", 1, 1, 64, out.helper.setup.replica_num));
  LARDER_RETURN_IF_ERROR(read_count(options, "client_threads", 8, 1, 64, out.helper.lanes));
  LARDER_RETURN_IF_ERROR(read_count(options, "queue_limit", 1024, 1, 1'000'000, out.limits.queue_limit));
  LARDER_RETURN_IF_ERROR(read_count(options, "client_timeout", 40, 1, 3600, answer));
  LARDER_RETURN_IF_ERROR(read_count(options, "setup_timeout", 30, 1, 3600, setup));
  LARDER_RETURN_IF_ERROR(read_switch(options, "soft_pin", out.helper.setup.soft_pin));
  LARDER_RETURN_IF_ERROR(read_switch(options, "enable_group_semantics", out.helper.setup.groups));
  // Others are for what is short: it does not wait behind them.
  out.limits.join.large_at_once = std::max<std::size_t>(1, out.helper.lanes / 4);
  out.limits.join.most_at_once = std::max<std::size_t>(1, out.helper.lanes * 3 / 4);
  out.helper.answer_limit = std::chrono::seconds(answer);
  out.helper.start_limit = std::chrono::seconds(setup);
  return Status::ok();
}

// Keys of SGLang's that ask for another way of running the client: off, they are as here.
Status check_foreign(const BackendOptions& options) {
  for (const char* key : {"standalone_storage", "enable_ssd_offload"}) {
    bool is_on = false;
    LARDER_RETURN_IF_ERROR(read_switch(options, key, is_on));
    if (is_on) {
      return unsupported("option '" + std::string(key) +
                         "': only false; start a mooncake_client that has it, and let "
                         "global_segment_size be 0 here");
    }
  }
  for (const char* key : {"client_server_address", "ssd_offload_path"}) {
    if (!text_option(options, key, "").empty()) {
      return unsupported("option '" + std::string(key) + "': the client here is always one of its own, without an SSD");
    }
  }
  return Status::ok();
}

Result<std::unique_ptr<StorageBackend>> create_mooncake(const BackendOptions& options,
                                                        const BackendEnvironment& environment) {
  if (environment.executor == nullptr) return invalid_argument("mooncake backend: needs an executor");
  MooncakeOptions read;
  LARDER_RETURN_IF_ERROR(check_foreign(options));
  LARDER_RETURN_IF_ERROR(read_addresses(options, read.helper.setup));
  LARDER_RETURN_IF_ERROR(read_bytes(options, read));
  LARDER_RETURN_IF_ERROR(read_numbers(options, read));
  const char* const variable = std::getenv("LARDER_MOONCAKE_PYTHON");
  read.helper.python = text_option(options, "python", variable == nullptr ? "python3" : variable);
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<mooncake::HelperLink> link, mooncake::start_helper(read.helper));
  return std::unique_ptr<StorageBackend>(std::make_unique<mooncake::MooncakeBackend>(
      std::move(link), read.limits, read.helper.setup.global_segment_size == 0, *environment.executor));
}

}  // namespace

Status register_mooncake_backend(BackendFactory& factory) {
  return factory.add(
      "mooncake",
      {{"master_server_address", "", "HOST:PORT of mooncake_master; else the variable MOONCAKE_MASTER. Required"},
       {"local_hostname", "localhost", "this machine's name for other clients; else MOONCAKE_LOCAL_HOSTNAME"},
       {"metadata_server", "P2PHANDSHAKE", "of the transfer engine; else MOONCAKE_TE_META_DATA_SERVER"},
       {"global_segment_size", "4Gi", "memory lent to the store, gone with this process; MOONCAKE_GLOBAL_SEGMENT_SIZE"},
       {"local_buffer_size", "0", "the client's own buffer; pages do not use it"},
       {"protocol", "rdma", "tcp, rdma ...; else MOONCAKE_PROTOCOL"},
       {"device_name", "", "RDMA devices, by comma; else MOONCAKE_DEVICE"},
       {"replica_num", "1", "copies of each page, on different clients"},
       {"soft_pin", "false", "pages are evicted after those that are not pinned"},
       {"enable_group_semantics", "true", "the master evicts the pages of one group together"},
       {"staging_size", "64Mi", "memory shared with the helper; at least one group of pages"},
       {"client_threads", "8", "calls at once; a quarter of them large reads, a quarter large writes"},
       {"client_timeout", "40",
        "seconds for a call, and before it in line; then who waits has an error. The library gives up after 30"},
       {"setup_timeout", "30", "seconds for the start of the helper"},
       {"queue_limit", "1024", "operations in flight before submit refuses"},
       {"python", "", "the interpreter that has package mooncake; else LARDER_MOONCAKE_PYTHON, else python3"},
       {"package_directory", "", "where package mooncake lies, if the interpreter does not find it"},
       {"check_server", "", "SGLang's: taken; the master is always asked at start"},
       {"master_metrics_port", "", "SGLang's: taken, and not needed"},
       {"extra_backend_tag", "", "SGLang's: taken, and not needed: names tell models, layouts and ranks apart"},
       {"standalone_storage", "false", "SGLang's: false only"},
       {"enable_ssd_offload", "false", "SGLang's: false only"},
       {"client_server_address", "", "SGLang's: not here"},
       {"ssd_offload_path", "", "SGLang's: not here"}},
      create_mooncake);
}

}  // namespace larder
