// SPDX-License-Identifier: Apache-2.0
// MetadataService over HTTP: the client of `larder metadata-server`.
//
// Purpose: each call is one POST /v1/metadata with a message of metadata/metadata_wire.h, on one of a few connections
// that are kept alive.
// Threads: any. A call waits for a free connection, and has it to itself until its answer is there.
// Time: a call that is not answered whole within `timeout` (a clear, which looks at every page: within the longer of
// `clear_timeout` and that) fails with kDeadlineExceeded, however much moves; waiting for a connection, connecting and
// the second attempt are in it. Not in it, and done once in a call that connects: the
// system's search for the addresses of the host, which has limits of its own; give an address where that matters.
// Retries: once, on a new connection, when the connection breaks before the whole answer is there (besides what
// HttpClient does where one that was kept is closed): what the first request did is unknown, and its session makes the
// second one answer the same. (remove() and clear() then count what the second one still found.) An answer is never
// asked for twice, nor a silent server.
// Errors: as WireMetadata; besides kInvalidArgument: the server wants another key; kUnsupported: it is no metadata
// server, or of another version.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/http_client.h"
#include "metadata/connection_pool.h"
#include "metadata/wire_metadata.h"

namespace larder {

struct HttpMetadataOptions {
  std::string url;      // http://[user:key@]host:port, or https://; bytes of the key may be %XX, '/' and '%' must be
  std::string api_key;  // bearer; empty: that of the URL, or none
  Nanos timeout = std::chrono::seconds(5);
  std::size_t connections = 8;  // at most so many calls at a time; the others wait
  std::string ca_file{};  // of https://: who may have issued the server's certificate, PEM; empty: as the system says
  Nanos clear_timeout = std::chrono::seconds(60);  // of clear()
};

class HttpMetadata final : public WireMetadata {
 public:
  // Does not connect yet. kInvalidArgument: an option, or two keys that differ; the message shows none. `clock` is the
  // process's: it only measures waits.
  [[nodiscard]] static Result<std::unique_ptr<HttpMetadata>> create(const HttpMetadataOptions& options, Clock& clock);
  ~HttpMetadata() override;

 private:
  HttpMetadata(const HttpMetadataOptions& options, HttpUrl url, Clock& clock);
  [[nodiscard]] Nanos time_for(const std::string& message) const;
  [[nodiscard]] Result<HttpReply> ask(const std::string& message);
  [[nodiscard]] Result<std::string> exchange(const std::string& message) override;

  // constant after construction
  const HttpMetadataOptions options_;
  const HttpUrl url_;
  Clock& clock_;

  metadata::ConnectionPool<HttpClient> pool_;
};

}  // namespace larder
