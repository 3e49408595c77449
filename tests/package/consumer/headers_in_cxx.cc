// SPDX-License-Identifier: Apache-2.0
// The public headers in C++11, and whether the library that was loaded is the one of the header.
#include <larder/larder.h>
#include <larder/larder_backend.h>

#include <cstdio>
#include <cstring>

int main() {
  std::printf("larder %s, ABI %u, backend ABI %u\n", larder_version(), static_cast<unsigned>(larder_abi_version()),
              static_cast<unsigned>(LARDER_BACKEND_ABI_VERSION));
  return larder_abi_version() == LARDER_ABI_VERSION && std::strcmp(larder_code_name(LARDER_OK), "ok") == 0 ? 0 : 1;
}
