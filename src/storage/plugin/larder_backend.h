/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of a storage backend that lives in a shared library (C11 and C++; needs no other file of Larder).
 *
 * A library exports one function, larder_backend_v1(). Larder loads the library (backend `plugin`, option `library`),
 * asks for the table, and calls create() once per attached backend. The rest of this file is the contract of the table;
 * `larder conformance --backend plugin --extra library=/path/to/lib.so` checks a library against it, and
 * examples/plugin_backend is a complete one.
 *
 * What is stored. An object: `bytes` opaque bytes under an identity of four parts, namespace_digest,
 * layout_fingerprint, key and pool. Two objects are the same if and only if all four parts are equal. The first 160
 * bytes of an object are Larder's envelope, with the identity, the length and a 128-bit checksum in it; the rest is the
 * page.
 *
 * What the host guarantees
 *   - One create() before, one close() after all other calls of a handle; no call runs beside close().
 *   - Calls come from the host's storage threads and MAY BLOCK (but for stats()). Several run at once, of every kind,
 * on one handle. Several handles may live at once in one process.
 *   - Everything that a call is given (pages, groups, segments and the memory behind them, texts) belongs to the host,
 *     stays valid until the call returns and not longer. In a write, segments are only to be read.
 *   - Fields marked "out" are preset to LARDER_BACKEND_NOT_ANSWERED and 0. `reserved` fields are 0.
 *   - Groups are not empty, pools are ones that the model has, digests are 32 raw bytes; in read and write `bytes` is
 *     the sum of the segments and at least 160.
 *   - Each object that a read gives is verified against its envelope before anything sees it: a library that returns
 *     other bytes than were written causes a miss and a count, never a wrong answer. What no envelope can find is a
 * page that was written and is gone, or half a group: those are misses, and cost time only.
 *
 * What the library guarantees
 *   - One answer per item. An item that is left unanswered, a code that is not listed here, or a successful item with
 *     another `bytes_done` than `bytes` is an error of the library, and is reported as one.
 *   - A group is written as a whole: while the process lives no reader sees a part of it. With the flag
 *     LARDER_BACKEND_ATOMIC_GROUPS the same holds after a crash.
 *   - Nothing is kept of the host's memory after a call returns. No C++ exception, longjmp or signal leaves a call.
 *   - A child of fork() makes no call.
 *
 * Versions. A new major version of the interface is a new exported function (larder_backend_v2). Within version 1 the
 * table may only grow at its end: `struct_size` says how much of it a library knows, and entries behind it count as
 * null. The structs that calls pass (page, group, segment, call, statistics) do not change within a version.
 *
 * Null entries mean "not supported": allowed for drop, clear, stats and close. create, exists, read and write are
 * needed; a library without one of them is refused when it is loaded. A loaded library is never unloaded. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LARDER_BACKEND_ABI_VERSION 1u
#define LARDER_BACKEND_ENTRY_POINT "larder_backend_v1"
#define LARDER_BACKEND_DIGEST_BYTES 32
#define LARDER_BACKEND_ENVELOPE_BYTES 160

#if defined(__GNUC__)
#define LARDER_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define LARDER_BACKEND_EXPORT
#endif

/* Answers, of a call and of an item. They name the host's next step. */
/* NOLINTBEGIN(readability-identifier-naming): names as C has them */
enum LarderBackendCode {
  LARDER_BACKEND_NOT_ANSWERED = -1, /* preset by the host; never an answer */
  LARDER_BACKEND_OK = 0,            /* exists: it is there; read: all bytes are in the segments; write: stored */
  LARDER_BACKEND_NOT_FOUND = 1,     /* exists: not there; read: or of another length. A miss, no error */
  LARDER_BACKEND_ALREADY = 2,       /* write: the object was there, of this length, and was kept; as good as OK */
  LARDER_BACKEND_INVALID = 3,       /* the request or an option is wrong: not to be retried as it is */
  LARDER_BACKEND_OVERLOADED = 4,    /* something is full: perhaps later */
  LARDER_BACKEND_CORRUPT = 5,       /* read: the stored bytes are damaged; the library has dropped the object */
  LARDER_BACKEND_UNAVAILABLE = 6,   /* the device or peer cannot serve now: perhaps later */
  LARDER_BACKEND_UNSUPPORTED = 7,   /* cannot be done; a write group: declined, and not a failure */
  LARDER_BACKEND_INTERNAL = 8       /* a defect of the library */
};
/* NOLINTEND(readability-identifier-naming) */

/* Bits of LarderBackendTable.flags. */
#define LARDER_BACKEND_PERSISTENT 1u    /* objects are there again after close() and create() with the same options */
#define LARDER_BACKEND_ATOMIC_GROUPS 2u /* a group is there as a whole or not at all, after a crash too */

/* Bits of LarderBackendCall.flags. */
#define LARDER_BACKEND_DURABLE 1u /* write: answer OK only when the group survives a power cut */

/* The library's own; made by create(), freed by close(). */
typedef struct LarderBackend LarderBackend;

