// SPDX-License-Identifier: Apache-2.0
// `larder metadata-server`: options, journal, import, HTTP; and an orderly stop.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>

#include "base/file_system.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/orderly_stop.h"
#include "cli/real_log_option.h"
#include "cli/real_service_notify.h"
#include "cli/real_signals.h"
#include "cli/tls_options.h"
#include "engine/text_file.h"
#include "key/sha256.h"
#include "metadata/embedded_metadata.h"
#include "metadata/real_rocksdb_journal.h"
#include "server/auth.h"
#include "server/command_line.h"
#include "server/key_file.h"
#include "server/metadata_import.h"
#include "server/metadata_server.h"
#include "server/text_table.h"
#include "server/tls_context.h"
#include "server/version.h"

namespace larder {
namespace {

constexpr std::uint64_t kMaxImportBytes = std::uint64_t{1} << 30;
constexpr std::uint32_t kMostConnections = std::numeric_limits<std::uint32_t>::max();
constexpr double kMaxSeconds = 86400;
constexpr double kLeastReservation = 1e-9;  // seconds; the service refuses one that is over when it begins

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 18000;
  std::string api_key, api_key_file, directory, import_path;
  double max_lease = 120, max_reservation = 120, max_io_lifetime = 120;
  double client_lease = 60, client_reservation = 60;
  std::size_t max_namespaces = 1024;
  std::uint64_t max_pages = kMaxNamespacePages;
  std::uint32_t io_threads = 4, max_connections = 1024;
  TlsFiles tls;
  StopOptions stop;
  LogOptions log;
};

void add_metadata_options(CLI::App& app, ServerOptions& o) {
  app.add_option("--host", o.host, "address to listen on; any but loopback needs a key")->capture_default_str();
  app.add_option("--port", o.port, "port to listen on; 0: any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  app.add_option("--api-key", o.api_key,
                 "key that clients must send: as a bearer, or as the password in http://larder:KEY@host:port");
  app.add_option("--api-key-file", o.api_key_file, "holds that key; or the variable LARDER_METADATA_API_KEY")
      ->type_name("FILE");
  add_tls_options(app, o.tls);
  app.add_option("--directory", o.directory, "journal: what is answered survives; without one all is in memory")
      ->type_name("PATH");
  app.add_option("--import", o.import_path, "what SGLang's metadata server has saved, JSON, into an empty journal")
      ->type_name("FILE");
  app.add_option("--max-lease", o.max_lease, "seconds that a page found stays where it is, at most")
      ->capture_default_str();
  app.add_option("--max-reservation", o.max_reservation, "seconds from reserve to confirm, at most")
      ->capture_default_str();
  app.add_option("--max-io-lifetime", o.max_io_lifetime, "seconds that a write given up may still take")
      ->capture_default_str();
  app.add_option("--client-lease", o.client_lease, "seconds, as --max-lease, for SGLang's clients, which ask for none")
      ->capture_default_str();
  app.add_option("--client-reservation", o.client_reservation,
                 "seconds, as --max-reservation, for SGLang's clients, which ask for none")
      ->capture_default_str();
  app.add_option("--max-namespaces", o.max_namespaces, "most namespaces; a rank and a pool make one")
      ->check(whole_number(1))
      ->capture_default_str();
  app.add_option("--max-pages", o.max_pages, "most pages of a namespace, whatever its clients ask for")
      ->check(whole_number(1, kMaxNamespacePages))
      ->capture_default_str();
  app.add_option("--io-threads", o.io_threads, "threads that serve connections")
      ->check(whole_number(1, 256))
      ->capture_default_str();
  app.add_option("--max-connections", o.max_connections,
                 "connections at once; then one that waits is closed, or a new one gets 503")
      ->check(whole_number(1, kMostConnections))
      ->capture_default_str();
  add_stop_options(app, o.stop);
  add_log_options(app, o.log);
}

Status check_seconds(std::string_view name, double seconds, double least, double limit) {
  if (std::isfinite(seconds) && seconds >= least && seconds <= limit) return Status::ok();
  return invalid_argument(
      fmt::format("{} is {}: it must be a number of seconds in [{}, {}]", name, seconds, least, limit));
}

Status check_order(std::string_view name, double seconds, std::string_view limit_name, double limit) {
  if (seconds <= limit) return Status::ok();
  return invalid_argument(fmt::format("{} is {}, which is more than {}, {}: make one of them fit the other", name,
                                      seconds, limit_name, limit));
}

Status check_options(const ServerOptions& o) {
  if (!is_loopback_host(o.host) && o.api_key.empty()) {
    return invalid_argument(
        fmt::format("--host {} can be reached from other machines, and whoever reaches the index can make every cache "
                    "read wrong pages: give --api-key-file, or stay on 127.0.0.1",
                    o.host));
  }
  LARDER_RETURN_IF_ERROR(TlsContext::check(o.tls));
  LARDER_RETURN_IF_ERROR(check_seconds("--max-lease", o.max_lease, 0, kMaxSeconds));
  LARDER_RETURN_IF_ERROR(check_seconds("--max-reservation", o.max_reservation, kLeastReservation, kMaxSeconds));
  LARDER_RETURN_IF_ERROR(check_seconds("--max-io-lifetime", o.max_io_lifetime, 0, kMaxSeconds));
  LARDER_RETURN_IF_ERROR(check_seconds("--client-lease", o.client_lease, 0, kMaxSeconds));
  LARDER_RETURN_IF_ERROR(check_seconds("--client-reservation", o.client_reservation, kLeastReservation, kMaxSeconds));
  LARDER_RETURN_IF_ERROR(check_order("--client-lease", o.client_lease, "--max-lease", o.max_lease));
  return check_order("--client-reservation", o.client_reservation, "--max-reservation", o.max_reservation);
}

Nanos nanos_of(double seconds) { return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds)); }

