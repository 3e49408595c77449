// SPDX-License-Identifier: Apache-2.0
// The reference server's persisted state, from golden files in its own form and from broken ones.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file_system.h"
#include "metadata/memory_journal.h"
#include "server/json_reader.h"
#include "server/metadata_import.h"
#include "tests/metadata/embedded_harness.h"

namespace larder::conformance {
namespace {

std::string golden(const std::string& name) {
  const std::string path = std::string(LARDER_SOURCE_DIR) + "/tests/golden/metadata_reference/" + name;
  auto file = real_file_system().open(path, {});
  EXPECT_TRUE(file.is_ok()) << path;
  if (!file.is_ok()) return {};
  std::string text(static_cast<std::size_t>(*(*file)->size_bytes()), '\0');
  EXPECT_TRUE(read_exactly(**file, std::as_writable_bytes(std::span(text)), 0).is_ok());
  return text;
}

class ImportTest : public testing::Test {
 protected:
  void import(const std::string& text) {
    const auto imported = parse_reference_state(text);
    ASSERT_TRUE(imported.is_ok()) << imported.status().to_string();
    report_ = import_report(*imported);
    record_import(*imported, batch_);
    auto opened = EmbeddedMetadata::create(embedded_test_options(), clock_, make_imported_journal(batch_));
    ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
    service_ = std::move(*opened);
    EXPECT_TRUE(service_->check().is_ok());
  }
  // Pages, or -1.
  std::vector<int> pages(const MetadataNamespace& name_space, const std::vector<std::string>& keys) {
    std::vector<int> out;
    for (const auto& ref : Talker(*service_, name_space).find(keys))
      out.push_back(ref ? static_cast<int>(ref->page) : -1);
    return out;
  }