/* What comes with every call. */
typedef struct LarderBackendCall {
  uint32_t flags;
  uint32_t error_capacity; /* bytes at `error`, the 0 at the end included; at least 256 */
  char* error;             /* out: why the call or an item failed, for people; UTF-8, ended by 0. Empty on entry */
} LarderBackendCall;

typedef struct LarderBackendSegment {
  void* data; /* may be null if bytes is 0 */
  uint64_t bytes;
} LarderBackendSegment;

/* One object in an exists, read, write or drop. */
typedef struct LarderBackendPage {
  uint8_t namespace_digest[LARDER_BACKEND_DIGEST_BYTES];
  uint8_t layout_fingerprint[LARDER_BACKEND_DIGEST_BYTES];
  uint8_t key[LARDER_BACKEND_DIGEST_BYTES];
  uint8_t parent[LARDER_BACKEND_DIGEST_BYTES]; /* write: key of the page before it, a hint for eviction; else zero */
  const char* pool_name;                       /* "kv", "mamba", ...: [a-z0-9_], at most 32 bytes */
  uint32_t pool;                               /* number of that name; stable */
  int32_t status;                              /* out */
  const LarderBackendSegment* segments;        /* read: to be filled in order; write: the content; else null */
  uint64_t segment_count;
  uint64_t bytes;      /* of the whole object; 0 in exists and drop */
  uint64_t bytes_done; /* out, read and write: bytes moved; == bytes where status is OK (ALREADY: not looked at) */
} LarderBackendPage;

/* Objects that are written together. The last page is the commit mark: it is made visible with the others or after. */
typedef struct LarderBackendGroup {
  LarderBackendPage* pages; /* each page's status is OK or ALREADY where the group's is OK */
  uint64_t page_count;
  int32_t status; /* out, of the whole group: OK, or nothing of it was newly stored */
  uint32_t reserved;
} LarderBackendGroup;

typedef struct LarderBackendStatistics {
  uint64_t objects;
  uint64_t bytes;          /* sum of the objects' `bytes` */
  uint64_t physical_bytes; /* with all overheads; at least `bytes` */
  uint64_t capacity_bytes; /* most physical_bytes; 0: no limit known */
  uint64_t evicted;        /* groups (or objects) that were dropped to make room, since create() */
  uint64_t reserved[3];
} LarderBackendStatistics;

/* Calls return OK when every item has its own answer, or the code of a failure of the whole call; the items' answers
 * are then not looked at. `count` may be 0. */
typedef struct LarderBackendTable {
  uint32_t abi_version; /* LARDER_BACKEND_ABI_VERSION */
  uint32_t struct_size; /* sizeof(LarderBackendTable), as the library was compiled */
  const char* name;     /* of the backend, for logs: [a-z0-9_], not empty */
  uint32_t flags;
  uint32_t alignment; /* preferred alignment of segments in bytes, a power of two; 0: any */

  /* Opens the store. options: "key=value" lines, each ended by '\n', sorted by key; "" for none. An option that the
   * library does not know is INVALID, and `error` names it and the known ones. On OK, *backend is not null; else
   * nothing is left to free. */
  int32_t (*create)(const char* options, LarderBackendCall* call, LarderBackend** backend);
  /* Each page: OK or NOT_FOUND. An item with any other answer fails the call. Meant to be cheap: no content is read. */
  int32_t (*exists)(LarderBackend* backend, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count);
  /* Fills the segments. What is in the segments of an item that fails does not matter. */
  int32_t (*read)(LarderBackend* backend, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count);
  /* Writes groups, in order: parents come before children. A group that fails does not stop the next. Writing what is
   * there is cheap, keeps what is there, and is answered ALREADY; an object may be twice in one request. */
  int32_t (*write)(LarderBackend* backend, LarderBackendCall* call, LarderBackendGroup* groups, uint64_t count);
  /* Optional. Removes objects that failed the host's verification, or that a read answered CORRUPT. OK: it is gone, or
   * was not there. Null: a damaged object stays, and each read of it counts as corrupt again. */
  int32_t (*drop)(LarderBackend* backend, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count);
  /* Optional. Removes every object of a namespace, or of the whole store (namespace_digest null); other things that lie
   * beside the store stay. It holds after a crash that follows an OK, as far as the store is persistent. */
  int32_t (*clear)(LarderBackend* backend, LarderBackendCall* call, const uint8_t* namespace_digest);
  /* Optional. Fills *out, which is zero on entry. MUST NOT BLOCK on I/O: it is called from any thread of the host. */
  void (*stats)(LarderBackend* backend, LarderBackendStatistics* out);
  /* Optional. Writes out what is left and frees the handle. Null: there is nothing to free. */
  void (*close)(LarderBackend* backend);
} LarderBackendTable;

/* The one exported function. The table is the library's, constant, and lives as long as the process. Null: the library
 * cannot be used here. Called from one thread at a time. */
LARDER_BACKEND_EXPORT const LarderBackendTable* larder_backend_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
