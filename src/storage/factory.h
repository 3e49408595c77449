// SPDX-License-Identifier: Apache-2.0
// Backends register here under a name; controller/ and server/ only know names. One composition file
// (engine/composition.cc) wires them, so that no folder left of it depends on a backend.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/file_system.h"
#include "base/status.h"
#include "storage/backend.h"

namespace larder {

class MetadataService;   // storage/hf3fs/metadata_service.h
struct MetadataOptions;  // likewise

// What a backend may use; all outlive it.
struct BackendEnvironment {
  FileSystem* files = nullptr;
  Clock* clock = nullptr;
  Executor* executor = nullptr;  // for I/O; bounded
  // Memory that payloads mostly lie in (the host pool): a backend may register it with its device. May be empty.
  std::vector<Segment> host_memory{};
  // Opens or reaches a page-index service, for backends that keep their pages in shared files. Empty: there is none.
  std::function<Result<std::shared_ptr<MetadataService>>(const MetadataOptions&)> open_metadata{};
};

// Flat key -> value text of the extra configuration ("directory" -> "/var/cache/larder", "max_size" -> "200G").
using BackendOptions = std::map<std::string, std::string>;

// As the key of an option's help: the backend takes any key, and refuses unknown ones itself.
inline constexpr std::string_view kAnyOption = "*";

struct BackendOptionHelp {
  std::string key, default_text, help;
};

class BackendFactory {
 public:
  using Create =
      std::function<Result<std::unique_ptr<StorageBackend>>(const BackendOptions&, const BackendEnvironment&)>;
  // kConflict: the name is taken.
  [[nodiscard]] Status add(std::string name, std::vector<BackendOptionHelp> options, Create create);
  // Unknown name: kInvalidArgument, lists the names. Unknown option key: kInvalidArgument, names it and the known ones.
  [[nodiscard]] Result<std::unique_ptr<StorageBackend>> create(std::string_view name, const BackendOptions& options,
                                                               const BackendEnvironment& environment) const;
  [[nodiscard]] std::vector<std::string> names() const;
  // kInvalidArgument, as create() has it: there is no backend of that name.
  [[nodiscard]] Status check_name(std::string_view name) const;
  [[nodiscard]] const std::vector<BackendOptionHelp>* options_of(std::string_view name) const;

 private:
  struct Entry {
    std::vector<BackendOptionHelp> options;
    Create create;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace larder
