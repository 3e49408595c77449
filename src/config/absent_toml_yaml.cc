// SPDX-License-Identifier: Apache-2.0
// In place of parse_tree_toml.cc and parse_tree_yaml.cc where the `larder` command is not built: JSON is all that the
// library reads.
#include <string>

#include "config/parse_tree.h"

namespace larder {
namespace {

Status absent(std::string_view source, const char* format) {
  return unsupported(std::string(source) + ": this build of Larder reads JSON only, not " + format +
                     ": write JSON, or build with -DLARDER_BUILD_TOOLS=ON");
}

}  // namespace

Result<Tree> parse_toml_tree(std::string_view, std::string_view source) { return absent(source, "TOML"); }
Result<Tree> parse_yaml_tree(std::string_view, std::string_view source) { return absent(source, "YAML"); }

}  // namespace larder
