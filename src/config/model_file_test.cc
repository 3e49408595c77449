// SPDX-License-Identifier: Apache-2.0
#include "config/model_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/rng.h"
#include "model/presets.h"

namespace larder {
namespace {

using enum LayerKind;
constexpr ModelFileFormat kJson = ModelFileFormat::kJson;
constexpr ModelFileFormat kToml = ModelFileFormat::kToml;

constexpr std::string_view kFullToml = R"(
id = "my-hybrid"
revision = "r7"
page_size = 32
vocab_size = 1000
context_length = 4096
weight_seed = 99
kv_dtype = "bf16"
conv_dtype = "f16"
ssm_dtype = "f32"
layers = {pattern = ["gdn", "gdn", "sliding_attention", "attention"], repeat = 3}

[dims]
hidden = 128
ffn = 256
q_heads = 8
kv_heads = 4
head_dim = 32
kv_lora_rank = 1
rope_dim = 2
index_heads = 3
index_dim = 4
index_topk = 5
window = 100
ssm_heads = 6
ssm_key_heads = 3
ssm_head_dim = 7
ssm_state_dim = 9
conv_kernel = 4

[draft]
layers = 2
)";

void expect_same(const ModelSpec& a, const ModelSpec& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.revision, b.revision);
  EXPECT_EQ(a.page_size, b.page_size);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.context_length, b.context_length);
  EXPECT_EQ(a.weight_seed, b.weight_seed);
  EXPECT_EQ(a.kv_dtype, b.kv_dtype);
  EXPECT_EQ(a.conv_dtype, b.conv_dtype);
  EXPECT_EQ(a.ssm_dtype, b.ssm_dtype);
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.draft, b.draft);
  EXPECT_EQ(a.pools, b.pools);
}

TEST(ModelFileTest, EveryFieldIsRead) {
  const Result<ModelSpec> model = load_model_file(kFullToml, kToml, "m.toml");
  ASSERT_TRUE(model.is_ok()) << model.status().to_string();
  EXPECT_EQ(model->id, "my-hybrid");
  EXPECT_EQ(model->revision, "r7");
  EXPECT_EQ(model->page_size, 32u);
  EXPECT_EQ(model->vocab_size, 1000u);
  EXPECT_EQ(model->context_length, 4096u);
  EXPECT_EQ(model->weight_seed, 99u);
  EXPECT_EQ(model->kv_dtype, Dtype::kBf16);
  EXPECT_EQ(model->conv_dtype, Dtype::kF16);
  EXPECT_EQ(model->ssm_dtype, Dtype::kF32);
  const ModelDims dims = {.hidden = 128,
                          .ffn = 256,
                          .q_heads = 8,
                          .kv_heads = 4,
                          .head_dim = 32,
                          .kv_lora_rank = 1,
                          .rope_dim = 2,
                          .index_heads = 3,
                          .index_dim = 4,
                          .index_topk = 5,
                          .window = 100,
                          .ssm_heads = 6,
                          .ssm_key_heads = 3,
                          .ssm_head_dim = 7,
                          .ssm_state_dim = 9,
                          .conv_kernel = 4};
  EXPECT_EQ(model->dims, dims);
  EXPECT_EQ(model->layers.size(), 12u);
  EXPECT_EQ(model->layers[11], kAttention);
  EXPECT_EQ(model->draft.layers, 2u);
  EXPECT_EQ(model->find_pool(PoolName::kDraft)->layers, (std::vector<std::uint32_t>{12, 13}));
}

TEST(ModelFileTest, JsonRoundTripOfEveryPreset) {
  for (const PresetInfo& info : all_presets()) {
    SCOPED_TRACE(info.name);
    ModelSpec model = *preset_model(info.name);
    model.weight_seed = ~std::uint64_t{0};
    const Result<ModelSpec> again = load_model_file(model_to_json(model), kJson, "round-trip");
    ASSERT_TRUE(again.is_ok()) << again.status().to_string();
    expect_same(*again, model);
  }
}

TEST(ModelFileTest, TomlAndJsonAgree) {
  const Result<ModelSpec> toml = load_model_file(kFullToml, kToml, "m.toml");
  ASSERT_TRUE(toml.is_ok());
  const Result<ModelSpec> json = load_model_file(model_to_json(*toml), kJson, "m.json");
  ASSERT_TRUE(json.is_ok());
  expect_same(*json, *toml);
}

