// SPDX-License-Identifier: Apache-2.0
// The loader of backend libraries.
#include <dlfcn.h>

#include "storage/plugin/plugin_library.h"

namespace larder::plugin {
namespace {

std::string loader_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

Result<LarderBackendTable> load_library(const std::string& path) {
  if (path.find('/') == std::string::npos) {
    return invalid_argument("option 'library': '" + path + "' has no directory; write for example /usr/lib/" + path);
  }
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unavailable("backend library '" + path + "': " + loader_error());
  using EntryPoint = const LarderBackendTable*();
  auto* const entry = reinterpret_cast<EntryPoint*>(::dlsym(handle, LARDER_BACKEND_ENTRY_POINT));
  if (entry == nullptr) {
    return unsupported("'" + path + "' has no symbol " LARDER_BACKEND_ENTRY_POINT ": not a backend library");
  }
  try {
    return take_table(path, entry());
  } catch (...) {  // NOLINT: a library in C++ that breaks the rule of no exceptions
    return unavailable("backend library '" + path + "': threw when it was asked for its table");
  }
}

}  // namespace larder::plugin
