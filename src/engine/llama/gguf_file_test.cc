// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/gguf_file.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/llama/gguf_geometry.h"
#include "engine/llama/gguf_test_util.h"
#include "sim/sim_file_system.h"

namespace larder::llama {
namespace {

using gguf_test::GgufWriter;
using gguf_test::small_model;
using Bytes = std::vector<std::byte>;

TEST(GgufFile, ReadsMetadataAndTensors) {
  const GgufWriter writer = small_model();
  const Bytes bytes = writer.file(64);
  const auto file = parse_gguf(bytes, bytes.size());
  ASSERT_TRUE(file) << file.status().to_string();
  EXPECT_EQ(file->version, 3u);
  EXPECT_EQ(file->text("general.architecture"), "qwen35");
  EXPECT_EQ(file->number("qwen35.block_count"), 4u);
  EXPECT_EQ(file->number("qwen35.attention.value_length"), 32u);
  EXPECT_EQ(file->number("qwen35.full_attention_interval"), 4u);
  EXPECT_EQ(file->number("general.some_truth"), 1u);
  EXPECT_FALSE(file->number("general.name"));
  EXPECT_FALSE(file->number("nothing"));
  EXPECT_EQ(file->per_layer("qwen35.attention.head_count", 3), (std::vector<std::uint64_t>{4, 4, 4}));
  EXPECT_EQ(file->per_layer("qwen35.rope.dimension_sections", 2), (std::vector<std::uint64_t>{4, 6}));
  EXPECT_FALSE(file->per_layer("qwen35.rope.dimension_sections", 5));
  ASSERT_EQ(file->tensors.size(), 2u);
  EXPECT_EQ(file->tensors[0].name, "token_embd.weight");
  EXPECT_EQ(file->tensors[0].sizes, (std::vector<std::uint64_t>{64, 3}));
  EXPECT_EQ(file->tensors[1].offset, 32u);
  EXPECT_EQ(file->data_offset + 64, bytes.size());
}

TEST(GgufFile, OfALongerFileTheBeginningAsksForMore) {
  const GgufWriter writer = small_model();
  const Bytes bytes = writer.file(64);
  for (std::size_t size = 0; size < writer.head_bytes(); ++size) {
    const std::span<const std::byte> front = std::span(bytes).first(size);
    EXPECT_EQ(parse_gguf(front, bytes.size()).status().code(), StatusCode::kNotFound) << size;
    EXPECT_EQ(parse_gguf(front, size).status().code(), StatusCode::kCorrupt) << size;
  }
  EXPECT_TRUE(parse_gguf(std::span(bytes).first(writer.head_bytes()), bytes.size()));
}

TEST(GgufFile, AFileWithoutItsDataIsRefused) {
  const Bytes bytes = small_model().file(0);
  const auto file = parse_gguf(bytes, bytes.size());
  EXPECT_EQ(file.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(file.status().message().find("output_norm.weight"), std::string::npos) << file.status().to_string();
}

TEST(GgufFile, EveryChangedByteOfTheHeadIsRefusedOrGivesAnotherIdentity) {
  const GgufWriter writer = small_model();
  const Bytes bytes = writer.file(64);
  const Digest256 right = parse_gguf(bytes, bytes.size())->head_digest;
  for (std::size_t at = 0; at < writer.head_bytes(); ++at) {
    for (const unsigned change : {1u, 128u, 255u}) {
      Bytes changed = bytes;
      changed[at] ^= static_cast<std::byte>(change);
      const auto file = parse_gguf(changed, changed.size());
      if (file) {
        EXPECT_NE(file->head_digest, right) << at;
      } else {
        EXPECT_FALSE(file.status().message().empty());
      }
    }
  }
}

TEST(GgufFile, OtherVersionsAreUnsupported) {
  for (const std::uint32_t version : {1u, 4u, 0x03000000u}) {
    GgufWriter writer(version);
    const Bytes bytes = writer.file(64);
    EXPECT_EQ(parse_gguf(bytes, bytes.size()).status().code(), StatusCode::kUnsupported);
  }
}

TEST(GgufFile, KeysThatAreThereTwiceAreRefused) {
  GgufWriter writer;
  writer.u32("a", 1);
  writer.u32("a", 1);
  const Bytes bytes = writer.file(0);
  EXPECT_EQ(parse_gguf(bytes, bytes.size()).status().code(), StatusCode::kCorrupt);
}

TEST(GgufFile, LongArraysAreCountedAndNotKept) {
  GgufWriter writer;
  writer.u32s("long", std::vector<std::uint32_t>(kGgufArrayMax + 1, 7));
  writer.u32s("short", std::vector<std::uint32_t>(kGgufArrayMax, 7));
  const Bytes bytes = writer.file(0);
  const auto file = parse_gguf(bytes, bytes.size());
  ASSERT_TRUE(file) << file.status().to_string();
  EXPECT_EQ(std::get<GgufArray>(file->metadata.at("long")).count, kGgufArrayMax + 1);
  EXPECT_TRUE(std::get<GgufArray>(file->metadata.at("long")).numbers.empty());
  EXPECT_EQ(std::get<GgufArray>(file->metadata.at("short")).numbers.size(), kGgufArrayMax);
}

class GgufOnDisk : public testing::Test {
 protected:
  void write(const std::string& path, const Bytes& bytes) {
    auto file = files_.open(path, {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file);
    ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok());
  }
  sim::SimFileSystem files_{1};
};

TEST_F(GgufOnDisk, IdentityIsThatOfTheHeadAndTheHashThatOfAllBytes) {
  Bytes bytes = small_model().file(64);
  write("a.gguf", bytes);
  bytes.back() = std::byte{1};
  write("b.gguf", bytes);
  const auto a = read_gguf(files_, "a.gguf"), b = read_gguf(files_, "b.gguf");
  ASSERT_TRUE(a && b) << a.status().to_string();
  EXPECT_EQ(a->identity, b->identity);
  EXPECT_NE(hash_gguf(files_, *a).value_or({}), hash_gguf(files_, *b).value_or({}));
  EXPECT_NE(sample_gguf(files_, *a).value_or({}), sample_gguf(files_, *b).value_or({})) << "small: read whole";
}

// Of a large file 4 KiB in each 2,048th of it.
TEST_F(GgufOnDisk, SamplesAreSpreadOverAllOfAFile) {
  constexpr std::size_t kStep = 4 * 4096;
  Bytes bytes = small_model().file(64);
  bytes.resize(kGgufSamples * kStep);
  const auto sample = [&](const std::string& path) {
    write(path, bytes);
    GgufModel model;
    model.paths = {path};
    return sample_gguf(files_, model).value_or({});
  };
  const Digest256 before = sample("before.gguf");
  bytes[1000 * kStep + 4096] = std::byte{1};
  EXPECT_EQ(sample("between.gguf"), before) << "between two samples";
  bytes[1000 * kStep + 4095] = std::byte{1};
  EXPECT_NE(sample("in_one.gguf"), before);
  bytes[1000 * kStep + 4095] = std::byte{0};
  bytes.resize(bytes.size() + 1);
  EXPECT_NE(sample("longer.gguf"), before);
}

TEST_F(GgufOnDisk, ALongHeadIsReadInSteps) {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.text("tokenizer.chat_template", std::string(5'000'000, 'x'));
  writer.tensor("t", {1}, 0, 0);
  write("long.gguf", writer.file(64));
  const auto model = read_gguf(files_, "long.gguf");
  ASSERT_TRUE(model) << model.status().to_string();
  EXPECT_EQ(model->first.tensors.size(), 1u);
}

TEST_F(GgufOnDisk, AllFilesOfAModelArePartOfItsIdentity) {
  const auto part = [](std::uint32_t number) {
    GgufWriter writer;
    writer.text("general.architecture", "llama");
    writer.u32("split.no", number);
    writer.u32("split.count", 2);
    return writer.file(number + 1);
  };
  write("m-00001-of-00002.gguf", part(0));
  EXPECT_EQ(read_gguf(files_, "m-00001-of-00002.gguf").status().code(), StatusCode::kNotFound);
  write("m-00002-of-00002.gguf", part(1));
  const auto model = read_gguf(files_, "m-00001-of-00002.gguf");
  ASSERT_TRUE(model) << model.status().to_string();
  EXPECT_EQ(model->paths.size(), 2u);
  write("m-00002-of-00002.gguf", part(2));
  EXPECT_NE(read_gguf(files_, "m-00001-of-00002.gguf")->identity, model->identity);
  const auto second = read_gguf(files_, "m-00002-of-00002.gguf");
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument) << second.status().to_string();
}

TEST_F(GgufOnDisk, TensorsOfAllFilesAreNamed) {
  const auto part = [](std::string_view tensor) {
    GgufWriter writer;
    writer.text("general.architecture", "phi3");
    writer.u32("split.count", 2);
    writer.tensor(tensor, {8}, 0, 0);
    return writer.file(64);
  };
  write("m-00001-of-00002.gguf", part("token_embd.weight"));
  write("m-00002-of-00002.gguf", part("rope_factors_long.weight"));
  const auto model = read_gguf(files_, "m-00001-of-00002.gguf");
  ASSERT_TRUE(model) << model.status().to_string();
  EXPECT_EQ(model->tensor_names, (std::vector<std::string>{"token_embd.weight", "rope_factors_long.weight"}));
}

TEST_F(GgufOnDisk, ErrorsNameTheFile) {
  write("bad.gguf", Bytes(100));
  const auto model = read_gguf(files_, "bad.gguf");
  ASSERT_FALSE(model);
  EXPECT_NE(model.status().message().find("bad.gguf"), std::string::npos);
}

GgufGeometry geometry_of(const GgufWriter& writer, std::string_view type = "f16") {
  const Bytes bytes = writer.file(64);
  const auto file = parse_gguf(bytes, bytes.size());
  EXPECT_TRUE(file) << file.status().to_string();
  const auto geometry = gguf_geometry(*file, *cache_type(type), *cache_type(type));
  EXPECT_TRUE(geometry) << geometry.status().to_string();
  return geometry.value_or({});
}

TEST(GgufGeometry, OfAHybridHasAttentionInEveryFourthLayer) {
  const GgufGeometry geometry = geometry_of(small_model());
  EXPECT_EQ(geometry.architecture, "qwen35");
  EXPECT_EQ(geometry.context_length, 4096u);
  EXPECT_EQ(geometry.blob.to_text(), "full k 1x1:128 v 1x1:128 ext; recurrent of 4 conv 3x0:1536 state 3x0:4096");
}

TEST(GgufGeometry, TypesOfTheCacheChangeItsRows) {
  EXPECT_EQ(geometry_of(small_model(), "q8_0").blob.full->keys[0].bytes, 64u / 32 * 34);
  EXPECT_FALSE(cache_type("q3_k"));
}

GgufWriter plain_model(std::string_view name, std::vector<std::uint32_t> kv_heads, std::uint32_t heads = 4) {
  const std::string a(name);
  GgufWriter out;
  out.text("general.architecture", name);
  out.u32(a + ".block_count", static_cast<std::uint32_t>(kv_heads.size()));
  out.u32(a + ".context_length", 100);
  out.u32(a + ".embedding_length", 64);
  out.u32(a + ".attention.head_count", heads);
  out.u32s(a + ".attention.head_count_kv", kv_heads);
  return out;
}

TEST(GgufGeometry, WindowsFollowThePatternOfTheArchitectureOrOfTheFile) {
  GgufWriter known = plain_model("gemma3", {1, 1, 1, 1, 1, 1, 1});
  known.u32("gemma3.attention.sliding_window", 32);
  EXPECT_EQ(geometry_of(known).blob.to_text(), "full k 1x1:32 v 1x1:32; window 32 k 6x1:32 v 6x1:32");
  GgufWriter array = plain_model("mimo2", {1, 2, 1});
  array.u32("mimo2.attention.sliding_window", 16);
  array.truths("mimo2.attention.sliding_window_pattern", {1, 0, 1});
  EXPECT_EQ(geometry_of(array).blob.to_text(), "full k 1x1:64 v 1x1:64; window 16 k 2x1:32 v 2x1:32");
}

// Products of three of them are 0 in 64 bits.
TEST(GgufGeometry, SizesThatNobodyHasAreRefused) {
  GgufWriter writer = plain_model("kimi-linear", {0, 2, 0}, 1u << 24);
  writer.u32("kimi-linear.kda.head_dim", 1u << 24);
  const Bytes bytes = writer.file(64);
  const auto file = parse_gguf(bytes, bytes.size());
  ASSERT_TRUE(file) << file.status().to_string();
  const auto geometry = gguf_geometry(*file, *cache_type("f16"), *cache_type("f16"));
  ASSERT_FALSE(geometry);
  EXPECT_NE(geometry.status().message().find("a row of a layer has more than"), std::string::npos)
      << geometry.status().to_string();
}

TEST(GgufGeometry, LayersWithoutHeadsAreRecurrent) {
  GgufWriter writer = plain_model("lfm2", {0, 2, 0});
  writer.u32("lfm2.shortconv.l_cache", 3);
  EXPECT_EQ(geometry_of(writer).blob.to_text(), "full k 1x1:64 v 1x1:64; recurrent of 3 conv 2x0:512 state 2x0:0");
}

// Not sized as if all layers saw all positions.
TEST(GgufGeometry, WhatNoRuleExplainsIsRefusedByTheNameOfTheArchitecture) {
  const auto refused = [](const GgufWriter& writer, std::string_view architecture, std::string_view why) {
    const Bytes bytes = writer.file(64);
    const Status status = gguf_geometry(*parse_gguf(bytes, bytes.size()), CacheType{}, CacheType{}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find("architecture " + std::string(architecture)), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  for (const char* const key : {"ssm.conv_kernel", "kda.head_dim", "shortconv.l_cache", "wkv.head_size"}) {
    GgufWriter state = plain_model("newhybrid", {2, 2});
    state.u32("newhybrid." + std::string(key), 4);
    refused(state, "newhybrid", key);
  }
  refused(plain_model("newhybrid", {2, 0, 2}), "newhybrid", "layer 1 has no heads of keys");
  GgufWriter window = plain_model("newwindow", {1, 1});
  window.u32("newwindow.attention.sliding_window", 128);
  refused(window, "newwindow", "window of 128 tokens");
  window.u32("newwindow.attention.sliding_window_pattern", 4);  // the first of four, or the last?
  refused(window, "newwindow", "window of 128 tokens");
  refused(plain_model("llama", {0, 0}, 0), "llama", "layer 0 has no heads of keys");
}

TEST(GgufGeometry, WhatIsKnownToKeepNothingOrToIgnoreItsWindowIsSized) {
  GgufWriter ignored = plain_model("phi3", {1, 1});
  ignored.u32("phi3.attention.sliding_window", 128);
  EXPECT_EQ(geometry_of(ignored).blob.to_text(), "full k 2x1:32 v 2x1:32");
  EXPECT_EQ(geometry_of(plain_model("deci", {1, 0})).blob.full->keys.size(), 2u);
}

TEST(GgufGeometry, WhatIsMissingOrSenselessIsNamed) {
  const auto message_of = [](const GgufWriter& writer) {
    const Bytes bytes = writer.file(64);
    return gguf_geometry(*parse_gguf(bytes, bytes.size()), CacheType{}, CacheType{}).status().message();
  };
  EXPECT_NE(message_of(GgufWriter()).find("general.architecture"), std::string::npos);
  GgufWriter empty;
  empty.text("general.architecture", "llama");
  EXPECT_NE(message_of(empty).find("llama.block_count"), std::string::npos);
  GgufWriter other;
  other.text("general.architecture", "deepseek32");
  EXPECT_NE(message_of(other).find("deepseek32"), std::string::npos);
  GgufWriter few = plain_model("jamba", {0, 1});
  EXPECT_NE(message_of(few).find("jamba.ssm"), std::string::npos);
  GgufWriter wide = plain_model("gemma2", {1, 1});
  wide.u32("gemma2.attention.sliding_window", 100'000);
  EXPECT_NE(message_of(wide).find("window"), std::string::npos);
}

}  // namespace
}  // namespace larder::llama