TEST(ModelFileTest, DefaultsAndLayerShorthands) {
  const Result<ModelSpec> plain = load_model_file(R"({"id": "a", "layers": ["attention"]})", kJson, "a");
  ASSERT_TRUE(plain.is_ok()) << plain.status().to_string();
  EXPECT_EQ(plain->page_size, ModelSpec{}.page_size);
  EXPECT_EQ(plain->dims, ModelDims{});

  const Result<ModelSpec> mixed = load_model_file(
      "id = 'b'\nlayers = ['short_conv', {pattern = ['attention', 'short_conv'], repeat = 2}, 'attention', "
      "{pattern = ['short_conv']}]\ndims = {conv_kernel = 3}\n",
      kToml, "b");
  ASSERT_TRUE(mixed.is_ok()) << mixed.status().to_string();
  EXPECT_EQ(mixed->layers, (std::vector<LayerKind>{kShortConv, kAttention, kShortConv, kAttention, kShortConv,
                                                   kAttention, kShortConv}));
}

TEST(ModelFileTest, FormatByName) {
  EXPECT_EQ(model_file_format("x/y.json"), kJson);
  EXPECT_EQ(model_file_format("y.toml"), kToml);
  EXPECT_EQ(model_file_format("y.yaml"), std::nullopt);
  EXPECT_EQ(model_file_format(""), std::nullopt);
}

struct BadFile {
  ModelFileFormat format;
  std::string_view text;
  std::string_view message;  // the whole message starts with this
};

TEST(ModelFileTest, ErrorsSayWhereAndWhat) {
  const BadFile cases[] = {
      // Syntax: line and column.
      {kJson, "{\n  \"id\": \"a\",\n  \"layers\": [\"attention\",]\n}", "f:3:26: syntax error while parsing value"},
      {kJson, "", "f:1:1: syntax error"},
      {kJson, "{\"id\": 1e999}", "f:1:12: number overflow"},
      {kToml, "id = 'a'\nlayers = [\n", "f:"},
      {kToml, "id = 'a'\npage_size == 3\n", "f:2:12: "},
      {kToml, "id = 'a'\nid = 'b'\n", "f:2:"},
      {kJson, R"({"id": "a", "id": "b", "layers": ["attention"]})", "f: key 'id' is there twice"},
      {kJson, R"({"id": "a", "layers": ["mla"], "dims": {"window": 1, "window": 2}})",
       "f: key 'window' is there twice"},
      {kToml, "id = 1979-05-27\n", "f:1:6: a date or time means nothing here"},
      // Keys.
      {kJson, R"({"id": "a", "layers": ["attention"], "pagesize": 3})",
       "f: unknown key 'pagesize'; did you mean 'page_size'?"},
      {kToml, "id = 'a'\nlayers = ['attention']\n[dims]\nwindw = 3\n",
       "f: dims: unknown key 'windw'; did you mean 'window'?"},
      {kJson, R"({"id": "a", "layers": ["attention"], "zzzzzzzzz": 3})",
       "f: unknown key 'zzzzzzzzz'; known are: id, revision,"},
      {kJson, R"({"id": "a", "layers": ["attention"], "draft": {"layer": 1}})",
       "f: draft: unknown key 'layer'; did you mean 'layers'?"},
      {kJson, R"({"id": "a", "layers": ["attention"], "pools": []})", "f: pools: pools are derived"},
      {kJson, R"({"layers": ["attention"]})", "f: key 'id' is missing"},
      {kJson, R"({"id": "a"})", "f: key 'layers' is missing"},
      {kJson, "[]", "f: expected a table, got a list"},
      // Values.
      {kJson, R"({"id": 3})", "f: id: expected a text, got 3"},
      {kJson, R"({"page_size": -3})", "f: page_size: expected a whole number from 0 to 4294967295, got -3"},
      {kJson, R"({"page_size": 4294967296})", "f: page_size: expected a whole number"},
      {kJson, R"({"page_size": 64.0})", "f: page_size: expected a whole number from 0 to 4294967295, got a fraction"},
      {kJson, R"({"page_size": "64"})", "f: page_size: expected a whole number from 0 to 4294967295, got '64'"},
      {kJson, R"({"page_size": true})", "f: page_size: expected a whole number"},
      {kJson, R"({"page_size": null})", "f: page_size: expected a whole number from 0 to 4294967295, got null"},
      {kToml, "weight_seed = -1", "f: weight_seed: expected a whole number from 0 to 18446744073709551615, got -1"},
      {kJson, R"({"dims": {"window": -1}})", "f: dims.window: expected a whole number"},
      {kJson, R"({"dims": 3})", "f: dims: expected a table, got 3"},
      {kJson, R"({"kv_dtype": "bf61"})", "f: kv_dtype: unknown dtype 'bf61'; did you mean 'bf16'?"},
      {kJson, R"({"layers": ["attention", "gnd"]})", "f: layers[1]: unknown layer 'gnd'; did you mean 'gdn'?"},
      {kJson, R"({"layers": "attention"})", "f: layers: expected a list of layer names"},
      {kJson, R"({"layers": [["attention"]]})", "f: layers[0]: expected a text, got a list"},
      {kJson, R"({"layers": {"pattern": [], "repeat": 2}})", "f: layers: needs a pattern"},
      {kJson, R"({"layers": {"pattern": ["mla"], "repeat": 0}})", "f: layers: needs a pattern"},
      {kJson, R"({"layers": {"pattern": ["mla"], "repeat": 4294967295}})", "f: layers: makes more than 1024 layers"},
      {kJson, R"({"layers": {"pattern": ["mla"], "repaet": 2}})",
       "f: layers: unknown key 'repaet'; did you mean 'repeat'?"},
      {kJson, R"({"layers": [{"pattern": ["mla", 3]}]})", "f: layers[0].pattern[1]: expected a text, got 3"},
      {kJson, R"({"layers": [{"pattern": "mla"}]})", "f: layers[0].pattern: expected a list of layer names, got 'mla'"},
      // The model itself.
      {kJson, R"({"id": "a", "layers": ["mla"]})", "f: model 'a': dims.kv_lora_rank is 0, but layer 0 (mla) needs it"},
  };
  for (const BadFile& bad : cases) {
    SCOPED_TRACE(bad.text);
    const Result<ModelSpec> model = load_model_file(bad.text, bad.format, "f");
    ASSERT_FALSE(model.is_ok());
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(model.status().message().starts_with(bad.message)) << model.status().message();
  }
}

