// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/self_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/rng.h"
#include "engine/llama/sequence_blob.h"
#include "engine/llama/sequence_moves.h"

namespace larder::llama {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kDonor = 0, kRestored = 1, kScratch = 2;
constexpr std::size_t kPositionInCheckpoint = 4;

// By how much two answers differ, as a part of the largest logit. Not a number: infinitely.
float difference_of(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VALF;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return 0;
  float largest = 0, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return HUGE_VALF;
    largest = std::max(largest, std::abs(a[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return largest > 0 ? difference / largest : HUGE_VALF;
}

// All that was kept at one page boundary: what the pages before have given is in the boundaries before.
struct Boundary {
  Bytes full, checkpoint;
  std::vector<Bytes> window;  // a whole one
};

class Probe {
 public:
  Probe(SequenceHost& host, const ProbeSettings& settings) : host_(host), settings_(settings) {
    Rng rng(settings.seed);
    tokens_.resize(std::size_t{settings.pages} * settings.page_size);
    for (TokenId& token : tokens_) token = static_cast<TokenId>(rng.below(host.vocabulary_size()));
  }

  [[nodiscard]] Status run() {
    LARDER_RETURN_IF_ERROR(say("decoding", decode_undisturbed()));
    LARDER_RETURN_IF_ERROR(say("exporting", decode_and_export()));
    for (std::uint32_t k = 1; k < settings_.pages; ++k) {
      for (const bool is_shared : {false, true}) {
        LARDER_RETURN_IF_ERROR(say(is_shared ? "restoring beside a donor" : "restoring", check_restored(k, is_shared)));
      }
    }
    return say("the controls", run_controls());
  }
  [[nodiscard]] ProbeReport& report() { return report_; }
  void clear() {
    for (const std::uint32_t sequence : {kDonor, kRestored, kScratch}) host_.clear(sequence);
  }

 private:
  [[nodiscard]] Status say(std::string_view step, const Status& status) const {
    if (status.is_ok()) return status;
    return unsupported(fmt::format("{} cannot be cached: {}: {}", settings_.model, step, status.message()));
  }
  [[nodiscard]] std::uint32_t at(std::uint32_t page) const { return page * settings_.page_size; }

  // Page `page` of the tokens; the logits behind it.
  [[nodiscard]] Result<std::vector<float>> decode(std::uint32_t sequence, std::uint32_t page) {
    return host_.decode(sequence, at(page), std::span(tokens_).subspan(at(page), settings_.page_size));
  }

  [[nodiscard]] Status decode_undisturbed() {
    clear();
    for (std::uint32_t page = 0; page < settings_.pages; ++page) {
      auto logits = decode(kDonor, page);
      if (!logits) return logits.status();
      logits_.push_back(std::move(*logits));
    }
    return Status::ok();
  }

  [[nodiscard]] Status decode_and_export() {
    clear();
    for (std::uint32_t page = 0; page < settings_.pages; ++page) {
      const auto logits = decode(kDonor, page);
      if (!logits) return logits.status();
      LARDER_RETURN_IF_ERROR(check_logits(page, *logits));
      const Result<Bytes> whole = host_.save(kDonor, false);
      if (!whole) return whole.status();
      if (page == 0) LARDER_RETURN_IF_ERROR(learn(*whole));
      LARDER_RETURN_IF_ERROR(export_page(page));
      LARDER_RETURN_IF_ERROR(check_bytes(page + 1, *whole));
    }
    return Status::ok();
  }

  [[nodiscard]] Status learn(const Bytes& whole) {
    Result<BlobGeometry> geometry = learn_geometry(whole, true, settings_.window_tokens);
    if (!geometry) return geometry.status();
    report_.geometry = std::move(*geometry);
    const std::uint32_t window = report_.geometry.window_tokens;
    if (window > 0) window_kind_ = window_pages(settings_.page_size, window);
    return Status::ok();
  }

  [[nodiscard]] Status export_page(std::uint32_t page) {
    const BlobGeometry& geometry = report_.geometry;
    const auto exported = SequenceExport::take(host_, geometry, kDonor, kScratch, at(page), at(page + 1));
    if (!exported) return exported.status();
    Boundary& kept = boundaries_.emplace_back();
    if (geometry.full) {
      kept.full.resize(static_cast<std::size_t>(geometry.full->page_bytes(settings_.page_size)));
      LARDER_RETURN_IF_ERROR(exported->full_page(at(page + 1), settings_.page_size, kept.full));
    }
    const PageBytes checkpoint = exported->checkpoint();
    kept.checkpoint.assign(checkpoint.begin(), checkpoint.end());
    const auto [tokens, pages] = window_kind_;
    for (std::uint32_t i = pages; i > 0; --i) {
      const std::uint32_t back = (i - 1) * tokens;
      if (back >= at(page + 1)) continue;
      Bytes& part = kept.window.emplace_back(static_cast<std::size_t>(geometry.window->page_bytes(tokens)));
      LARDER_RETURN_IF_ERROR(exported->window_page(at(page + 1) - back, tokens, part));
    }
    return Status::ok();
  }

  struct Views {
    std::vector<PageBytes> full, window;
  };
  // Pages [from, k), and what is kept of k.
  [[nodiscard]] Views views_of(std::uint32_t from, std::uint32_t k) const {
    Views views;
    for (std::uint32_t i = from; report_.geometry.full && i < k; ++i) views.full.emplace_back(boundaries_[i].full);
    for (const Bytes& page : boundaries_[k - 1].window) views.window.emplace_back(page);
    return views;
  }

  // A whole blob composed of pages is the one that the engine has written.
  [[nodiscard]] Status check_bytes(std::uint32_t k, const Bytes& whole) const {
    const Views views = views_of(0, k);
    BlobContents contents;
    contents.sequence = kDonor;
    contents.end = at(k);
    contents.page_size = settings_.page_size;
    contents.full = views.full;
    contents.window_kind = window_kind_;
    contents.window = views.window;
    contents.checkpoint = boundaries_[k - 1].checkpoint;
    const Result<std::size_t> size = composed_bytes(report_.geometry, contents);
    if (!size) return size.status();
    Bytes composed(*size);
    LARDER_RETURN_IF_ERROR(compose_blob(report_.geometry, contents, composed));
    if (composed == whole) return Status::ok();
    return corrupt(fmt::format("{} pages, put together, are not the bytes that were saved", k));
  }

  [[nodiscard]] Status check_logits(std::uint32_t page, const std::vector<float>& logits) {
    const float difference = difference_of(logits, logits_[page]);
    if (difference > settings_.tolerance) {
      return corrupt(fmt::format("logits behind page {} differ by {:.2g} of the largest one, at most {:.2g}", page,
                                 difference, settings_.tolerance));
    }
    report_.difference = std::max(report_.difference, difference);
    return Status::ok();
  }

  // Restores k pages, the first of them shared with a donor or not. The donor stays.
  [[nodiscard]] Status restore(std::uint32_t k, std::uint32_t shared, const std::vector<PageBytes>& full,
                               const std::vector<PageBytes>& window, PageBytes checkpoint) {
    if (shared > 0) host_.share(kDonor, kRestored, 0, at(shared));
    RestoreParts parts;
    parts.end = at(k);
    parts.page_size = settings_.page_size;
    parts.full = full;
    parts.window_kind = window_kind_;
    parts.window = window;
    parts.checkpoint = checkpoint;
    return restore_sequence(host_, report_.geometry, parts, kRestored, kScratch);
  }

  [[nodiscard]] Status check_restored(std::uint32_t k, bool is_shared) {
    clear();
    const std::uint32_t shared = is_shared && report_.geometry.full ? k - 1 : 0;
    if (is_shared && shared == 0) return Status::ok();
    for (std::uint32_t page = 0; is_shared && page <= k; ++page) {
      const auto logits = decode(kDonor, page);
      if (!logits) return logits.status();
    }
    const Views views = views_of(shared, k);
    LARDER_RETURN_IF_ERROR(restore(k, shared, views.full, views.window, boundaries_[k - 1].checkpoint));
    for (std::uint32_t page = k; page < settings_.pages; ++page) {
      const auto logits = decode(kRestored, page);
      if (!logits) return logits.status();
      LARDER_RETURN_IF_ERROR(check_logits(page, *logits));
    }
    return Status::ok();
  }

  // One token, decoded on what was restored: it sees a wrong part before anything is forgotten.
  [[nodiscard]] Result<std::vector<float>> next_token_on(const Views& views, PageBytes checkpoint) {
    clear();
    const std::uint32_t last = settings_.pages - 1;
    LARDER_RETURN_IF_ERROR(restore(last, 0, views.full, views.window, checkpoint));
    return host_.decode(kRestored, at(last), std::span(tokens_).subspan(at(last), 1));
  }

  [[nodiscard]] Status run_controls() {
    const std::uint32_t last = settings_.pages - 1;
    const Views right = views_of(0, last);
    const Bytes& checkpoint = boundaries_[last - 1].checkpoint;
    const auto expected = next_token_on(right, checkpoint);
    if (!expected) return expected.status();
    const auto run_one = [&](std::optional<float>& control, const Views& views, PageBytes state) {
      const auto logits = next_token_on(views, state);
      if (!logits) return logits.status();
      control = difference_of(*logits, *expected);
      return Status::ok();
    };
    if (report_.geometry
            .full) {  // not two pages in each other's place: the order of its rows is all the same to attention
      Views wrong = right;
      Bytes page = boundaries_[1].full;
      if (report_.geometry.full->has_cell_extensions) {  // where a page in a wrong place is noticed
        const std::size_t bytes = settings_.page_size * kCellExtensionBytes;
        std::copy_n(wrong.full.front().end() - static_cast<std::ptrdiff_t>(bytes), bytes,
                    page.end() - static_cast<std::ptrdiff_t>(bytes));
      }
      wrong.full.front() = page;
      LARDER_RETURN_IF_ERROR(run_one(report_.controls.pages, wrong, checkpoint));
    }
    if (report_.geometry.window) {
      Views wrong = right;
      std::vector<Bytes> zeros;
      for (PageBytes& page : wrong.window) page = zeros.emplace_back(page.size());
      LARDER_RETURN_IF_ERROR(run_one(report_.controls.window, wrong, checkpoint));
    }
    if (report_.geometry.recurrent) {
      Bytes other = boundaries_[last - 2].checkpoint;  // in a disguise, or it is noticed
      std::copy_n(checkpoint.begin() + kPositionInCheckpoint, 4, other.begin() + kPositionInCheckpoint);
      LARDER_RETURN_IF_ERROR(run_one(report_.controls.checkpoint, right, other));
    }
    return Status::ok();
  }

  SequenceHost& host_;
  const ProbeSettings settings_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<float>> logits_;  // behind each page, undisturbed
  std::vector<Boundary> boundaries_;        // [k - 1]: of k pages
  WindowPages window_kind_;
  ProbeReport report_;
};

}  // namespace

Result<ProbeReport> probe_model(SequenceHost& host, const ProbeSettings& settings) {
  if (settings.pages < 3 || settings.page_size < 2 || host.vocabulary_size() == 0) {
    return invalid_argument(
        fmt::format("a probe of {} pages of {} tokens: at least 3 pages of 2", settings.pages, settings.page_size));
  }
  Probe probe(host, settings);
  const Status status = probe.run();
  probe.clear();
  if (!status.is_ok()) return status;
  return std::move(probe.report());
}

}  // namespace larder::llama
