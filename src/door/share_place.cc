// SPDX-License-Identifier: Apache-2.0
#include "door/share_place.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/plain_path.h"
#include "key/sha256.h"
#include "storage/option_text.h"

namespace larder {
namespace {

// What of a backend's options says where its pages are.
constexpr std::string_view kPlaces[] = {"directory", "file_path_prefix", "metadata_directory"};

std::vector<std::filesystem::path> directories_of(std::string_view list) {
  std::vector<std::filesystem::path> out;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    if (end > 0) out.push_back(plain_path(list.substr(0, end)));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

// What tells stores apart besides their directories. The text, which others get to read, leaves out what may be secret.
class Identity {
 public:
  explicit Identity(SharePlace& out) : out_(out), all_(out.text) {}

  void add(const std::string& key, const std::string& value, const std::string& shown) {
    if (value.empty()) return;
    out_.text += ", " + key + (shown.empty() ? "" : " " + shown);
    all_ += ", " + key + " " + std::to_string(value.size()) + ":" + value;
  }
  void add(const std::string& key, const std::string& value) { add(key, value, value); }
  void finish() { out_.store = Sha256().update(all_.data(), all_.size()).finish(); }

 private:
  SharePlace& out_;
  std::string all_;
};

// "redis://:password@host" -> "redis://host".
std::string without_password(std::string url) {
  const std::size_t scheme = url.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::size_t at = url.rfind('@');
  return at == std::string::npos || at < begin ? url : url.erase(begin, at + 1 - begin);
}

// As dlopen() finds it: a name without a slash is looked for elsewhere.
std::string library_path(const std::string& library) {
  return library.find('/') == std::string::npos ? library : plain_path(library).string();
}

void add_options(const std::string& backend, const BackendOptions& options, Identity& identity) {
  if (backend == "hf3fs") {
    identity.add("rank", text_option(options, "rank", "0"));
    // One process may have the key in the URL, another one in an option of its own.
    identity.add("metadata_server_url", without_password(text_option(options, "metadata_server_url", "")));
  } else if (backend == "mooncake") {
    const char* const variable = std::getenv("MOONCAKE_MASTER");  // as the backend does
    identity.add("master_server_address",
                 text_option(options, "master_server_address", variable == nullptr ? "" : variable));
  } else if (backend == "plugin") {
    identity.add("library", library_path(text_option(options, "library", "")));
    for (const auto& [key, value] : options) {
      if (key != "library" && key != "queue_limit") identity.add("with " + key, value, "");
    }
  }
}

}  // namespace

Result<SharePlace> share_place(const std::string& backend, const BackendOptions& options,
                               const std::string& share_directory) {
  SharePlace out;
  out.text = "backend " + backend;
  const std::filesystem::path share = plain_path(share_directory);
  for (const std::string_view place : kPlaces) {
    const std::vector<std::filesystem::path> directories = directories_of(text_option(options, std::string(place), ""));
    if (directories.empty()) continue;
    out.text += ", " + std::string(place) + " ";
    for (const std::filesystem::path& directory : directories) {
      if (place == "directory" && lies_in(share, directory)) {
        return invalid_argument("share_directory: " + share_directory + " is in the store's own directory " +
                                directory.string() + ", which takes no other files: name one beside it, such as " +
                                directory.string() + ".share");
      }
      out.text += (&directory == directories.data() ? "" : ":") + directory.string();
    }
  }
  Identity identity(out);
  add_options(backend, options, identity);
  identity.finish();
  return out;
}

}  // namespace larder
