// SPDX-License-Identifier: Apache-2.0
// Clang thread-safety annotations; empty with other compilers. The `clang` preset turns violations into errors.
#pragma once

#if defined(__clang__)
#define LARDER_ANNOTATION(x) __attribute__((x))
#else
#define LARDER_ANNOTATION(x)
#endif

#define LARDER_CAPABILITY(name) LARDER_ANNOTATION(capability(name))
#define LARDER_SCOPED_CAPABILITY LARDER_ANNOTATION(scoped_lockable)
// The field may be touched only while `mutex` is held.
#define LARDER_GUARDED_BY(mutex) LARDER_ANNOTATION(guarded_by(mutex))
// What the pointer points at may be touched only while `mutex` is held.
#define LARDER_PT_GUARDED_BY(mutex) LARDER_ANNOTATION(pt_guarded_by(mutex))
// The caller holds / must not hold the mutex.
#define LARDER_REQUIRES(...) LARDER_ANNOTATION(requires_capability(__VA_ARGS__))
#define LARDER_EXCLUDES(...) LARDER_ANNOTATION(locks_excluded(__VA_ARGS__))
#define LARDER_ACQUIRE(...) LARDER_ANNOTATION(acquire_capability(__VA_ARGS__))
#define LARDER_RELEASE(...) LARDER_ANNOTATION(release_capability(__VA_ARGS__))
#define LARDER_TRY_ACQUIRE(...) LARDER_ANNOTATION(try_acquire_capability(__VA_ARGS__))
// Last resort; say why beside it.
#define LARDER_NO_THREAD_SAFETY LARDER_ANNOTATION(no_thread_safety_analysis)
