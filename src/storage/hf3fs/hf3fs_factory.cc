// SPDX-License-Identifier: Apache-2.0
#include "storage/hf3fs/hf3fs_factory.h"

#include <openssl/rand.h>

#include <bit>
#include <utility>

#include "storage/hf3fs/hf3fs_backend.h"
#include "storage/hf3fs/usrbio_page_store.h"
#include "storage/option_text.h"

namespace larder {
namespace {

using hf3fs::Hf3fsOptions;
using hf3fs::UsrbioStoreOptions;

struct AllOptions {
  Hf3fsOptions backend;
  UsrbioStoreOptions store;
  MetadataOptions metadata;
};

// "/mnt/3fs/larder/pages" -> "/mnt/3fs/larder".
Status read_prefix(const BackendOptions& options, AllOptions& out) {
  const std::string prefix = text_option(options, "file_path_prefix", "");
  const std::size_t slash = prefix.rfind('/');
  if (prefix.empty() || prefix[0] != '/' || slash + 1 == prefix.size()) {
    return invalid_argument("option 'file_path_prefix': '" + prefix +
                            "' is no absolute path of files to be; write for example /mnt/3fs/larder/pages");
  }
  out.backend.file_path_prefix = prefix;
  out.store.directory = slash == 0 ? "/" : prefix.substr(0, slash);
  return Status::ok();
}

Status read_all_sizes(const BackendOptions& options, AllOptions& out) {
  const Result<std::uint64_t> file_size = size_option(options, "file_size", std::uint64_t{1} << 40);
  if (!file_size.is_ok()) return file_size.status();
  if (*file_size == kUnlimitedBytes) return invalid_argument("option 'file_size': a size; the files are that large");
  out.backend.file_size = *file_size;
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t chunk, size_option(options, "chunk_size", 0));
  const bool is_chunk = chunk >= hf3fs::kSlotAlignment && std::has_single_bit(chunk);
  if (chunk != 0 && !is_chunk) {
    return invalid_argument("option 'chunk_size': the chunk size of the directory's layout, a power of two from 4Ki");
  }
  out.backend.chunk_bytes = chunk;
  const Result<std::uint64_t> staging = size_option(options, "staging_size", std::uint64_t{32} << 20);
  if (!staging.is_ok()) return staging.status();
  if (*staging < hf3fs::transfer_bytes(1) || *staging > std::uint64_t{64} << 30) {
    return invalid_argument("option 'staging_size': from 8Ki to 64Gi; at least one page with its head of 4 KiB");
  }
  out.store.ring.staging_bytes = static_cast<std::size_t>(*staging / hf3fs::kSlotAlignment * hf3fs::kSlotAlignment);
  return Status::ok();
}

// A service cuts reservations to its own limit: a writer with more patience would use pages that are another's by then.
Status check_timeout(std::uint64_t seconds) {
  if (hf3fs::time_to_confirm(std::chrono::seconds(seconds)) <= kUsualMaxReservation) return Status::ok();
  std::uint64_t most = seconds;
  while (hf3fs::time_to_confirm(std::chrono::seconds(most)) > kUsualMaxReservation) --most;
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(kUsualMaxReservation).count();
  return invalid_argument("option 'client_timeout': " + std::to_string(seconds) +
                          " s needs reservations of four times that and 5 s, and a metadata service gives " +
                          std::to_string(limit) + " s at most: choose 1 to " + std::to_string(most));
}

Status read_counts(const BackendOptions& options, AllOptions& out) {
  std::uint64_t timeout = 0, dead = 0;
  LARDER_RETURN_IF_ERROR(read_count(options, "files", 4, 1, 1024, out.backend.files));
  LARDER_RETURN_IF_ERROR(read_count(options, "rank", 0, 0, 1'000'000, out.backend.rank));
  LARDER_RETURN_IF_ERROR(read_count(options, "numjobs", 2, 1, 64, out.store.rings));
  LARDER_RETURN_IF_ERROR(read_count(options, "entries", 64, 1, 4096, out.store.ring.entries));
  LARDER_RETURN_IF_ERROR(read_count(options, "queue_limit", 1024, 1, 1'000'000, out.backend.queue_limit));
  LARDER_RETURN_IF_ERROR(read_count(options, "client_timeout", 5, 1, 3600, timeout));
  LARDER_RETURN_IF_ERROR(check_timeout(timeout));
  LARDER_RETURN_IF_ERROR(read_count(options, "dead_after", 90, 1, 3600, dead));
  out.backend.client_timeout = out.store.ring.client_timeout = std::chrono::seconds(timeout);
  out.store.ring.dead_after = std::chrono::seconds(dead);
  return Status::ok();
}

Result<AllOptions> read_all_options(const BackendOptions& options) {
  AllOptions out;
  LARDER_RETURN_IF_ERROR(read_prefix(options, out));
  LARDER_RETURN_IF_ERROR(read_all_sizes(options, out));
  LARDER_RETURN_IF_ERROR(read_counts(options, out));
  out.store.library.path = text_option(options, "library", "");
  out.metadata.url = text_option(options, "metadata_server_url", "");
  out.metadata.api_key = text_option(options, "metadata_api_key", "");
  out.metadata.ca_file = text_option(options, "metadata_cacert", "");
  out.metadata.timeout = out.backend.client_timeout;
  const std::string beside = out.backend.file_path_prefix + '.' + std::to_string(out.backend.rank) + ".metadata";
  out.metadata.directory = text_option(options, "metadata_directory", beside);
  if (out.metadata.directory == "none") out.metadata.directory.clear();
  if (!out.metadata.url.empty() && !text_option(options, "metadata_directory", "").empty()) {
    return invalid_argument("option 'metadata_directory': the service at metadata_server_url keeps its own");
  }
  return out;
}

Result<std::unique_ptr<StorageBackend>> create_hf3fs(const BackendOptions& options,
                                                     const BackendEnvironment& environment) {
  if (environment.executor == nullptr || environment.clock == nullptr || !environment.open_metadata) {
    return invalid_argument("hf3fs backend: needs a clock, an executor and a metadata service");
  }
  LARDER_ASSIGN_OR_RETURN(const AllOptions read, read_all_options(options));
  LARDER_ASSIGN_OR_RETURN(auto store, hf3fs::UsrbioPageStore::create(read.store, *environment.clock));
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<MetadataService> service, environment.open_metadata(read.metadata));
  // Names this process's writes at the service: must differ from all others, ever.
  std::array<std::uint64_t, 2> process{};
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(process.data()), sizeof process) != 1) {
    return unavailable("hf3fs backend: no random numbers from the system");
  }
  return std::unique_ptr<StorageBackend>(std::make_unique<hf3fs::Hf3fsBackend>(
      read.backend, std::move(service), std::move(store), *environment.executor, *environment.clock, process));
}

}  // namespace

