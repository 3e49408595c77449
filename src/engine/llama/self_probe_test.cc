// SPDX-License-Identifier: Apache-2.0
#include "engine/llama/self_probe.h"

#include <gtest/gtest.h>

#include "engine/llama/blob_test_util.h"
#include "engine/llama/fake_sequence_host.h"
#include "engine/llama/sequence_moves.h"

namespace larder::llama {
namespace {

using blob_test::all_geometries;
using blob_test::Bytes;
using blob_test::FakeSequenceHost;

ProbeSettings settings_of(const BlobGeometry& geometry) {
  ProbeSettings settings;
  settings.model = "the-model";
  settings.page_size = 4;
  settings.pages = 5;
  settings.window_tokens = geometry.window_tokens;
  return settings;
}

TEST(SelfProbe, PassesEveryShapeOfModelAndLearnsItsGeometry) {
  for (const auto& [name, geometry] : all_geometries()) {
    SCOPED_TRACE(name);
    FakeSequenceHost host(geometry);
    const auto report = probe_model(host, settings_of(geometry));
    ASSERT_TRUE(report) << report.status().to_string();
    EXPECT_EQ(report->geometry, geometry);
    EXPECT_EQ(report->difference, 0);
    EXPECT_EQ(report->controls.pages.has_value(), geometry.full.has_value());
    EXPECT_EQ(report->controls.window.has_value(), geometry.window.has_value());
    EXPECT_EQ(report->controls.checkpoint.has_value(), geometry.recurrent.has_value());
    for (const auto& control : {report->controls.pages, report->controls.window, report->controls.checkpoint}) {
      EXPECT_GT(control.value_or(1), 0.01f);
    }
  }
}

// Loses one kind of load, as an engine would that ignores a flag.
class ForgetfulHost final : public SequenceHost {
 public:
  ForgetfulHost(const BlobGeometry& geometry, bool forgets_partial) : host_(geometry), forgets_(forgets_partial) {}
  Result<std::vector<float>> decode(std::uint32_t id, std::uint32_t at, std::span<const TokenId> tokens) override {
    return host_.decode(id, at, tokens);
  }
  Result<Bytes> save(std::uint32_t id, bool is_partial) override { return host_.save(id, is_partial); }
  Status load(std::uint32_t id, std::span<const std::byte> blob, bool is_partial) override {
    return is_partial == forgets_ ? Status::ok() : host_.load(id, blob, is_partial);
  }
  void share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) override {
    host_.share(from, to, begin, end);
  }
  void clear(std::uint32_t id) override { host_.clear(id); }
  std::uint32_t vocabulary_size() const override { return host_.vocabulary_size(); }

 private:
  FakeSequenceHost host_;
  const bool forgets_;
};

TEST(SelfProbe, RefusesAnEngineThatDoesNotRestoreAPart) {
  for (const auto& [name, geometry] : all_geometries()) {
    for (const bool forgets_partial : {true, false}) {
      if (forgets_partial ? !geometry.has_partial_form() : !geometry.full) continue;
      SCOPED_TRACE(name);
      ForgetfulHost host(geometry, forgets_partial);
      const auto report = probe_model(host, settings_of(geometry));
      ASSERT_FALSE(report);
      EXPECT_EQ(report.status().code(), StatusCode::kUnsupported);
      EXPECT_TRUE(report.status().message().starts_with("the-model cannot be cached: ")) << report.status().message();
    }
  }
}

TEST(SelfProbe, RefusesAWindowThatTheFileDoesNotName) {
  const BlobGeometry geometry = all_geometries()[3].geometry;
  FakeSequenceHost host(geometry);
  ProbeSettings settings = settings_of(geometry);
  settings.window_tokens = 0;
  EXPECT_FALSE(probe_model(host, settings));
}

TEST(SequenceExport, RefusesASequenceThatStandsElsewhere) {
  const BlobGeometry geometry = all_geometries()[4].geometry;  // a hybrid
  FakeSequenceHost host(geometry);
  const std::vector<TokenId> tokens(8, 3);
  ASSERT_TRUE(host.decode(0, 0, tokens));
  EXPECT_TRUE(SequenceExport::take(host, geometry, 0, 1, 4, 8));
  EXPECT_EQ(SequenceExport::take(host, geometry, 0, 1, 0, 4).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(SequenceExport::take(host, geometry, 0, 1, 4, 12).status().code(), StatusCode::kCorrupt);
}

TEST(SequenceExport, GivesNoRowsOfOtherPositions) {
  const BlobGeometry geometry = all_geometries()[7].geometry;  // all parts
  FakeSequenceHost host(geometry);
  const std::vector<TokenId> tokens(12, 3);
  ASSERT_TRUE(host.decode(0, 0, tokens));
  const auto exported = SequenceExport::take(host, geometry, 0, 1, 4, 12);
  ASSERT_TRUE(exported) << exported.status().to_string();
  Bytes page(geometry.full->page_bytes(4)), window(geometry.window->page_bytes(6));
  EXPECT_TRUE(exported->full_page(12, 4, page).is_ok());
  EXPECT_FALSE(exported->full_page(4, 4, page).is_ok());
  EXPECT_TRUE(exported->window_page(12, 6, window).is_ok());
  EXPECT_FALSE(exported->window_page(11, 6, window).is_ok());
  EXPECT_TRUE(check_checkpoint(exported->checkpoint(), *geometry.recurrent, 12).is_ok());
}

TEST(RestoreSequence, RefusesACheckpointOfAnotherPosition) {
  const BlobGeometry geometry = all_geometries()[4].geometry;
  FakeSequenceHost host(geometry);
  const std::vector<TokenId> tokens(8, 3);
  ASSERT_TRUE(host.decode(0, 0, tokens));
  const auto exported = SequenceExport::take(host, geometry, 0, 1, 0, 8);
  ASSERT_TRUE(exported);
  Bytes page(geometry.full->page_bytes(4));
  ASSERT_TRUE(exported->full_page(4, 4, page).is_ok());
  const std::vector<PageBytes> pages = {page};
  const RestoreParts parts{4, 4, pages, {}, {}, exported->checkpoint()};
  EXPECT_EQ(restore_sequence(host, geometry, parts, 2, 1).code(), StatusCode::kCorrupt);
  const RestoreParts without{4, 4, pages, {}, {}, {}};
  EXPECT_EQ(restore_sequence(host, geometry, without, 2, 1).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace larder::llama