// The records of --import; `report` says what they are.
Result<metadata::JournalBatch> read_import(const std::string& path, std::string& report) {
  LARDER_ASSIGN_OR_RETURN(const std::string text, read_text_file(real_file_system(), path, kMaxImportBytes));
  const auto imported = parse_reference_state(text);
  if (!imported.is_ok()) return invalid_argument(fmt::format("--import {}: {}", path, imported.status().message()));
  metadata::JournalBatch batch;
  record_import(*imported, batch);
  report = import_report(*imported);
  return batch;
}

// Null: there is none.
Result<std::unique_ptr<metadata::Journal>> open_journal(const ServerOptions& o) {
  std::string report;
  metadata::JournalBatch batch;
  if (!o.import_path.empty()) {
    LARDER_ASSIGN_OR_RETURN(batch, read_import(o.import_path, report));
  }
  std::unique_ptr<metadata::Journal> journal;
  if (!o.directory.empty()) {
    if (!o.import_path.empty()) {
      LARDER_ASSIGN_OR_RETURN(const auto fresh, metadata::open_rocksdb_journal(o.directory));
      const Status imported = import_into(*fresh, batch);
      if (!imported.is_ok()) {
        return Status(imported.code(), fmt::format("--import into {}: {}", o.directory, imported.message()));
      }
    }
    auto opened = metadata::open_rocksdb_journal(o.directory);  // a journal is read before it is written, so anew
    if (!opened.is_ok()) return opened.status();
    journal = std::move(*opened);
  } else if (!o.import_path.empty()) {
    journal = make_imported_journal(batch);
  }
  if (!report.empty()) tell_people(fmt::format("imported from {}\n{}", o.import_path, report));
  return journal;
}