  ManualClock clock_;
  metadata::JournalBatch batch_;
  std::unique_ptr<EmbeddedMetadata> service_;
  std::string report_;
};

TEST_F(ImportTest, NamespacesPagesAndKeysAreThere) {
  import(golden("with_namespaces.json"));
  EXPECT_EQ(report_,
            "0:kv: 3 keys in 8 pages, 1 of them neither free nor mapped\n0:mamba: 1 key in 4 pages\n"
            "1:kv: 0 keys in 8 pages\n");
  EXPECT_EQ(pages({0, "kv"}, {"new", "older", "oldest", "new_mamba"}), (std::vector<int>{6, 5, 7, -1}));
  EXPECT_EQ(pages({0, "mamba"}, {"new", "new_mamba"}), (std::vector<int>{-1, 3}));
  EXPECT_EQ(Talker(*service_, {1, "kv"}).stats().free, 8u);
  EXPECT_EQ(service_->initialize({0, "kv"}, 100).value_or(0), 8u) << "the size of the files is known";
}

TEST_F(ImportTest, KeysOfBeforeNamespacesAreKv) {
  import(golden("before_namespaces.json"));
  EXPECT_EQ(report_, "0:kv: 3 keys in 6 pages\n3:kv: 2 keys in 2 pages\n");
  EXPECT_EQ(pages({0, "kv"}, {"a", "b", "c"}), (std::vector<int>{5, 4, 3}));
  EXPECT_EQ(pages({3, "kv"}, {"x", "y"}), (std::vector<int>{1, 0}));
}

TEST_F(ImportTest, TheOrderOfUseIsTheOrderOfEviction) {
  import(golden("before_namespaces.json"));
  clock_.advance(std::max(kMaxLease, kMaxIoLifetime) + kSecond);  // what may be read or written after a restart
  Talker kv(*service_, {0, "kv"});
  EXPECT_EQ(outcomes(kv.reserve(session_of(1), {"n1", "n2", "n3", "n4"})), "RRRR");
  EXPECT_EQ(kv.presence({"a", "b", "c"}), "011");
  EXPECT_EQ(outcomes(kv.reserve(session_of(2), {"n5"})), "R");
  EXPECT_EQ(kv.presence({"a", "b", "c"}), "001");
}

TEST_F(ImportTest, PagesThatNobodyKnowsRestWhereverTheyLie) {
  import(R"({"0:kv":{"num_pages":8,"free_pages":[0,1],"key_to_index":[["a",2],["b",3]]},)"
         R"("1:kv":{"num_pages":8,"free_pages":[0,4,5,6,7],"key_to_index":[["a",2],["b",3]]}})");
  EXPECT_EQ(report_,
            "0:kv: 2 keys in 8 pages, 4 of them neither free nor mapped\n"
            "1:kv: 2 keys in 8 pages, 1 of them neither free nor mapped\n");
  Talker kv(*service_, {0, "kv"});
  EXPECT_EQ(kv.stats().quarantined, 6u);
  EXPECT_EQ(outcomes(kv.reserve(session_of(1), {"n"})), "F") << "somebody may be writing to pages 4 to 7";
  EXPECT_EQ(Talker(*service_, {1, "kv"}).stats().free, 4u) << "above all others: nobody has them";
  clock_.advance(std::max(kMaxLease, kMaxIoLifetime) + kSecond);
  EXPECT_EQ(kv.stats().free, 6u);
  EXPECT_EQ(kv.presence({"a", "b"}), "11");
  EXPECT_EQ(outcomes(kv.reserve(session_of(1), {"n"})), "R");
  EXPECT_TRUE(service_->check().is_ok());
}

TEST_F(ImportTest, ANameIsTakenOnlyIfTheServiceReadsItBack) {
  const auto state_of = [](const std::string& name) {
    return "{\"" + name + R"(":{"num_pages":2,"free_pages":[0],"key_to_index":[["a",1]]}})";
  };
  const std::string longest(kMaxNamespaceBytes - 2, 'n');  // "0:" belongs to it
  for (const std::string& name : {"0:" + longest + 'n', "-1:" + longest, "0:" + std::string(200, 'n')}) {
    const auto imported = parse_reference_state(state_of(name));
    EXPECT_EQ(imported.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(imported.status().message().find("1 to 128 bytes with its rank"), std::string::npos) << name;
  }
  import(state_of("0:" + longest));
  EXPECT_EQ(pages({0, longest}, {"a"}), std::vector<int>{1});
}

TEST_F(ImportTest, AnImportIsWrittenOnceAndOnlyIntoAnEmptyJournal) {
  import(golden("with_namespaces.json"));
  const auto disk = std::make_shared<metadata::MemoryDisk>();
  ASSERT_TRUE(import_into(*metadata::open_memory_journal(disk), batch_).is_ok());
  EXPECT_EQ(import_into(*metadata::open_memory_journal(disk), batch_).code(), StatusCode::kConflict);
  disk->cut_power(0);
  auto opened = EmbeddedMetadata::create(embedded_test_options(), clock_, metadata::open_memory_journal(disk));
  ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
  EXPECT_EQ(Talker(**opened, {0, "kv"}).presence({"new", "older", "oldest"}), "111");
}

// It is the operator's own file: that a body of a client may have so many values is no limit of it. What stands in
// strings counts there, too, so that few keys do for many.
TEST_F(ImportTest, MoreValuesThanABodyMayHaveAreTaken) {
  constexpr std::size_t kKeys = 50'000;
  const std::string weight(kMostJsonValues / 10 / kKeys + 1, '{');
  std::string text = "{\"0:kv\":{\"num_pages\":" + std::to_string(kKeys) + ",\"free_pages\":[],\"key_to_index\":[";
  for (std::size_t i = 0; i < kKeys; ++i) {
    const std::string number = std::to_string(i);
    text += (i == 0 ? "[\"" : ",[\"") + weight + number + "\"," + number + "]";
  }
  text += "]}}";
  EXPECT_FALSE(check_json_values(text).is_ok());
  const auto imported = parse_reference_state(text);
  ASSERT_TRUE(imported.is_ok()) << imported.status().to_string();
  ASSERT_EQ(imported->size(), 1u);
  EXPECT_EQ(imported->front().keys.size(), kKeys);
  EXPECT_EQ(imported->front().keys.back().first, weight + std::to_string(kKeys - 1));
}

TEST_F(ImportTest, WhatIsInconsistentIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([1])", "JSON object"},
      {R"({"0:kv":)", "malformed JSON"},
      {R"({"x:kv":{}})", "'x:kv'"},
      {R"({"0:":{}})", "'0:'"},
      {R"({"0:a:b":{}})", "'0:a:b'"},
      {R"({"0:kv":[]})", "'0:kv' must be an object"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[]}})", "'0:kv' must have num_pages, free_pages and key_to_index"},
      {R"({"0:kv":{"num_pages":0,"free_pages":[],"key_to_index":[]}})", "'0:kv': num_pages"},
      {R"({"0:kv":{"num_pages":-1,"free_pages":[],"key_to_index":[]}})", "'0:kv': num_pages"},
      {R"({"0:kv":{"num_pages":1e9,"free_pages":[],"key_to_index":[]}})", "'0:kv': num_pages"},
      {R"({"0:kv":{"num_pages":2,"free_pages":{},"key_to_index":[]}})", "must be arrays"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[2],"key_to_index":[]}})", "free_pages[0] is page 2, but there are 2"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[1,1],"key_to_index":[]}})", "page 1 is there twice"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[1],"key_to_index":[["a",1]]}})", "page 1 is there twice"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[["a",1],["b",1]]}})", "key_to_index[1]"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[["a",1],["a",0]]}})", "a key that was there before"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[["a"]]}})", "must be [key, page]"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[[1,1]]}})", "must be [key, page]"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[["a",-1]]}})", "must be a page"},
      {R"({"0:kv":{"num_pages":2,"free_pages":[],"key_to_index":[["a",0.5]]}})", "must be a page"},
      {R"({"0":{"num_pages":2,"free_pages":[],"key_to_index":[]},"0:kv":{"num_pages":2,"free_pages":[],)"
       R"("key_to_index":[]}})",
       "'0:kv' is there twice"},
  };
  for (const auto& [text, part] : cases) {
    const auto imported = parse_reference_state(text);
    EXPECT_EQ(imported.status().code(), StatusCode::kInvalidArgument) << text;

    EXPECT_NE(imported.status().message().find(part), std::string::npos) << text << "\n" << imported.status().message();
  }
}

}  // namespace
}  // namespace larder::conformance
