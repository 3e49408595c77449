// SPDX-License-Identifier: Apache-2.0
// The page-index service over HTTP: what `larder metadata-server` runs.
//
// | route                      | key  | what                                                                    |
// |----------------------------|------|-------------------------------------------------------------------------|
// | POST /{rank}/{call}        | yes  | the reference system's seven calls (server/reference_routes.h)           |
// | POST /v1/metadata          | yes  | our own client's calls (metadata/metadata_wire.h), application/octet-stream |
// | GET /v1/stats              | yes  | pages of each namespace by state, as JSON                                |
// | GET /metrics               | open | Prometheus text                                                         |
// | GET /health                | open | 200, always the same: the floor that `larder bench metadata` measures;   |
// |                            |      | 503 once a stop is announced                                            |
//
// Keys: with `api_key` set, "Authorization: Bearer <key>", or Basic with the key as the password, which is what the
// reference's client sends when its URL is http://larder:<key>@host:port. Else 401 {"error":"Unauthorized"}.
// Errors: the reference's calls answer {"detail": text}; /v1/metadata answers in its own form with the HTTP status of
// docs/errors.md; everything else as docs/errors.md. No input is answered by less than a clear 4xx.
// Threads: requests arrive on the listener's I/O threads, and quick calls run there; what may wait for a disk, or has a
// body of more than 64 KiB, runs on an executor of its own, and /metrics on another, of one thread. create()
// and all steps of a stop, the destructor included, from one thread.
// Lifetime: service, clock and metrics outlive it. The destructor ends open requests and joins its threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "server/http_listener.h"
#include "server/reference_routes.h"
#include "storage/hf3fs/metadata_service.h"

namespace larder {

struct MetadataServerParts {
  MetadataService* service = nullptr;
  Clock* clock = nullptr;
  MetricsRegistry* metrics = nullptr;
  ListenOptions listen;
  std::string api_key;         // empty: none is asked for
  bool always_waits = false;   // the service is somewhere else: no call runs on an I/O thread
  bool changes_wait = false;   // there is a journal: reserving, confirming and removing do not either
  ReferenceOptions reference;  // of clients without sessions
};

class MetadataServer {
 public:
  // Listens from now on. Errors: as HttpListener::create.
  [[nodiscard]] static Result<std::unique_ptr<MetadataServer>> create(const MetadataServerParts& parts);
  virtual ~MetadataServer() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual std::string url() const = 0;  // "http://127.0.0.1:18000"
  // Before an orderly stop: /health answers 503 from now on, and all else goes on.
  virtual void announce_stop() = 0;
  // First step of an orderly stop; open requests go on.
  virtual void stop_accepting() = 0;
  // Waits until no connection is left; false if `limit` ended first.
  virtual bool wait_drained(Nanos limit) = 0;
};

}  // namespace larder
