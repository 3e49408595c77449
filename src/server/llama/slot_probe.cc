// SPDX-License-Identifier: Apache-2.0
#include "server/llama/slot_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/llama/slot_file.h"

namespace larder::llama {
namespace {

constexpr std::uint32_t kSlot = 0, kAnswer = 4, kTail = 12;
constexpr std::string_view kFirst = "larder-probe-1.slot", kSecond = "larder-probe-2.slot",
                           kComposed = "larder-probe-3.slot";
constexpr std::string_view kText =
    "The larder of the old house had three shelves: one beside the stove, one in the passage and one in the cellar. ";

class SlotProbe {
 public:
  SlotProbe(LlamaUpstream& upstream, FileSystem& files, const SlotProbeSettings& settings)
      : upstream_(upstream), files_(files), settings_(settings), page_(settings.pools.page_size), buffers_(4) {}

  Status run() {
    LARDER_RETURN_IF_ERROR(say("making a prompt", make_prompt()));
    LARDER_RETURN_IF_ERROR(say("saving a slot", save_both()));
    LARDER_RETURN_IF_ERROR(say("taking its file apart", learn()));
    LARDER_RETURN_IF_ERROR(say("going on without a restore", go_on(expected_)));
    LARDER_RETURN_IF_ERROR(say("looking at what a slot keeps", learn_habits()));
    LARDER_RETURN_IF_ERROR(say("putting a file together", compose()));
    return say("going on after a restore", check_restored());
  }
  void clean() {
    (void)upstream_.erase_slot(kSlot);
    for (const std::string_view name : {kFirst, kSecond, kComposed}) (void)files_.remove(path_of(name));
  }
  SlotProbeResult result;

 private:
  [[nodiscard]] Status say(std::string_view step, const Status& status) const {
    if (status.is_ok()) return status;
    const bool is_the_servers = status.code() == StatusCode::kUnavailable ||
                                status.code() == StatusCode::kDeadlineExceeded ||
                                status.code() == StatusCode::kOverloaded;
    return {is_the_servers ? status.code() : StatusCode::kUnsupported,
            fmt::format("{} cannot be cached: {}: {}", settings_.model, step, status.message())};
  }
  [[nodiscard]] std::string path_of(std::string_view name) const { return join_path(settings_.directory, name); }
  [[nodiscard]] std::span<const TokenId> pages(std::uint32_t count) const {
    return std::span(prompt_).first(std::size_t{count} * page_);
  }

  Status make_prompt() {
    std::string text;
    while (prompt_.size() < std::size_t{2} * page_ + kTail) {
      text += fmt::format("{}{} ", kText, text.size());
      LARDER_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, upstream_.tokenize(text));
      if (tokens.size() <= prompt_.size()) return unsupported("/tokenize gives no tokens for text");
      prompt_ = std::move(tokens);
    }
    prompt_.resize(std::size_t{2} * page_ + kTail);
    return upstream_.erase_slot(kSlot);
  }

  Status save_both() {
    for (const std::uint32_t count : {1u, 2u}) {
      LARDER_RETURN_IF_ERROR(upstream_.prefill(kSlot, pages(count)).status());
      const std::string_view name = count == 1 ? kFirst : kSecond;
      LARDER_RETURN_IF_ERROR(upstream_.save_slot(kSlot, name));
      auto bytes = read_slot_file(files_, path_of(name), buffers_);
      if (bytes.status().code() == StatusCode::kNotFound) {
        return unsupported(
            fmt::format("{} is not there: the proxy's --slot-dir must be the folder of llama-server's "
                        "--slot-save-path, on the same machine",
                        path_of(name)));
      }
      if (!bytes.is_ok()) return bytes.status();
      (count == 1 ? first_bytes_ : second_bytes_) = std::move(*bytes);
    }
    return Status::ok();
  }

  Status learn() {
    LARDER_ASSIGN_OR_RETURN(const auto file, parse_slot_file(std::as_const(*second_bytes_).bytes()));
    LARDER_ASSIGN_OR_RETURN(BlobGeometry geometry, learn_geometry(file.blob, false, settings_.window_tokens));
    LARDER_ASSIGN_OR_RETURN(ModelPools pools, model_pools(geometry, settings_.pools));
    result.format = {std::move(geometry), std::move(pools)};
    for (auto [bytes, to, count] : {std::tuple{first_bytes_, &first_, 1u}, {second_bytes_, &second_, 2u}}) {
      LARDER_ASSIGN_OR_RETURN(auto slot, SavedSlot::parse(result.format, bytes));
      *to = std::move(slot);
      if (!std::ranges::equal((*to)->tokens(), pages(count)) || (*to)->end() != pages(count).size()) {
        return corrupt(fmt::format("a slot that has computed {} tokens was saved with {}, and a state of {}",
                                   pages(count).size(), (*to)->tokens().size(), (*to)->end()));
      }
    }
    return Status::ok();
  }

