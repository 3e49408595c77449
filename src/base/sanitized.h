// SPDX-License-Identifier: Apache-2.0
// Is this a build with AddressSanitizer or ThreadSanitizer? Code does the same in both; long tests do fewer rounds
// there, and say so.
#pragma once

namespace larder {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace larder
