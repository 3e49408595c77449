// SPDX-License-Identifier: Apache-2.0
// EmbeddedMetadata with a clock of its own, to be opened again and again.
#pragma once

#include <memory>
#include <utility>

#include "metadata/embedded_metadata.h"
#include "metadata/memory_journal.h"
#include "metadata/real_rocksdb_journal.h"
#include "tests/metadata/metadata_harness.h"

namespace larder::conformance {

[[nodiscard]] inline EmbeddedMetadataOptions embedded_test_options() {
  EmbeddedMetadataOptions options;
  options.max_lease = kMaxLease;
  options.max_ttl = kMaxTtl;
  options.max_io_lifetime = kMaxIoLifetime;
  return options;
}

class EmbeddedHarness : public MetadataHarness {
 public:
  EmbeddedHarness() { open(nullptr); }
  [[nodiscard]] MetadataService& service() override { return *service_; }
  void advance(Nanos by) override { clock_.advance(by); }
  [[nodiscard]] Status check() override { return service_->check(); }
  [[nodiscard]] ManualClock& clock() { return clock_; }

 protected:
  void close() { service_.reset(); }
  void open(std::unique_ptr<metadata::Journal> journal) {
    close();
    auto opened = EmbeddedMetadata::create(embedded_test_options(), clock_, std::move(journal));
    if (!opened) ADD_FAILURE() << opened.status().to_string();
    if (opened) service_ = std::move(*opened);
  }

 private:
  ManualClock clock_;
  std::unique_ptr<EmbeddedMetadata> service_;
};

}  // namespace larder::conformance
