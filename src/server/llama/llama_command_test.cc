// SPDX-License-Identifier: Apache-2.0
#include "server/llama/llama_command.h"

#include <gtest/gtest.h>

namespace larder::llama {
namespace {

using Command = std::vector<std::string>;

// llama.cpp takes underscores for dashes in the names of options. What is not seen of them are pages of other numbers
// under the same identity.
TEST(LlamaServerOptions, HaveUnderscoresToo) {
  const Command dashes = {"s", "--override-kv", "a.b_c=float:1", "--control-vector", "f_1", "-c", "8"};
  const Command underscores = {"s", "--override_kv", "a.b_c=float:1", "--control_vector", "f_1", "-c", "8"};
  EXPECT_EQ(numeric_options(underscores), numeric_options(dashes));
  EXPECT_NE(numeric_options(underscores), numeric_options({"s", "-c", "8"}));
  EXPECT_TRUE(shifts_context({"s", "--context_shift"}));
  EXPECT_TRUE(caps_slots({"s", "--kv_unified_per_slot", "512"}));
  EXPECT_TRUE(has_option({"s", "--slot_save_path", "/x"}, "--slot-save-path"));
  EXPECT_EQ(key_of({"s", "--api_key", "a_b,c"}).value_or(""), "a_b");
}

}  // namespace
}  // namespace larder::llama
