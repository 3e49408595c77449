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
  EXPECT_TRUE(has_full_windows({"s", "--swa_full"}));
  EXPECT_FALSE(has_full_windows({"s", "--swa-checkpoints", "8"}));
  EXPECT_TRUE(has_option({"s", "--slot_save_path", "/x"}, "--slot-save-path"));
  EXPECT_EQ(key_of({"s", "--api_key", "a_b,c"}).value_or(""), "a_b");
}

// What is in their files is part of the pages' identity, so none may be missed.
TEST(LlamaServerOptions, NameTheFilesOfControlVectors) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(control_vectors({"s", "-m", "m.gguf", "--control-vector-layer-range", "1", "2"}), Paths{});
  EXPECT_EQ(control_vectors({"s", "--control-vector", "a.gguf,b.gguf", "--control_vector", "c.gguf"}),
            (Paths{"a.gguf", "b.gguf", "c.gguf"}));
  EXPECT_EQ(control_vectors({"s", "--control-vector", R"("a,""1"".gguf",b"c)"}), (Paths{R"(a,"1".gguf)", "b\"c"}));
  EXPECT_EQ(control_vectors({"s", "--control-vector-scaled", "a.gguf:0.5,b.gguf:-1"}), (Paths{"a.gguf", "b.gguf"}));
  EXPECT_EQ(control_vectors({"s", "--control-vector-scaled", "a.gguf", "0.5"}), (Paths{"a.gguf"})) << "older versions";
  EXPECT_EQ(control_vectors({"s", "--control-vector=a.gguf"}), (Paths{"a.gguf"}));
}

// The last value of an option counts, and any counts more than a variable.
TEST(LlamaServerOptions, OfTheProxyComeLast) {
  const Command started = proxied_command({"s", "-cram", "4096", "--cache-reuse", "64"}, 81, "/slots").value();
  EXPECT_EQ(started, (Command{"s", "-cram", "4096", "--cache-reuse", "64", "--host", "127.0.0.1", "--port", "81",
                              "--slot-save-path", "/slots", "--cache-reuse", "0", "--cache-ram", "0"}));
  EXPECT_EQ(proxied_command({}, 81, "/slots").status().code(), StatusCode::kInvalidArgument);
  const Status refused = proxied_command({"s", "--slot_save_path=/x"}, 81, "/slots").status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--slot-save-path behind --"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace larder::llama
