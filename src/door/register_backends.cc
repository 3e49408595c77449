// SPDX-License-Identifier: Apache-2.0
#include "door/register_backends.h"

#include "storage/file/file_backend.h"
#include "storage/hf3fs/hf3fs_factory.h"
#include "storage/memory/memory_backend.h"
#include "storage/mooncake/mooncake_factory.h"
#include "storage/plugin/plugin_backend.h"

namespace larder {

Status register_backends(BackendFactory& factory) {
  LARDER_RETURN_IF_ERROR(register_memory_backend(factory));
  LARDER_RETURN_IF_ERROR(register_file_backend(factory));
  LARDER_RETURN_IF_ERROR(register_hf3fs_backend(factory));
  LARDER_RETURN_IF_ERROR(register_mooncake_backend(factory));
  return register_plugin_backend(factory);
}

}  // namespace larder