Status register_hf3fs_backend(BackendFactory& factory) {
  return factory.add(
      "hf3fs",
      {{"file_path_prefix", "", "path in front of the data files, on a 3FS mount. Required"},
       {"file_size", "1Ti", "bytes for each kind of page (sparse); full: what was used longest ago goes"},
       {"files", "4", "data files per kind of page; pages are spread over them"},
       {"chunk_size", "0", "chunk size of the directory's layout, so that pages fit chunks; 0: not known"},
       {"rank", "0", "the tensor-parallel rank, of its own files; pools that all ranks share are rank 0's"},
       {"numjobs", "2", "rings, and threads, for reads, and as many for writes"},
       {"entries", "64", "pages at once per ring"},
       {"staging_size", "32Mi", "registered memory per ring; at least one page"},
       {"client_timeout", "5", "seconds for one page, and for one call of the metadata service; at most 28"},
       {"dead_after", "90", "seconds without any completion before the mount counts as dead"},
       {"queue_limit", "1024", "operations in flight before submit refuses"},
       {"library", "", "the 3FS client library; else LARDER_HF3FS_LIBRARY, else libhf3fs_api_shared.so"},
       {"metadata_server_url", "",
        "http://host:port or redis://host:port, https and rediss over TLS; empty: in this process"},
       {"metadata_directory", "", "journal of the service in this process; default <prefix>.<rank>.metadata; none"},
       {"metadata_api_key", "", "bearer key of the metadata server"},
       {"metadata_cacert", "", "at https:// and rediss://: PEM file of who may have issued its certificate"}},
      create_hf3fs);
}

}  // namespace larder
