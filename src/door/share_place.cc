// SPDX-License-Identifier: Apache-2.0
#include "door/share_place.h"

#include <algorithm>
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
  out.store = Sha256().update(out.text.data(), out.text.size()).finish();
  return out;
}

}  // namespace larder
