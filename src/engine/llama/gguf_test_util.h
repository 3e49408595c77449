// SPDX-License-Identifier: Apache-2.0
// Makes GGUF bytes for tests: written apart from gguf_file.cc.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace larder::llama::gguf_test {

class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  void u32(std::string_view key, std::uint32_t value) {
    begin(key, 4);
    number(value);
  }
  void i32(std::string_view key, std::int32_t value) {
    begin(key, 5);
    number(static_cast<std::uint32_t>(value));
  }
  void truth(std::string_view key, std::uint8_t value) {
    begin(key, 7);
    number(value);
  }
  void text(std::string_view key, std::string_view value) {
    begin(key, 8);
    text_bytes(value);
  }
  void u64(std::string_view key, std::uint64_t value) {
    begin(key, 10);
    number(value);
  }
  void u32s(std::string_view key, const std::vector<std::uint32_t>& values) {
    begin_array(key, 4, values.size());
    for (const std::uint32_t value : values) number(value);
  }
  void truths(std::string_view key, const std::vector<std::uint8_t>& values) {
    begin_array(key, 7, values.size());
    for (const std::uint8_t value : values) number(value);
  }
  void texts(std::string_view key, const std::vector<std::string_view>& values) {
    begin_array(key, 8, values.size());
    for (const std::string_view value : values) text_bytes(value);
  }
  // Tensors follow all keys.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
              std::uint64_t offset) {
    ++tensors_;
    text_bytes(name);
    number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) number(size);
    number(type);
    number(offset);
  }
  // The whole file: head, padding, data.
  [[nodiscard]] std::vector<std::byte> file(std::size_t data_bytes) const {
    std::vector<std::byte> out(24);
    store_le<std::uint32_t>(out.data(), 0x46554747);
    store_le<std::uint32_t>(out.data() + 4, version_);
    store_le<std::uint64_t>(out.data() + 8, tensors_);
    store_le<std::uint64_t>(out.data() + 16, keys_);
    out.insert(out.end(), body_.begin(), body_.end());
    out.resize((out.size() + 31) / 32 * 32 + data_bytes, std::byte{0x5a});
    return out;
  }
  [[nodiscard]] std::size_t head_bytes() const { return 24 + body_.size(); }

 private:
  template <class T>
  void number(T value) {
    const std::size_t at = body_.size();
    body_.resize(at + sizeof value);
    store_le(body_.data() + at, value);
  }
  void text_bytes(std::string_view value) {
    number(std::uint64_t{value.size()});
    for (const char c : value) body_.push_back(static_cast<std::byte>(c));
  }
  void begin(std::string_view key, std::uint32_t type) {
    ++keys_;
    text_bytes(key);
    number(type);
  }
  void begin_array(std::string_view key, std::uint32_t type, std::size_t count) {
    begin(key, 9);
    number(type);
    number(std::uint64_t{count});
  }

  const std::uint32_t version_;
  std::uint64_t keys_ = 0, tensors_ = 0;
  std::vector<std::byte> body_;
};

// Every kind of value, and two tensors; data of 64 bytes.
[[nodiscard]] inline GgufWriter small_model() {
  GgufWriter out;
  out.text("general.architecture", "qwen35");
  out.text("general.name", "small");
  out.u32("qwen35.block_count", 4);
  out.u32("qwen35.context_length", 4096);
  out.u32("qwen35.embedding_length", 64);
  out.u32("qwen35.attention.head_count", 4);
  out.u32("qwen35.attention.head_count_kv", 2);
  out.u32("qwen35.attention.key_length", 32);
  out.u64("qwen35.attention.value_length", 32);
  out.i32("qwen35.full_attention_interval", 4);
  out.u32s("qwen35.rope.dimension_sections", {4, 6, 6, 0});
  out.u32("qwen35.ssm.conv_kernel", 4);
  out.u32("qwen35.ssm.inner_size", 64);
  out.u32("qwen35.ssm.state_size", 16);
  out.u32("qwen35.ssm.group_count", 2);
  out.truth("general.some_truth", 1);
  out.texts("tokenizer.ggml.tokens", {"a", "b", ""});
  out.tensor("token_embd.weight", {64, 3}, 1, 0);
  out.tensor("output_norm.weight", {64}, 0, 32);
  return out;
}

}  // namespace larder::llama::gguf_test
