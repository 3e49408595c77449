// SPDX-License-Identifier: Apache-2.0
#include "storage/factory.h"

#include <utility>

namespace larder {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out.empty() ? "none" : out;
}

bool is_known(const std::vector<BackendOptionHelp>& options, const std::string& key) {
  for (const BackendOptionHelp& option : options) {
    if (option.key == key || option.key == kAnyOption) return true;
  }
  return false;
}

}  // namespace

Status BackendFactory::add(std::string name, std::vector<BackendOptionHelp> options, Create create) {
  if (name.empty() || !create) return invalid_argument("storage backend: a name and a creator are needed");
  const auto [at, added] = entries_.try_emplace(std::move(name), Entry{std::move(options), std::move(create)});
  if (!added) return conflict("storage backend '" + at->first + "' is registered already");
  return Status::ok();
}

Result<std::unique_ptr<StorageBackend>> BackendFactory::create(std::string_view name, const BackendOptions& options,
                                                               const BackendEnvironment& environment) const {
  LARDER_RETURN_IF_ERROR(check_name(name));
  const auto at = entries_.find(name);
  for (const auto& [key, value] : options) {
    if (is_known(at->second.options, key)) continue;
    std::vector<std::string> known;
    for (const BackendOptionHelp& option : at->second.options) known.push_back(option.key);
    return invalid_argument("storage backend '" + at->first + "' has no option '" + key +
                            "'; its options: " + joined(known));
  }
  return at->second.create(options, environment);
}

Status BackendFactory::check_name(std::string_view name) const {
  if (entries_.contains(name)) return Status::ok();
  return invalid_argument("unknown storage backend '" + std::string(name) + "'; known: " + joined(names()));
}

std::vector<std::string> BackendFactory::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

const std::vector<BackendOptionHelp>* BackendFactory::options_of(std::string_view name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second.options;
}

}  // namespace larder