// Found by fuzzing: an assertion of the TOML parser did not hold.
TEST(ModelFileTest, ATableWithAStrangeNameIsRefused) {
  for (const std::string_view text : {"[[: ", "[[:]]", "[:]", "[[=]]\n", "a.: = 1"}) {
    EXPECT_EQ(load_model_file(text, ModelFileFormat::kToml, "m").status().code(), StatusCode::kInvalidArgument);
  }
}

// Found by fuzzing: these characters led the TOML parser where UBSan says that nothing leads.
TEST(ModelFileTest, ArabicFormsAndVariationSelectorsAreCharactersLikeOthers) {
  for (const std::string_view character : {"\xef\xb0\xb6", "\xef\xb3\xbf", "\xef\xb8\x8f"}) {  // U+FC36, FCFF, FE0F
    const std::string text(character);
    for (const std::string& bare : {text, "id" + text, "id = " + text, "id = \"m\" " + text, "[" + text + "]"}) {
      EXPECT_EQ(load_model_file(bare, ModelFileFormat::kToml, "m").status().code(), StatusCode::kInvalidArgument);
    }
    const auto model =
        load_model_file("id = \"" + text + "\" # " + text + "\nlayers = [\"attention\"]", ModelFileFormat::kToml, "m");
    ASSERT_TRUE(model.is_ok()) << model.status().to_string();
    EXPECT_EQ(model->id, text);
  }
}

// Found by fuzzing: to the JSON parser below, a NUL is the end of the text.
TEST(ModelFileTest, NothingHidesBehindANul) {
  const std::string text = R"({"id": "m", "layers": ["attention"]})" + std::string("\n\0 hidden", 9);
  const auto model = load_model_file(text, ModelFileFormat::kJson, "m.json");
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(model.status().message().rfind("m.json:2:1: ", 0), 0u) << model.status().message();
}

TEST(ModelFileTest, BoundsAreKept) {
  EXPECT_FALSE(load_model_file(std::string((1u << 20) + 1, ' '), kJson, "big").is_ok());
  EXPECT_FALSE(load_model_file(std::string(100000, '['), kJson, "deep").is_ok());
  EXPECT_FALSE(load_model_file(std::string(100000, '[') + std::string(100000, ']'), kJson, "deep").is_ok());
  EXPECT_FALSE(load_model_file("a = " + std::string(100000, '['), kToml, "deep").is_ok());
  EXPECT_FALSE(load_model_file("{\"" + std::string(100000, 'k') + "\": 1}", kJson, "long key").is_ok());
  EXPECT_FALSE(load_model_file("{\"id\": \"\xff\"}", kJson, "no UTF-8").is_ok());
}

// Damaged text is refused or read, never a crash; a message always names the source.
TEST(ModelFileTest, MutatedTextIsHandled) {
  const std::string sources[] = {std::string(kFullToml), model_to_json(*preset_model("dsv4-tiny+draft"))};
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const bool is_toml = rng.chance(1, 2);
    std::string text = sources[is_toml ? 0 : 1];
    for (std::uint64_t edits = rng.between(1, 6); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(rng.below(text.size()));
      if (rng.chance(1, 3)) {
        text.erase(at, static_cast<std::size_t>(rng.below(20)));
      } else {
        text[at] = static_cast<char>(rng.next_u64());
      }
      if (text.empty()) text = "x";
    }
    const Result<ModelSpec> model = load_model_file(text, is_toml ? kToml : kJson, "mutant");
    if (!model.is_ok()) {
      EXPECT_TRUE(model.status().message().starts_with("mutant:")) << model.status().message();
    }
  }
}

}  // namespace
}  // namespace larder
