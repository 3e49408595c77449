// SPDX-License-Identifier: Apache-2.0
#include "storage/mooncake/helper_wire.h"

#include "base/bytes.h"

namespace larder::mooncake {
namespace {

constexpr std::string_view kRequestMagic = "LMQ1", kReplyMagic = "LMR1";

void append_number(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// As JSON has strings. Bytes that are no UTF-8, which a configuration may have, go as they are; the helper replaces
// them.
std::string json_text(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

std::string json_list(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) {
    if (&text != texts.data()) out += ',';
    out += json_text(text);
  }
  return out += ']';
}

std::string word(bool value) { return value ? "true" : "false"; }

// Written by hand: this is what each page costs.
void append_objects(std::string& out, const std::vector<NamedObject>& objects) {
  out += R"("names":[)";
  for (const NamedObject& object : objects) {
    if (&object != objects.data()) out += ',';
    out += '"';
    out += object.name;  // digits, letters and -._ only
    out += '"';
  }
  out += R"(],"at":[)";
  for (const NamedObject& object : objects) {
    if (&object != objects.data()) out += ',';
    out += '[';
    for (const Place& place : object.places) {
      if (&place != object.places.data()) out += ',';
      out += std::to_string(place.memory) + ',' + std::to_string(place.offset) + ',' + std::to_string(place.bytes);
    }
    out += ']';
  }
  out += ']';
}

}  // namespace

std::string setup_request(const SetupRequest& r) {
  return R"({"op":"setup","master_server_address":)" + json_text(r.master_server_address) + R"(,"local_hostname":)" +
         json_text(r.local_hostname) + R"(,"metadata_server":)" + json_text(r.metadata_server) + R"(,"protocol":)" +
         json_text(r.protocol) + R"(,"device_name":)" + json_text(r.device_name) + R"(,"package_directory":)" +
         json_text(r.package_directory) + R"(,"global_segment_size":)" + std::to_string(r.global_segment_size) +
         R"(,"local_buffer_size":)" + std::to_string(r.local_buffer_size) + R"(,"replica_num":)" +
         std::to_string(r.replica_num) + R"(,"soft_pin":)" + word(r.soft_pin) + R"(,"groups":)" + word(r.groups) + '}';
}

std::string exists_request(const std::vector<std::string>& names) {
  return R"({"op":"exists","names":)" + json_list(names) + '}';
}

std::string get_request(const std::vector<NamedObject>& objects, const std::vector<std::size_t>& parts) {
  std::string out = R"({"op":"get",)";
  append_objects(out, objects);
  out += R"(,"parts":[)";
  for (const std::size_t& count : parts) {
    if (&count != parts.data()) out += ',';
    out += std::to_string(count);
  }
  return out += "]}";
}

std::string put_request(const std::vector<NamedObject>& objects, const std::vector<ObjectGroup>& groups) {
  std::string out = R"({"op":"put",)", tags;
  append_objects(out, objects);
  out += R"(,"groups":[)";
  for (const ObjectGroup& group : groups) {
    if (&group != groups.data()) out += ',', tags += ',';
    out += std::to_string(group.count);
    tags += '"' + group.tag + '"';
  }
  return out += R"(],"tags":[)" + tags + "]}";
}

std::string remove_request(const std::vector<std::string>& names) {
  return R"({"op":"remove","names":)" + json_list(names) + '}';
}

std::string clear_request(const std::string& pattern) {
  return R"({"op":"clear","pattern":)" + json_text(pattern) + '}';
}

std::string encode_request(std::uint64_t number, std::string_view body) {
  std::string out;
  out.reserve(kRequestHeadBytes + body.size());
  out += kRequestMagic;
  append_number(out, body.size(), 4);
  append_number(out, number, 8);
  return out += body;
}

Result<std::optional<Reply>> ReplyReader::next() {
  if (waiting_.size() < kReplyHeadBytes) return std::optional<Reply>();
  if (std::string_view(waiting_).substr(0, kReplyMagic.size()) != kReplyMagic) {
    return corrupt("mooncake: the helper's answer is none");
  }
  const char* const head = waiting_.data();
  const auto bytes = load_le<std::uint32_t>(head + 4);
  const auto count = load_le<std::uint32_t>(head + 20);
  if (bytes > kMaxBodyBytes || std::uint64_t{count} * 8 > bytes) {
    return corrupt("mooncake: the helper's answer has impossible sizes");
  }
  if (waiting_.size() - kReplyHeadBytes < bytes) return std::optional<Reply>();
  Reply reply;
  reply.number = load_le<std::uint64_t>(head + 8);
  reply.has_failed = load_le<std::uint32_t>(head + 16) != 0;
  reply.codes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    reply.codes.push_back(static_cast<std::int64_t>(load_le<std::uint64_t>(head + kReplyHeadBytes + 8 * i)));
  }
  reply.words = waiting_.substr(kReplyHeadBytes + 8 * std::size_t{count}, bytes - 8 * std::size_t{count});
  waiting_.erase(0, kReplyHeadBytes + bytes);
  return std::optional<Reply>(std::move(reply));
}

}  // namespace larder::mooncake
