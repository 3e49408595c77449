// SPDX-License-Identifier: Apache-2.0
// Marks the symbols that the library shows; all others are hidden.
#pragma once

#define LARDER_FAKE_EXPORT extern "C" __attribute__((visibility("default")))
