// SPDX-License-Identifier: Apache-2.0
// layout_fingerprint and namespace_digest: the exact bytes that are hashed. A change here is a format change: new
// domain tag, new golden values in identity_test.cc, a new entry in docs/formats.md.
//
// layout_fingerprint = SHA-256 of this ASCII text (numbers decimal, no spaces but those shown, every line ends in
// '\n'):
//
//   larder.layout.v1
//   page_size <tokens>
//   host_layout <host_layout_name>
//   pool <pool_name>
//   component <component_name>
//   hit_policy <hit_policy_name>
//   scope <per_rank|replicated>
//   layers <n> <index 0> <index 1> ...           n, then the n layer indices
//   plane <name> <dtype_name> <rows> <heads> <head_dim>      one line per plane, in order
//
// All names come from closed sets without spaces or newlines, so the text is unambiguous. Positions inside a page
// follow from it by chunk_offset().
//
// namespace_digest = SHA-256 of a list of fields (key/field_hasher.h), in order:
//
//    1  text    "larder.namespace.v1"
//    2  text    model id
//    3  text    model revision
//    4  number  weight_seed
//    5  number  page_size
//    6  number  vocab_size
//    7  text    kv dtype name            8  text  conv dtype name            9  text  ssm dtype name
//   10  number  x16: dims in the order of kDimFields (hidden, ffn, ..., conv_kernel), one field each
//   26  number  count of layers, then one text field per layer: its layer_kind_name
//    .  number  draft layers
//    .  number  count of pools, then one digest field per pool, in storage order: its layout_fingerprint
//    .  text    rank kind: "replicated" if every pool is rank-replicated, "mixed" if some are, else "per_rank"
//    .  number  x6: tp_rank, tp_size, pp_rank, pp_size, cp_rank, cp_size; tp_rank and tp_size are 0 unless "per_rank"
//    .  text    adapter
//    .  text    salt
//
// context_length is left out on purpose: raising it does not change what any page holds.
#include <cassert>
#include <string>

#include "base/defect.h"
#include "key/field_hasher.h"
#include "key/sha256.h"
#include "model/model_limits.h"
#include "model/model_spec.h"

namespace larder {
namespace {

void add_model(FieldHasher& hash, const ModelSpec& spec) {
  hash.text(defect(Defect::kModelIgnored) ? std::string() : spec.id);
  hash.text(spec.revision);
  hash.number(spec.weight_seed);
  hash.number(spec.page_size);
  hash.number(spec.vocab_size);
  hash.text(dtype_name(spec.kv_dtype));
  hash.text(dtype_name(spec.conv_dtype));
  hash.text(dtype_name(spec.ssm_dtype));
  for (const DimField& field : kDimFields) hash.number(spec.dims.*field.member);
  hash.number(spec.layers.size());
  for (const LayerKind kind : spec.layers) hash.text(layer_kind_name(kind));
  hash.number(spec.draft.layers);
}

}  // namespace

Digest256 layout_fingerprint(const ModelSpec& spec, const PoolSpec& pool, HostLayout layout) {
  std::string text = "larder.layout.v1\n";
  const auto line = [&](std::string_view word, std::string_view value) {
    text.append(word).append(" ").append(value).append("\n");
  };
  line("page_size", std::to_string(spec.page_size));
  line("host_layout", host_layout_name(layout));
  line("pool", pool_name(pool.name));
  line("component", component_name(pool.component));
  line("hit_policy", hit_policy_name(pool.hit_policy));
  line("scope", pool.scope == RankScope::kReplicated ? "replicated" : "per_rank");
  std::string layers = std::to_string(pool.layers.size());
  for (const std::uint32_t layer : pool.layers) layers += " " + std::to_string(layer);
  line("layers", layers);
  for (const PlaneSpec& plane : pool.planes) {
    line("plane", plane.name + " " + std::string(dtype_name(plane.dtype)) + " " + std::to_string(plane.rows) + " " +
                      std::to_string(plane.heads) + " " + std::to_string(plane.head_dim));
  }
  return sha256(text);
}

Digest256 rank_fingerprint(const Digest256& layout_fingerprint, const NamespaceScope& scope) {
  return sha256("larder.rank.v1\nlayout " + layout_fingerprint.hex() + "\ntp " + std::to_string(scope.tp_rank) + " " +
                std::to_string(scope.tp_size) + "\n");
}

Digest256 namespace_digest(const ModelSpec& spec, const NamespaceScope& scope) {
  assert(!spec.pools.empty() && "finalize_model first");
  FieldHasher hash;
  hash.text("larder.namespace.v1");
  add_model(hash, spec);
  hash.number(spec.pools.size());
  for (const PoolSpec& pool : spec.pools) {
    hash.digest(defect(Defect::kLayoutIgnored) ? Digest256{} : layout_fingerprint(spec, pool, scope.layout));
  }
  const bool is_shared = spec.is_rank_replicated() || spec.is_rank_mixed();
  hash.text(spec.is_rank_mixed() ? "mixed" : is_shared ? "replicated" : "per_rank");
  hash.number(is_shared || defect(Defect::kRankIgnored) ? 0 : scope.tp_rank);
  hash.number(is_shared ? 0 : scope.tp_size);
  for (const std::uint32_t rank : {scope.pp_rank, scope.pp_size, scope.cp_rank, scope.cp_size}) hash.number(rank);
  hash.text(scope.adapter);
  hash.text(defect(Defect::kTenantIgnored) ? std::string() : scope.salt);
  Digest256 digest = hash.finish();
  // All zero means "no digest" elsewhere; a real one is that with probability 2^-256, and then moves by one bit.
  if (digest.is_zero()) digest.bytes[0] = 1;
  return digest;
}

}  // namespace larder
