// SPDX-License-Identifier: Apache-2.0
// Backend `hf3fs` under the conformance suite, the metadata service in the process with its journal. Over HTTP and on
// Redis: tests/hf3fs_services.
#include "tests/conformance/hf3fs_harness.h"

namespace larder::conformance {
namespace {

const BackendUnderTest kEmbedded{"Embedded", [](std::uint64_t seed) { return std::make_unique<Hf3fsHarness>(seed); }};

INSTANTIATE_TEST_SUITE_P(Hf3fs, StorageConformance, each_check({kEmbedded}), test_name);

}  // namespace
}  // namespace larder::conformance
