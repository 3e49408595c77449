// SPDX-License-Identifier: Apache-2.0
// The probe refuses engines that do one thing wrong: the real libllama behind a host with a defect.
#include "engine/llama/self_probe.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/llama/llama_rig.h"

namespace larder::llama {
namespace {

using llama_test::LoadedModel;
using llama_test::random_model;
using Bytes = std::vector<std::byte>;

// Forwards, but for what a test replaces.
class DefectiveHost final : public SequenceHost {
 public:
  explicit DefectiveHost(SequenceHost& host) : host_(host) {}

  std::function<void(Bytes&)> on_save, on_load;
  std::function<void(std::vector<float>&)> on_decode;
  bool drops_partial_loads = false, shares_too_little = false;

  Result<std::vector<float>> decode(std::uint32_t sequence, std::uint32_t position,
                                    std::span<const TokenId> tokens) override {
    auto logits = host_.decode(sequence, position, tokens);
    if (logits && on_decode) on_decode(*logits);
    return logits;
  }
  Result<Bytes> save(std::uint32_t sequence, bool is_partial) override {
    auto bytes = host_.save(sequence, is_partial);
    if (bytes && on_save) on_save(*bytes);
    return bytes;
  }
  Status load(std::uint32_t sequence, std::span<const std::byte> blob, bool is_partial) override {
    if (is_partial && drops_partial_loads) return Status::ok();
    Bytes bytes(blob.begin(), blob.end());
    if (on_load) on_load(bytes);
    return host_.load(sequence, bytes, is_partial);
  }
  void share(std::uint32_t from, std::uint32_t to, std::uint32_t begin, std::uint32_t end) override {
    host_.share(from, to, begin, shares_too_little ? end - 1 : end);
  }
  void clear(std::uint32_t sequence) override { host_.clear(sequence); }
  std::uint32_t vocabulary_size() const override { return host_.vocabulary_size(); }

 private:
  SequenceHost& host_;
};

class SelfProbeOfLibllama : public testing::Test {
 protected:
  Result<ProbeReport> probe(SequenceHost& host, float tolerance = 0) {
    ProbeSettings settings;
    settings.model = "the-model";
    settings.tolerance = tolerance;
    return probe_model(host, settings);
  }
  void expect_refused(DefectiveHost& host, const char* text) {
    const auto report = probe(host);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.status().code(), StatusCode::kUnsupported);
    EXPECT_TRUE(report.status().message().starts_with("the-model cannot be cached: ")) << report.status().message();
    EXPECT_NE(report.status().message().find(text), std::string::npos) << report.status().message();
    EXPECT_TRUE(probe(*host_).is_ok()) << "the probe leaves something behind";
  }

  const LoadedModel model_{random_model("qwen35"), "_probe"};
  const std::unique_ptr<LlamaHost> host_ = model_.open({.context_tokens = 512, .batch_tokens = 16});
};

TEST_F(SelfProbeOfLibllama, RefusesAnotherByteInARow) {
  DefectiveHost host(*host_);
  host.on_load = [](Bytes& bytes) { bytes[bytes.size() / 2] ^= std::byte{0x40}; };
  expect_refused(host, "restoring");
}

TEST_F(SelfProbeOfLibllama, RefusesStateThatDoesNotArrive) {
  DefectiveHost host(*host_);
  host.drops_partial_loads = true;
  expect_refused(host, "restoring");
}

TEST_F(SelfProbeOfLibllama, RefusesPartsThatItDoesNotKnow) {
  DefectiveHost host(*host_);
  host.on_save = [](Bytes& bytes) { bytes.resize(bytes.size() + 8); };
  expect_refused(host, "exporting");
}

TEST_F(SelfProbeOfLibllama, RefusesSharingThatLosesATokenSilently) {
  DefectiveHost host(*host_);
  host.shares_too_little = true;
  expect_refused(host, "exporting");
}

TEST_F(SelfProbeOfLibllama, RefusesLogitsThatDriftBeyondTheTolerance) {
  DefectiveHost host(*host_);
  float noise = 0;
  host.on_decode = [&](std::vector<float>& logits) { logits[0] += noise += 1e-6f; };
  expect_refused(host, "differ");
  const auto report = probe(host, 1e-2f);
  ASSERT_TRUE(report) << report.status().to_string();
  EXPECT_GT(report->difference, 0);
}

TEST_F(SelfProbeOfLibllama, RefusesSettingsThatProveNothing) {
  ProbeSettings settings;
  settings.pages = 2;
  EXPECT_EQ(probe_model(*host_, settings).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SelfProbeOfLibllama, AnEngineWithoutRoomIsNamed) {
  const auto small = model_.open({.context_tokens = 256, .batch_tokens = 16});
  ProbeSettings settings;
  settings.model = "the-model";
  settings.pages = 40;
  const auto report = probe_model(*small, settings);
  ASSERT_FALSE(report);
  EXPECT_NE(report.status().message().find("the-model"), std::string::npos);
}

}  // namespace
}  // namespace larder::llama
