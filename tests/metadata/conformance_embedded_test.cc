// SPDX-License-Identifier: Apache-2.0
// EmbeddedMetadata under the conformance suite: without a journal, with one in memory, and with one on RocksDB.
#include "tests/metadata/embedded_harness.h"
#include "tests/metadata/metadata_conformance.h"
#include "tests/support/temporary_directory.h"

namespace larder::conformance {
namespace {

class OnMemory final : public EmbeddedHarness {
 public:
  OnMemory() { (void)restart(); }
  [[nodiscard]] bool restart() override {
    open(metadata::open_memory_journal(disk_));
    return true;
  }

 private:
  std::shared_ptr<metadata::MemoryDisk> disk_ = std::make_shared<metadata::MemoryDisk>();
};

class OnRocksdb final : public EmbeddedHarness {
 public:
  OnRocksdb() { (void)restart(); }
  ~OnRocksdb() override { close(); }
  [[nodiscard]] bool restart() override {
    close();
    auto journal = metadata::open_rocksdb_journal(directory_.path());
    if (!journal) ADD_FAILURE() << journal.status().to_string();
    open(std::move(journal.value()));
    return true;
  }

 private:
  support::TemporaryDirectory directory_;
};

const MetadataUnderTest kMemory{"NoJournal", [] { return std::make_unique<EmbeddedHarness>(); }};
const MetadataUnderTest kJournal{"MemoryJournal", [] { return std::make_unique<OnMemory>(); }};
const MetadataUnderTest kRocksdb{"Rocksdb", [] { return std::make_unique<OnRocksdb>(); }};

INSTANTIATE_TEST_SUITE_P(Embedded, MetadataConformance, testing::Values(kMemory, kJournal, kRocksdb), test_name);

}  // namespace
}  // namespace larder::conformance
