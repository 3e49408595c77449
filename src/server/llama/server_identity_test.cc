// SPDX-License-Identifier: Apache-2.0
#include "server/llama/server_identity.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace larder::llama {
namespace {

GgufModel phi(std::optional<std::uint64_t> trained, std::optional<std::uint64_t> original, bool has_two = true) {
  GgufModel model;
  GgufFile& file = model.first;
  file.metadata["general.architecture"] = std::string("phi3");
  if (trained) file.metadata["phi3.context_length"] = *trained;
  if (original) file.metadata["phi3.rope.scaling.original_context_length"] = *original;
  model.tensor_names = {"token_embd.weight"};
  if (has_two) model.tensor_names.emplace_back("rope_factors_long.weight");  // in whichever of its files
  return model;
}

// llama.cpp takes the long factors for contexts beyond the original one, whatever a slot may use of it.
TEST(ServerIdentity, SlotsHideAContextThatMayBeLong) {
  const GgufModel model = phi(131072, 4096);
  EXPECT_FALSE(hides_context(model, 4096, false)) << "all of the context, and short";
  EXPECT_TRUE(hides_context(model, 4096, true)) << "of a context that may be long";
  EXPECT_FALSE(hides_context(model, 4097, true)) << "long, whatever is behind it";
  EXPECT_FALSE(hides_context(model, 131072, false));
  EXPECT_FALSE(hides_context(phi(131072, 4096, false), 4096, true)) << "one set of factors";
}

// A slot has no more than what the model was trained for, which stands for an original context that is not told.
TEST(ServerIdentity, SlotsOfAllThatAModelWasTrainedForHideWhatIsBehindThem) {
  EXPECT_TRUE(hides_context(phi(4096, std::nullopt), 4096, false));
  EXPECT_FALSE(hides_context(phi(4096, std::nullopt), 4095, false));
  EXPECT_TRUE(hides_context(phi(4096, 8192), 4096, false));
}

TEST(ServerIdentity, TheContextCountsWhereItChoosesTheSet) {
  EXPECT_NE(context_identity(phi(131072, 4096), 4096), context_identity(phi(131072, 4096), 8192));
  EXPECT_EQ(context_identity(phi(131072, 4096, false), 4096), "");
}

TEST(ServerIdentity, RowsThatAreNotRotatedAreOthers) {
  const auto with = [](const char* value) {
    EXPECT_EQ(::setenv("LLAMA_ATTN_ROT_DISABLE", value, 1), 0);
    const std::string text = environment_identity();
    EXPECT_EQ(::unsetenv("LLAMA_ATTN_ROT_DISABLE"), 0);
    return text;
  };
  EXPECT_EQ(environment_identity(), "");
  EXPECT_EQ(with("0"), "") << "as llama.cpp reads it";
  EXPECT_NE(with("1"), "");
}

}  // namespace
}  // namespace larder::llama
