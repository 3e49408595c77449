// SPDX-License-Identifier: Apache-2.0
// Seeds of formats come from the encoders, behind the few bytes that a target reads as choices; seeds of targets that
// read nothing but choices are numbers from a seed, small ones more often than large ones.
#include "fuzz/replay_seeds.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/rng.h"
#include "controller/ranks/rank_wire.h"
#include "engine/llama/blob_test_util.h"
#include "engine/llama/gguf_test_util.h"
#include "engine/llama/slot_file.h"
#include "metadata/metadata_wire.h"
#include "storage/envelope.h"
#include "storage/file/segment_format.h"
#include "storage/file/store_archive.h"
#include "storage/shared/share_wire.h"

namespace larder::fuzz {
namespace {

using Bytes = std::vector<std::byte>;
using namespace larder::file_store;

constexpr const char* kChoices = "choices_";  // the names of seeds that are choices begin so, and no others do

class Corpus {
 public:
  void add(std::string_view target, std::string_view name, std::span<const std::byte> bytes) {
    seeds_[std::string(target)][std::string(name)] = {bytes.begin(), bytes.end()};
  }
  // By target, then by name.
  [[nodiscard]] const std::map<std::string, std::map<std::string, Bytes>>& seeds() const { return seeds_; }

 private:
  std::map<std::string, std::map<std::string, Bytes>> seeds_;
};

Bytes behind(std::initializer_list<unsigned> choices, std::span<const std::byte> bytes) {
  Bytes out;
  for (const unsigned choice : choices) out.push_back(static_cast<std::byte>(choice));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

Digest256 digest_of(std::uint8_t first) {
  Digest256 digest;
  digest.bytes[0] = first;
  digest.bytes[31] = 0xee;
  return digest;
}

// Numbers for a target that makes choices. One in three is small, so that the first of several cases come often.
void add_choices(Corpus& corpus, std::string_view target, std::uint64_t files, std::size_t bytes) {
  for (std::uint64_t i = 0; i < files; ++i) {
    Rng rng(i + 1);
    Bytes out(bytes >> (i % 3));
    for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(rng.chance(1, 3) ? 8 : 256));
    corpus.add(target, kChoices + std::to_string(i), out);
  }
}

void add_envelopes(Corpus& corpus) {
  Bytes payload(96, std::byte{0x5a});
  const Segment piece{payload.data(), payload.size()};
  Envelope e;
  e.key = digest_of(1);
  e.namespace_digest = digest_of(2);
  e.layout_fingerprint = digest_of(3);
  e.generation = 7;
  e.payload_bytes = payload.size();
  e.checksum = payload_checksum({&piece, 1});
  const EnvelopeBytes encoded = encode_envelope(e);
  Bytes page = behind({0, 1, 2, 3, 4, 5, 6, 7}, encoded);
  page.insert(page.end(), payload.begin(), payload.end());
  for (const unsigned mode : {0u, 1u, 2u}) {
    corpus.add("envelope", "page_mode_" + std::to_string(mode), behind({mode}, page));
  }
  Envelope logical;
  logical.pool = PoolName::kDraft;
  logical.flags = kEnvelopeCommitMark;
  corpus.add("envelope", "logical", behind({1, 9, 9, 9, 9, 9, 9, 9, 9}, encode_envelope(logical)));
}

std::vector<ListedPage> listed_pages(std::size_t count) {
  std::vector<ListedPage> pages(count);
  for (std::size_t i = 0; i < count; ++i) {
    ListedPage& page = pages[i];
    page.identity = {digest_of(1), digest_of(static_cast<std::uint8_t>(i % 2)),
                     i % 2 ? PoolName::kKv : PoolName::kMamba};
    page.key = digest_of(static_cast<std::uint8_t>(10 + i));
    page.parent = i == 0 ? Digest256{} : pages[i - 1].key;
    page.location = {3, 0, i == 2 ? 20'000u : 100u, 5 + i, {i, i}};
    page.group = static_cast<std::uint32_t>(i / 2);
  }
  return pages;
}

void add_segments(Corpus& corpus) {
  const StoreId store{1, 2, 3};
  const Bytes header = encode_segment_header({store, 3, 1'700'000'000, 5});
  corpus.add("segment", "header", behind({0, 1}, std::span(header).first(kRecordHeaderBytes)));
  for (const std::size_t count : {std::size_t{1}, std::size_t{4}}) {
    RecordHead head{store, 3, kBlockBytes, 0, kBlockBytes, listed_pages(count)};
    head.record_bytes = lay_out_record(head.pages, head.start).record_bytes;
    corpus.add("segment", "record_" + std::to_string(count), behind({1, 1}, encode_record_head(head)));
    Footer footer{store, 3, head.start + head.record_bytes, 20, 1, head.pages, count == 4};
    for (ListedPage& page : footer.pages) page.group = 0;
    const Bytes encoded = encode_footer(footer);
    const Trailer trailer = decode_trailer(std::span(encoded).last(kBlockBytes)).value_or({});
    corpus.add("segment", "footer_" + std::to_string(count),
               behind({2, 1}, std::span(encoded).first(static_cast<std::size_t>(trailer.footer_bytes))));
    corpus.add("segment", "trailer_" + std::to_string(count),
               behind({3, 1}, std::span(encoded).last(kBlockBytes).first(kRecordHeaderBytes)));
  }
  Footer empty;
  empty.segment = 1;
  empty.start = kBlockBytes;
  const Bytes encoded = encode_footer(empty);
  corpus.add("segment", "trailer_0", behind({3, 1}, std::span(encoded).last(kBlockBytes).first(kRecordHeaderBytes)));
  const std::vector<Cleared> cleared = {{digest_of(1), 9}, {Digest256{}, 4}};
  corpus.add("segment", "cleared", behind({4, 1}, encode_cleared(cleared)));
  const std::string format = format_text({store, 2}), name = segment_name(42);
  corpus.add("segment", "format", behind({5, 0}, std::as_bytes(std::span(format))));
  corpus.add("segment", "name", behind({5, 0}, std::as_bytes(std::span(name))));
}

// An archive of two groups, and one of none.
void add_archives(Corpus& corpus) {
  ArchiveGroup group;
  group.namespace_digest = digest_of(1);
  group.pages.resize(2);
  group.pages[1].pool = PoolName::kMamba;
  const Bytes head = encode_archive_group(group);
  corpus.add("archive", "header", behind({0, 0, 1}, encode_archive_header({{1}, 7})));
  corpus.add("archive", "group", behind({0, 1, 1}, head));
  corpus.add("archive", "end", behind({0, 2, 1}, encode_archive_end({2, 4, 8, 9})));
  Bytes file;
  for (const auto& piece : {Bytes(), head}) {
    const auto header = encode_archive_header({{1}, 7});
    const auto end = encode_archive_end({});
    file.assign(header.begin(), header.end());
    file.insert(file.end(), piece.begin(), piece.end());
    file.insert(file.end(), end.begin(), end.end());
    corpus.add("archive", piece.empty() ? "file_empty" : "file_of_one", behind({1}, file));
  }
}

void add_messages(Corpus& corpus) {
  using namespace larder::metadata;
  const MetadataNamespace name;
  const std::vector<MetadataKeys> found = {{&name, {"a", "b"}}};
  const std::vector<ReserveItems> wanted = {{&name, {{"a"}, {"b", "a"}, {"c", "z"}}}};
  const std::vector<ConfirmItem> items = {{&name, "a", {1, 2}}};
  const ConfirmRequest request{{{1, 2}, 3}, {items, {}}, items, true}, resting{{{1, 2}, 3}, {}, items, false, true};
  const auto add = [&](std::string_view what, const Result<std::string>& message) {
    if (message.is_ok()) corpus.add("metadata_wire", what, behind({0, 0, 0}, std::as_bytes(std::span(*message))));
  };
  add("initialize", encode_initialize(name, 8));
  add("find", encode_find(found, Nanos(5)));
  add("reserve", encode_reserve({{1, 2}, 3}, wanted, Nanos(5)));
  add("confirm", encode_confirm(request));
  add("confirm_resting", encode_confirm(resting));
  add("remove", encode_remove(items));
  add("clear", encode_clear(name, "a"));
  add("stats", encode_stats());
}

void add_share_frames(Corpus& corpus) {
  const auto add = [&](std::string_view what, const std::string& frame) {
    const std::string_view body = std::string_view(frame).substr(share::kHeadBytes);
    corpus.add("shared_wire", what, behind({0}, std::as_bytes(std::span(body))));
  };
  share::ScopeEntry entry{3, {}};
  entry.scope.set_pool(PoolName::kKv, digest_of(1));
  entry.scope.set_pool(PoolName::kMamba, digest_of(2), true);
  share::Welcome welcome;
  welcome.info.name = "file";
  const share::Terms terms{3, Urgency::kSpeculative, 1000};
  const share::WriteAsk::Item page{PoolName::kKv, digest_of(4), digest_of(5), {4096, 100}};
  add("hello", share::encode_hello({share::kVersion, 1 << 20}));
  add("welcome", share::encode_welcome(welcome));
  add("scope", share::encode_scope(entry));
  add("exists", share::encode_exists(1, {terms, {PoolName::kKv}, {digest_of(4), digest_of(5)}}));
  add("read", share::encode_read(1, {terms, {{PoolName::kKv, digest_of(4), {0, 100}}}}));
  add("write", share::encode_write(1, {terms, true, {{page, page}, {}}}));
  add("presence", share::encode_presence(1, {{}, {{PoolName::kKv, std::vector<bool>(9, true)}}}));
  add("statuses", share::encode_statuses(1, {Status::ok(), not_found("no")}));
  for (std::uint64_t i = 0; i < 8; ++i) {
    Rng rng(i + 1);
    Bytes out(512 >> (i % 3));
    for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(rng.chance(1, 3) ? 8 : 256));
    out.front() = static_cast<std::byte>(1 + i % 2);  // a host, a client
    corpus.add("shared_wire", kChoices + std::to_string(i), out);
  }
}

void add_rank_frames(Corpus& corpus) {
  const auto add = [&](std::string_view what, const std::string& body) {
    corpus.add("rank_session", what, behind({0}, std::as_bytes(std::span(body))));
  };
  const std::vector<AgreedEvent> events = {{OpId(1), {3, ~0ull}}, {OpId(2), {}}};
  add("challenge", ranks::encode(ranks::Challenge{ranks::kVersion, digest_of(1)}));
  add("hello", ranks::encode(ranks::Hello{ranks::kVersion, digest_of(2), 1, 2, {{"model", "small"}}}));
  add("words", ranks::encode(ranks::Words{not_found("no")}));
  add("progress", ranks::encode(ranks::Progress{1, 2}));
  add("reports", ranks::encode(ranks::Reports{{1, 2}, events}));
  add("plans", ranks::encode(ranks::Plans{events, {{1, 0}, {2, 2}}}));
  for (std::uint64_t i = 0; i < 9; ++i) {
    Rng rng(i + 1);
    Bytes out(512 >> (i % 3));
    for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(rng.chance(1, 3) ? 8 : 256));
    out.front() = static_cast<std::byte>(1 + i % 3);  // a stranger, a rank, a leader
    corpus.add("rank_session", kChoices + std::to_string(i), out);
  }
}

void add_llama_blobs(Corpus& corpus) {
  using namespace larder::llama;
  const auto geometries = blob_test::all_geometries();
  for (unsigned i = 0; i < geometries.size(); ++i) {
    const auto& [name, geometry] = geometries[i];
    const unsigned form = i % 3 == 2 ? 3 : i % 3;  // with a header, without, of the changing parts
    const Bytes blob = blob_test::BlobWriter(geometry).write(5, {(form & 1) == 0, (form & 2) != 0});
    corpus.add("llama_blob", name, behind({0, i, form}, blob));
    if (i % 3 != 1) continue;
    corpus.add("llama_blob", "learn_" + name, behind({1, i, 0}, blob_test::BlobWriter(geometry).write(6)));
  }
  const std::vector<TokenId> tokens = {1, 2, 3}, packed = {0xffffffff, 1, 2, 8, 9, 0};
  for (const auto* words : {&tokens, &packed}) {
    Bytes file(slot_head_bytes(words->size()) + 4);
    write_slot_head(*words, std::span(file).first(slot_head_bytes(words->size())));
    corpus.add("llama_blob", words == &packed ? "slot_packed" : "slot", behind({2, 0, 0}, file));
  }
  add_choices(corpus, "llama_blob", 4, 48);
}

void add_llama_ggufs(Corpus& corpus) {
  using llama::gguf_test::GgufWriter;
  corpus.add("llama_gguf", "hybrid", behind({0, 0, 0}, llama::gguf_test::small_model().file(64)));
  GgufWriter sliding(2);
  sliding.text("general.architecture", "gemma3");
  for (const std::string_view key : {"block_count", "context_length", "embedding_length", "attention.head_count"}) {
    sliding.u32("gemma3." + std::string(key), 8);
  }
  sliding.u32("gemma3.attention.sliding_window", 16);
  corpus.add("llama_gguf", "sliding", behind({0, 0, 0}, sliding.file(0)));
  corpus.add("llama_gguf", "empty", behind({0, 9, 0}, GgufWriter().file(0)));
  add_choices(corpus, "llama_gguf", 4, 32);
}

Corpus make_corpus() {
  Corpus corpus;
  add_envelopes(corpus);
  add_segments(corpus);
  add_choices(corpus, "page_key", 6, 1024);
  add_choices(corpus, "journal", 8, 1536);
  add_choices(corpus, "segment_scan", 12, 256);
  add_choices(corpus, "store_check", 12, 256);
  add_archives(corpus);
  add_choices(corpus, "archive", 6, 128);
  add_messages(corpus);
  add_choices(corpus, "metadata_wire", 8, 1024);
  add_choices(corpus, "metadata_http", 8, 1024);
  add_share_frames(corpus);
  add_rank_frames(corpus);
  add_llama_blobs(corpus);
  add_llama_ggufs(corpus);
  add_choices(corpus, "restore_point", 9, 64);
  add_choices(corpus, "layer_copies", 6, 64);
  add_choices(corpus, "tree", 9, 1024);
  add_choices(corpus, "cache", 9, 768);
  add_choices(corpus, "file_store", 9, 512);
  return corpus;
}

Status write_file(const std::string& path, std::span<const std::byte> bytes) {
  LARDER_ASSIGN_OR_RETURN(const auto file,
                          real_file_system().open(path, {.write = true, .create = true, .truncate = true}));
  return write_fully(*file, bytes, 0);
}

// A missing file has no bytes.
Result<Bytes> read_file(const std::string& path) {
  const auto file = real_file_system().open(path, {});
  if (!file && file.status().code() == StatusCode::kNotFound) return Bytes();
  if (!file) return file.status();
  LARDER_ASSIGN_OR_RETURN(const std::uint64_t size, (*file)->size_bytes());
  Bytes bytes(static_cast<std::size_t>(size));
  LARDER_RETURN_IF_ERROR(read_exactly(**file, bytes, 0));
  return bytes;
}

}  // namespace

Status write_seeds(const std::string& folder) {
  const Corpus corpus = make_corpus();
  for (const auto& [target, seeds] : corpus.seeds()) {
    LARDER_RETURN_IF_ERROR(real_file_system().make_dirs(join_path(folder, target)));
    for (const auto& [name, bytes] : seeds) {
      LARDER_RETURN_IF_ERROR(write_file(join_path(join_path(folder, target), name), bytes));
    }
  }
  return Status::ok();
}

Result<std::vector<std::string>> strange_seeds(const std::string& folder) {
  std::vector<std::string> strange;
  const Corpus corpus = make_corpus();
  for (const auto& [target, seeds] : corpus.seeds()) {
    const std::string place = join_path(folder, target);
    for (const auto& [name, bytes] : seeds) {
      LARDER_ASSIGN_OR_RETURN(const Bytes there, read_file(join_path(place, name)));
      if (there != bytes) strange.push_back(join_path(place, name) + " is not what is made");
    }
    LARDER_ASSIGN_OR_RETURN(const std::vector<std::string> names, real_file_system().list(place));
    for (const std::string& name : names) {
      if (name.starts_with(kChoices) && !seeds.contains(name)) {
        strange.push_back(join_path(place, name) + " is made no more");
      }
    }
  }
  return strange;
}

}  // namespace larder::fuzz
