// SPDX-License-Identifier: Apache-2.0
#include "metadata/journal_records.h"

#include <string>

#include "base/bytes.h"

namespace larder::metadata {
namespace {

constexpr std::uint32_t kFormat = 1;
constexpr char kOwner = 0, kConfirmed = 1;
constexpr std::size_t kPageKeyBytes = 1 + 4 + 4 + 1;

// A few bytes on the stack.
template <std::size_t N>
class Text {
 public:
  Text& add(char byte) {
    bytes_[size_++] = byte;
    return *this;
  }
  Text& add_big(std::uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) add(static_cast<char>(number >> shift & 0xFF));
    return *this;
  }
  Text& add_le(std::uint64_t number) {
    store_le(bytes_ + size_, number);
    size_ += sizeof number;
    return *this;
  }
  Text& add(std::string_view bytes) {
    size_ += bytes.copy(bytes_ + size_, bytes.size());
    return *this;
  }
  [[nodiscard]] std::string_view view() const { return {bytes_, size_}; }

 private:
  char bytes_[N];
  std::size_t size_ = 0;
};

std::uint32_t load_big(const char* from) {
  std::uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<unsigned char>(from[i]);
  return number;
}

Text<kPageKeyBytes> page_key(NamespaceId id, const PageRef& ref, char kind) {
  Text<kPageKeyBytes> key;
  key.add('p').add_big(id).add_big(static_cast<std::uint32_t>(ref.page)).add(kind);
  return key;
}

Text<5> id_key(char kind, NamespaceId id) {
  Text<5> key;
  key.add(kind).add_big(id);
  return key;
}

Status strange(const char* what) { return corrupt(std::string("the metadata journal has a strange ") + what); }

// The records of one page come one after the other: its owner is kept until the next page, or the end.
class PageReader {
 public:
  explicit PageReader(const RecordReader& reader) : reader_(reader) {}
  Status read(std::string_view key, std::string_view value) {
    if (key.size() != kPageKeyBytes || value.size() < 8) return strange("page record");
    const NamespaceId id = load_big(key.data() + 1);
    const std::uint64_t page = load_big(key.data() + 5), generation = load_le<std::uint64_t>(value.data());
    if (key.back() == kConfirmed) {
      const bool is_same = has_page_ && id == id_ && page == page_.ref.page && generation == page_.ref.generation;
      if (is_same && !key_.empty()) page_.is_stored = true;
      return Status::ok();
    }
    LARDER_RETURN_IF_ERROR(finish());
    if (key.back() != kOwner || value.size() < 16 || value.size() > 16 + kMaxKeyBytes) return strange("page record");
    id_ = id;
    page_ = {{page, generation}, load_le<std::uint64_t>(value.data() + 8), {}, false};
    key_ = value.substr(16);
    has_page_ = true;
    return Status::ok();
  }
  Status finish() {
    if (!has_page_) return Status::ok();
    has_page_ = false;
    page_.key = key_;
    return reader_.on_page(id_, page_);
  }

 private:
  const RecordReader& reader_;
  bool has_page_ = false;
  NamespaceId id_ = 0;
  RecordedPage page_;
  std::string key_;
};

Status read_format(std::string_view value) {
  if (value.size() != 8) return strange("format version");
  const std::uint64_t format = load_le<std::uint64_t>(value.data());
  if (format == kFormat) return Status::ok();
  return unsupported("the metadata journal has format " + std::to_string(format) + ", this program reads " +
                     std::to_string(kFormat));
}

}  // namespace

void record_format(JournalBatch& batch) { batch.put("f", Text<8>().add_le(kFormat).view()); }

void record_namespace(JournalBatch& batch, NamespaceId id, const MetadataNamespace& name_space, std::uint64_t pages) {
  Text<16 + kMaxNamespaceBytes> value;
  value.add_le(pages).add_le(static_cast<std::uint64_t>(name_space.rank)).add(name_space.name);
  batch.put(id_key('n', id).view(), value.view());
}

void record_generations(JournalBatch& batch, NamespaceId id, std::uint64_t end) {
  batch.put(id_key('g', id).view(), Text<8>().add_le(end).view());
}

void record_reserved(JournalBatch& batch, NamespaceId id, const PageRef& ref, std::uint64_t parent_hash,
                     std::string_view key) {
  Text<16 + kMaxKeyBytes> value;
  value.add_le(ref.generation).add_le(parent_hash).add(key);
  batch.put(page_key(id, ref, kOwner).view(), value.view());
}

void record_confirmed(JournalBatch& batch, NamespaceId id, const PageRef& ref) {
  batch.put(page_key(id, ref, kConfirmed).view(), Text<8>().add_le(ref.generation).view());
}

void record_forgotten(JournalBatch& batch, NamespaceId id, const PageRef& ref) {
  record_reserved(batch, id, ref, 0, {});
}

Result<bool> read_records(Journal& journal, const RecordReader& reader) {
  bool has_format = false, has_records = false;
  PageReader pages(reader);
  const auto each = [&](std::string_view key, std::string_view value) -> Status {
    has_records = true;
    if (key == "f") {
      has_format = true;
      return read_format(value);
    }
    // "f" comes before all else in the order of keys.
    if (!has_format || key.size() < 5) return strange("record, or no format version");
    const NamespaceId id = load_big(key.data() + 1);
    if (key[0] == 'p') return pages.read(key, value);
    if (key[0] == 'g' && key.size() == 5 && value.size() == 8) {
      return reader.on_generations(id, load_le<std::uint64_t>(value.data()));
    }
    if (key[0] == 'n' && key.size() == 5 && value.size() >= 16) {
      const auto rank = static_cast<std::int64_t>(load_le<std::uint64_t>(value.data() + 8));
      return reader.on_namespace(id, {rank, std::string(value.substr(16))}, load_le<std::uint64_t>(value.data()));
    }
    return strange("record");
  };
  LARDER_RETURN_IF_ERROR(journal.replay(each));
  LARDER_RETURN_IF_ERROR(pages.finish());
  return has_records;
}

}  // namespace larder::metadata
