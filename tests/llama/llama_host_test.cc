// SPDX-License-Identifier: Apache-2.0
// Sequences as a server has them: several in one cache, cells in any order, slot files.
#include <gtest/gtest.h>
#include <llama.h>

#include "engine/llama/blob_pages.h"
#include "engine/llama/sequence_moves.h"
#include "engine/llama/slot_file.h"
#include "tests/llama/llama_rig.h"

namespace larder::llama {
namespace {

using llama_test::decode;
using llama_test::LoadedModel;
using llama_test::random_model;
using llama_test::random_tokens;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kHostPage = 16;

// Everything of a sequence of `end` tokens.
struct Cut {
  std::vector<Bytes> pages;
  std::vector<PageBytes> views;
  Bytes checkpoint;
  std::size_t runs = 0;
};

Cut cut_up(const Bytes& bytes, const BlobGeometry& geometry, std::uint32_t end, BlobForm form = {}) {
  Cut cut;
  const auto blob = parse_sequence_blob(bytes, geometry, form);
  EXPECT_TRUE(blob) << blob.status().to_string();
  if (!blob) return cut;
  cut.runs = blob->full->runs.size();
  for (std::uint32_t at = kHostPage; at <= end; at += kHostPage) {
    Bytes& page = cut.pages.emplace_back(geometry.full->page_bytes(kHostPage));
    const Status status = cut_page(*blob->full, *geometry.full, at, kHostPage, page);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  cut.views.assign(cut.pages.begin(), cut.pages.end());
  cut.checkpoint.assign(blob->recurrent->bytes.begin(), blob->recurrent->bytes.end());
  return cut;
}

class LlamaSequences : public testing::Test {
 protected:
  const LoadedModel model_{random_model("qwen3next"), "_sequences"};
  const BlobGeometry geometry_ = model_.geometry().blob;
  const HostSettings settings_{.context_tokens = 256, .batch_tokens = kHostPage};
};

TEST_F(LlamaSequences, WhoseCellsLieInAnyOrderAreRestored) {
  const auto host = model_.open(settings_);
  const auto mine = random_tokens(192, 1), other = random_tokens(128, 2);
  (void)decode(*host, 1, other, 0, 64, kHostPage);
  (void)decode(*host, 0, mine, 0, 64, kHostPage);
  (void)decode(*host, 1, other, 64, 112, kHostPage);
  (void)decode(*host, 0, mine, 64, 128, kHostPage);  // the cache is nearly full
  host->clear(1);
  (void)decode(*host, 0, mine, 128, 176, kHostPage);  // and begins again where the other one was
  const auto saved = host->save(0, false);
  ASSERT_TRUE(saved);
  const Cut cut = cut_up(*saved, geometry_, 176);
  EXPECT_GT(cut.runs, 1u) << "the test has lost its point";
  const std::vector<float> expected = decode(*host, 0, mine, 176, 192, kHostPage);

  const auto fresh = model_.open(settings_);
  const RestoreParts parts{176, kHostPage, cut.views, {}, {}, cut.checkpoint};
  const Status status = restore_sequence(*fresh, geometry_, parts, 0, 2);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  const auto again = fresh->save(0, false);
  ASSERT_TRUE(again);
  const Cut same = cut_up(*again, geometry_, 176);
  EXPECT_EQ(same.pages, cut.pages);
  EXPECT_EQ(same.checkpoint, cut.checkpoint);
  EXPECT_EQ(same.runs, 1u);
  // The engine sums in the order of its cells, in half precision: another order is another rounding.
  const std::vector<float> restored = decode(*fresh, 0, mine, 176, 192, kHostPage);
  for (std::size_t i = 0; i < restored.size(); ++i) ASSERT_NEAR(restored[i], expected[i], 0.02f);
}

TEST_F(LlamaSequences, FailuresAreStatuses) {
  const auto host = model_.open(settings_);
  const auto tokens = random_tokens(512, 3);
  EXPECT_EQ(host->decode(0, 0, std::span(tokens).first(kHostPage + 1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(host->decode(3, 0, std::span(tokens).first(1)).status().code(), StatusCode::kInvalidArgument);
  (void)decode(*host, 0, tokens, 0, 256, kHostPage);
  EXPECT_EQ(host->decode(0, 256, std::span(tokens).first(kHostPage)).status().code(), StatusCode::kOverloaded);
  const auto saved = host->save(0, false);
  ASSERT_TRUE(saved);
  host->clear(0);
  EXPECT_EQ(host->load(0, std::span(*saved).first(saved->size() - 1), false).code(), StatusCode::kInternal);
  EXPECT_TRUE(host->load(0, *saved, false).is_ok());
  EXPECT_EQ(load_model("/nothing/here.gguf").status().code(), StatusCode::kInvalidArgument);
}

// What llama-server calls for its slots.
class RawContext {
 public:
  explicit RawContext(llama_model& model, bool is_unified = true) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = kHostPage;
    params.n_seq_max = 2;
    params.n_threads = params.n_threads_batch = 1;
    params.kv_unified = is_unified;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context_ = llama_init_from_model(&model, params);
  }
  ~RawContext() { llama_free(context_); }
  RawContext(const RawContext&) = delete;
  RawContext& operator=(const RawContext&) = delete;
  [[nodiscard]] llama_context* get() const { return context_; }
  // The same tokens in the same batches give the same logits.
  std::vector<float> decode(std::vector<TokenId> tokens, std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t at = begin; at < end; at += kHostPage) {
      llama_batch batch = llama_batch_init(kHostPage, 0, 1);
      batch.n_tokens = kHostPage;
      for (std::uint32_t i = 0; i < kHostPage; ++i) {
        batch.token[i] = static_cast<llama_token>(tokens[at + i]);
        batch.pos[i] = static_cast<llama_pos>(at + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i + 1 == kHostPage;
      }
      EXPECT_EQ(llama_decode(context_, batch), 0);
      llama_batch_free(batch);
    }
    const float* logits = llama_get_logits_ith(context_, kHostPage - 1);
    return {logits, logits + kRandomModelVocabulary};
  }

 private:
  llama_context* context_ = nullptr;
};

Bytes read_file(const std::string& path) {
  auto file = real_file_system().open(path, {});
  EXPECT_TRUE(file);
  Bytes bytes(static_cast<std::size_t>(*(*file)->size_bytes()));
  EXPECT_TRUE(read_exactly(**file, bytes, 0).is_ok());
  return bytes;
}

void write_file(const std::string& path, const Bytes& bytes) {
  auto file = real_file_system().open(path, {.write = true, .create = true, .truncate = true});
  ASSERT_TRUE(file);
  ASSERT_TRUE(write_fully(**file, bytes, 0).is_ok());
}

TEST_F(LlamaSequences, SlotFilesAreCutAndComposed) {
  const support::TemporaryDirectory directory;
  const std::string path = directory.path() + "/slot.bin";
  const auto tokens = random_tokens(96, 4);
  for (const bool is_unified : {true, false}) {
    RawContext writer(model_.get(), is_unified);
    (void)writer.decode(tokens, 0, 64);
    const auto* first = reinterpret_cast<const llama_token*>(tokens.data());
    ASSERT_GT(llama_state_seq_save_file(writer.get(), path.c_str(), 0, first, 64), 0u);
    const Bytes saved = read_file(path);
    const auto slot = parse_slot_file(saved);
    ASSERT_TRUE(slot) << slot.status().to_string();
    EXPECT_EQ(slot->tokens, std::vector<TokenId>(tokens.begin(), tokens.begin() + 64));
    const BlobForm form{.has_header = false};
    const auto geometry = learn_geometry(slot->blob, false, 0);
    ASSERT_TRUE(geometry) << geometry.status().to_string();
    EXPECT_EQ(geometry->streams, is_unified ? 1u : 2u);
    EXPECT_EQ(geometry->to_text(), geometry_.to_text());
    const Cut cut = cut_up(Bytes(slot->blob.begin(), slot->blob.end()), *geometry, 64, form);

    BlobContents contents;
    contents.form = form;
    contents.end = 64;
    contents.page_size = kHostPage;
    contents.full = cut.views;
    contents.checkpoint = cut.checkpoint;
    const auto size = composed_bytes(*geometry, contents);
    ASSERT_TRUE(size) << size.status().to_string();
    const std::size_t head = slot_head_bytes(64);
    Bytes composed(head + *size);
    write_slot_head(slot->tokens, std::span(composed).first(head));
    ASSERT_TRUE(compose_blob(*geometry, contents, std::span(composed).subspan(head)).is_ok());
    EXPECT_EQ(composed, saved);
    write_file(path, composed);

    RawContext reader(model_.get(), is_unified);
    std::vector<llama_token> read(96);
    std::size_t count = 0;
    ASSERT_EQ(llama_state_seq_load_file(reader.get(), path.c_str(), 0, read.data(), read.size(), &count),
              composed.size());
    EXPECT_EQ(count, 64u);
    EXPECT_EQ(reader.decode(tokens, 64, 96), writer.decode(tokens, 64, 96));
  }
}

}  // namespace
}  // namespace larder::llama