Result<std::unique_ptr<EmbeddedMetadata>> open_service(const ServerOptions& o) {
  LARDER_ASSIGN_OR_RETURN(auto journal, open_journal(o));
  EmbeddedMetadataOptions options;
  options.max_lease = nanos_of(o.max_lease);
  options.max_ttl = nanos_of(o.max_reservation);
  options.max_io_lifetime = nanos_of(o.max_io_lifetime);
  options.max_namespaces = o.max_namespaces;
  options.max_pages = o.max_pages;
  return EmbeddedMetadata::create(options, real_clock(), std::move(journal));
}

// Sets the sessions of this process apart from those of others.
std::array<std::uint64_t, 2> process_name() {
  const std::int64_t parts[] = {real_clock().now().time_since_epoch().count(), real_clock().wall_unix_seconds(),
                                static_cast<std::int64_t>(::getpid())};
  const Digest256 digest = sha256({reinterpret_cast<const std::uint8_t*>(parts), sizeof parts});
  return {digest.prefix64(), load_le<std::uint64_t>(digest.bytes.data() + 8)};
}

int fail_metadata(const Status& status) { return fail_server("larder metadata-server", status); }

int serve_metadata(const ServerOptions& o) {
  StopSignals signals;  // before any thread that takes signals
  StartWatch start;
  MetricsRegistry metrics;
  auto service = open_service(o);
  if (!service.is_ok()) return fail_metadata(service.status());
  MetadataServerParts parts;
  parts.service = service->get();
  parts.clock = &real_clock();
  parts.metrics = &metrics;
  parts.listen.host = o.host;
  parts.listen.port = o.port;
  parts.listen.tls = o.tls;
  parts.listen.io_threads = o.io_threads;
  parts.listen.max_connections = o.max_connections;
  parts.api_key = o.api_key;
  parts.changes_wait = !o.directory.empty();
  parts.reference = {process_name(), nanos_of(o.client_reservation), nanos_of(o.client_lease)};
  auto server = MetadataServer::create(parts);
  if (!server.is_ok()) return fail_metadata(server.status());
  start.end();
  const auto stats = (*service)->stats();
  std::uint64_t stored = 0;
  if (stats.is_ok()) {
    for (const auto& [name, figures] : *stats) stored += figures.stored;
  }
  tell_people(fmt::format("larder {} metadata server listening on {} ({} stored, {})\n", kLarderVersion,
                          (*server)->url(), counted_text(stored, "key"),
                          o.directory.empty() ? "in memory: a restart forgets everything" : "journal " + o.directory));
  if (o.directory.empty()) {
    log_warning("metadata",
                "metadata server without --directory: a restart forgets all keys and namespaces, and gives pages out "
                "anew at once, whoever is still writing to them; SGLang's own client gets 404 then until its server is "
                "started anew");
  }

  tell_service_is_ready();
  wait_for_stop(signals, o.stop, "", [&server] { (*server)->announce_stop(); });
  (*server)->stop_accepting();
  if (!(*server)->wait_drained(o.stop.wait_limit())) tell_cut_off("metadata");
  server->reset();
  service->reset();
  tell_people("stopped\n");
  return 0;
}

}  // namespace

int metadata_server_command(int argc, char** argv) {
  CLI::App app(
      "Serves the page index of shared 3FS files over HTTP: SGLang's metadata protocol\n"
      "(POST /{rank}/exists, ...), POST /v1/metadata for Larder's own client, /v1/stats, /metrics, /health.",
      "larder metadata-server");
  app.get_formatter()->column_width(40);
  ServerOptions options;
  add_metadata_options(app, options);
  app.footer("\nExit codes: 0 stopped by a signal; 1 it cannot serve; 2 wrong arguments, or no such file.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  Status status = fill_key(options.api_key, options.api_key_file, {"--api-key", "LARDER_METADATA_API_KEY"},
                           EmptyVariable::kRefused);
  if (status.is_ok()) status = check_options(options);
  if (status.is_ok()) status = set_log_options(options.log);
  return status.is_ok() ? serve_metadata(options) : fail_metadata(status);
}

}  // namespace larder
