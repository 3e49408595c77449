// SPDX-License-Identifier: Apache-2.0
// Memory of an engine that keeps its own books: for each page, pool, layer and plane a tensor of its own, as attention
// kernels want it. What is in them follows from the prompt, so that every byte can be compared.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "controller/page_places.h"
#include "model/model_spec.h"

namespace larder::connector_test {

using Tokens = std::vector<TokenId>;

// `count` tokens of a small vocabulary, so that prompts share prefixes now and then.
[[nodiscard]] Tokens tokens_from(std::uint64_t seed, std::size_t count);

class EngineMemory {
 public:
  // tenant: whose prompts they are; others have other bytes.
  EngineMemory(const ModelSpec& model, HostLayout layout, std::string tenant = "");

  // Memory for all that `needs` names, with what the engine computes for these tokens.
  void compute(const Tokens& tokens, const PageNeeds& needs);
  // The same, with nothing of use in it.
  void reserve(const PageNeeds& needs);
  [[nodiscard]] std::span<const PagePlace> places() const { return places_; }
  // The first page that does not hold what the engine would have computed; "": there is none.
  [[nodiscard]] std::string difference(const Tokens& tokens) const;

  // What the engine computes for one page, as the host keeps it.
  [[nodiscard]] std::vector<std::byte> host_page(const Tokens& tokens, const PoolSpec& pool, std::uint64_t page) const;

 private:
  struct Page {
    const PoolSpec* pool = nullptr;
    std::uint64_t page = 0;
    std::vector<std::vector<std::byte>> tensors;  // [layer][plane]
    std::vector<Segment> segments;
  };
  void add(const PoolSpec& pool, std::uint64_t page);
  [[nodiscard]] std::uint64_t seed_of(const Tokens& tokens, const PoolSpec& pool, std::uint64_t page) const;
  void fill(const Tokens& tokens, Page& page) const;
  // The tensors' pieces in the order of the layout.
  [[nodiscard]] std::vector<Segment> pieces_of(Page& page) const;

  const ModelSpec& model_;
  const HostLayout layout_;
  const std::string tenant_;
  std::deque<Page> pages_;  // places point into it
  std::vector<PagePlace> places_;
};

}  // namespace larder::connector_test