  Status go_on(Continuation& out) {
    LARDER_ASSIGN_OR_RETURN(out, upstream_.continue_greedily(kSlot, prompt_, kAnswer));
    return Status::ok();
  }

  // The same prompt once more: a model that rolls back computes its last token, others from a checkpoint on.
  Status learn_habits() {
    Continuation again;
    LARDER_RETURN_IF_ERROR(go_on(again));
    const std::uint64_t computed = prompt_.size() - std::min<std::uint64_t>(again.cached, prompt_.size());
    EngineHabits& habits = result.habits;
    habits.rolls_back = result.format.is_dense();
    habits.checkpoint_offset = !habits.rolls_back && computed <= kTail ? static_cast<std::uint32_t>(computed) : 0;
    LARDER_ASSIGN_OR_RETURN(const UpstreamFacts facts, upstream_.facts());
    const BlobGeometry& geometry = result.format.geometry;
    const bool shares_cells = facts.slots > 1 && geometry.streams == 1 && (geometry.full || geometry.window);
    if (shares_cells) habits.shared_context = facts.slot_context;  // which is the whole one, or a limit below it
    return Status::ok();
  }

  // Slot 1's file from the pages of slot 2's, and the window and the state of its own.
  Status compose() {
    const ModelPools& pools = result.format.pools;
    SlotDraft draft(result.format, 1, 0, buffers_);
    for (std::size_t pool = 0; pool < pools.space.pools.size(); ++pool) {
      LARDER_ASSIGN_OR_RETURN(const std::span<std::byte> place, draft.place(pool, 0));
      LARDER_RETURN_IF_ERROR((pool == pools.kv ? second_ : first_)->cut(pool, 0, place));
    }
    LARDER_ASSIGN_OR_RETURN(const auto exact, draft.compose(pages(1), 0, buffers_));
    const std::span<const std::byte> ours = std::as_const(*exact).bytes(),
                                     theirs = std::as_const(*first_bytes_).bytes();
    if (!std::ranges::equal(blob_of(ours), blob_of(theirs))) {
      return corrupt("a page and a checkpoint, put together, are not the bytes that were saved");
    }
    LARDER_ASSIGN_OR_RETURN(const auto restorable, draft.compose(pages(1), 1, buffers_));
    auto file = files_.open(path_of(kComposed), {.write = true, .create = true, .for_others = true, .truncate = true});
    if (!file.is_ok()) return file.status();
    return write_fully(**file, std::as_const(*restorable).bytes(), 0);
  }
  // Tokens may be written in two ways (slot_file.h).
  static std::span<const std::byte> blob_of(std::span<const std::byte> bytes) {
    const auto file = parse_slot_file(bytes);
    return file.is_ok() ? file->blob : bytes;
  }

  Status check_restored() {
    LARDER_RETURN_IF_ERROR(upstream_.erase_slot(kSlot));
    LARDER_RETURN_IF_ERROR(upstream_.restore_slot(kSlot, kComposed));
    Continuation restored;
    LARDER_RETURN_IF_ERROR(go_on(restored));
    if (restored.cached != page_) {
      return unsupported(
          fmt::format("{} tokens were restored, and llama-server used {} of them", page_, restored.cached));
    }
    const auto& a = expected_.log_probabilities;
    const auto& b = restored.log_probabilities;
    if (a.empty() || a.size() != b.size()) return unsupported("llama-server told no log probabilities");
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::abs(a[i] - b[i]) <= settings_.tolerance) {
        if (expected_.tokens[i] == restored.tokens[i]) continue;
        break;  // two tokens as likely as each other: from here on the answers are of different texts
      }
      return corrupt(fmt::format("the answer after a restore is another one: log probability {:.4f} instead of {:.4f}",
                                 b[i], a[i]));
    }
    return Status::ok();
  }

  LlamaUpstream& upstream_;
  FileSystem& files_;
  const SlotProbeSettings& settings_;
  const std::uint32_t page_;
  ByteBuffers buffers_;
  std::vector<TokenId> prompt_;
  std::shared_ptr<ByteBuffers::Buffer> first_bytes_, second_bytes_;
  std::shared_ptr<const SavedSlot> first_, second_;
  Continuation expected_;
};

}  // namespace

Result<SlotProbeResult> probe_slots(LlamaUpstream& upstream, FileSystem& files, const SlotProbeSettings& settings) {
  SlotProbe probe(upstream, files, settings);
  const Status status = probe.run();
  probe.clean();
  if (!status.is_ok()) return status;
  return std::move(probe.result);
}

}  // namespace larder::llama
