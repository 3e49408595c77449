// SPDX-License-Identifier: Apache-2.0
// The radix tree of the cache (tree/tree.h): rows of calls.
//
// Fed: the shape of a model (page size, window, state, policy), then calls: match, touch, settle, lock, unlock, insert,
// attach, finish, evict, keys, flush.
// Checked, after every call: the tree's invariants, and the same answers as the plain model of the property test
// (tree/tree_naive_model.h). At the end everything can be let go, and every slot has come back once.
#include "fuzz/fuzz_input.h"
#include "tree/tree_property_check.h"

namespace larder::fuzz {
namespace {

using namespace larder::tree_test;

constexpr std::uint64_t kOpKinds = static_cast<std::uint64_t>(OpKind::kFlush) + 1;
constexpr int kMostOps = 120;

// Eight bytes a call: mutations of one leave the others alone.
Op read_op(FuzzInput& input) {
  Op op;
  op.kind = static_cast<OpKind>(input.below(kOpKinds));
  op.r[0] = input.number<std::uint16_t>();
  op.r[1] = input.number<std::uint8_t>();
  op.r[2] = input.number<std::uint16_t>();
  op.r[3] = input.number<std::uint16_t>();
  return op;
}

void run(FuzzInput input) {
  static const std::vector<PropertyConfig> kConfigs = property_configs();
  const PropertyConfig& config = kConfigs[static_cast<std::size_t>(input.below(kConfigs.size()))];
  PropertyRun tree(config);
  for (int i = 0; i < kMostOps && !input.empty(); ++i) {
    const std::string error = tree.step(read_op(input));
    if (!error.empty()) fuzz_check(false, config.name + ", call " + std::to_string(i) + ": " + error);
  }
  const std::string error = tree.finish();
  if (!error.empty()) fuzz_check(false, config.name + ", at the end: " + error);
}

}  // namespace
}  // namespace larder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  larder::fuzz::run({data, size});
  return 0;
}
