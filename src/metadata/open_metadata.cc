// SPDX-License-Identifier: Apache-2.0
#include "metadata/open_metadata.h"

#include <string_view>
#include <utility>

#include "metadata/embedded_metadata.h"
#include "metadata/http_metadata.h"
#include "metadata/real_rocksdb_journal.h"
#include "metadata/redis_metadata.h"

namespace larder {
namespace {

Result<std::shared_ptr<MetadataService>> open_embedded(const MetadataOptions& options, Clock& clock) {
  std::unique_ptr<metadata::Journal> journal;
  if (!options.directory.empty()) {
    LARDER_ASSIGN_OR_RETURN(journal, metadata::open_rocksdb_journal(options.directory, clock));
  }
  Result<std::unique_ptr<EmbeddedMetadata>> made = EmbeddedMetadata::create({}, clock, std::move(journal));
  if (!made.is_ok()) return made.status();
  return std::shared_ptr<MetadataService>(std::move(made).value());
}

Result<std::shared_ptr<MetadataService>> open_http(const MetadataOptions& options, Clock& clock) {
  HttpMetadataOptions http;
  http.url = options.url;
  http.api_key = options.api_key;
  http.ca_file = options.ca_file;
  http.timeout = options.timeout;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<HttpMetadata> made, HttpMetadata::create(http, clock));
  return std::shared_ptr<MetadataService>(std::move(made));
}

Result<std::shared_ptr<MetadataService>> open_redis(const MetadataOptions& options) {
  RedisMetadataOptions redis;
  redis.url = options.url;
  redis.ca_file = options.ca_file;
  redis.timeout = options.timeout;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<RedisMetadata> made, RedisMetadata::create(redis));
  return std::shared_ptr<MetadataService>(std::move(made));
}

}  // namespace

Result<std::shared_ptr<MetadataService>> open_metadata(const MetadataOptions& options, Clock& clock) {
  const std::string_view url = options.url;
  if (url.empty()) return open_embedded(options, clock);
  if (url.starts_with("http://") || url.starts_with("https://")) return open_http(options, clock);
  if (url.starts_with("redis://") || url.starts_with("rediss://")) return open_redis(options);
  const std::string shown =
      url.find('@') == std::string_view::npos ? options.url : "..." + options.url.substr(url.rfind('@'));
  return invalid_argument("metadata service '" + shown +
                          "': write http://host:port or redis://host:port; over TLS https:// or rediss://");
}

}  // namespace larder
