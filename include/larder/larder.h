/* SPDX-License-Identifier: Apache-2.0 */
/* Larder's C interface: a prefix cache for engines that own their device memory. Two doors: stores, for those who own
 * their host memory as well and find pages by keys; and connectors, which add a host tier and find pages by tokens.
 *
 * C11 and C++; needs no other file of Larder. docs/c_api.md is its guide; examples/c_store.c, c_connector.c and
 * c_event_loop.c are whole programs. What follows here is about stores; what is different with connectors stands where
 * they begin.
 *
 * What it stores. A model keeps several kinds of state, each in a *pool*: attention KV, an indexer, a sliding window,
 * recurrent checkpoints, draft KV. A pool's unit is a *page*: page_bytes opaque bytes under a 32-byte *page key*, which
 * names a prefix of tokens (larder_page_keys() computes the chain that SGLang uses). A request can resume after p pages
 * only if every pool has what it needs there: all pages of [0, p) (ALL_PAGES), or the last n of them (TRAILING_PAGES).
 * larder_exists() answers with every such p at once.
 *
 * What it promises
 *   - Never other bytes than were stored. Every page carries its whole identity and a 128-bit checksum; what does not
 *     match is LARDER_CORRUPT or LARDER_NOT_FOUND, never data. Identity = the namespace (model, ranks, adapter, salt)
 *     + the pool (name, layout text, page_bytes, rank unless replicated) + the key.
 *   - A group of pages commits as a whole (larder_put()).
 *   - Every call ends at its deadline, or at the store's `timeout_seconds` if it has none. What an engine lends to a
 *     call is not touched after the call has returned. (With the store option `zero_copy`, a call waits for what the
 *     disk is working on, also beyond its deadline.)
 *   - No exception leaves a call, nothing is printed unless a log function is given, no state is kept outside handles.
 *
 * Threads: every function from any thread, several at once on one handle; but larder_store_close() and
 * larder_space_close() only when no other call uses that handle. Calls block; larder_exists() on a local store does not
 * reach the disk. A child of fork() must not use handles of its parent.
 *
 * Null: closing null does nothing; a null handle gives LARDER_INVALID_ARGUMENT; `error` may be null everywhere.
 *
 * Versions. LARDER_ABI_VERSION counts incompatible changes, and is the SONAME's number. Functions are only added. A
 * struct that begins with struct_size (sizeof in the caller's program) may get fields at its end: those that the
 * caller's version lacks count as zero, and those that the library lacks have to be zero (LARDER_UNSUPPORTED). Other
 * structs stay as they are.
 *
 * Callbacks (larder_log_fn, larder_page_fn) must not call Larder, and no exception may leave them.
 *
 * Sizes are bytes, times are seconds (double; 0: the default of the store), keys and digests 32 raw bytes. */
#ifndef LARDER_LARDER_H
#define LARDER_LARDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LARDER_ABI_VERSION 1u
#define LARDER_KEY_BYTES 32
#define LARDER_MAX_POOLS 55    /* per namespace: 23 that have numbers of their own, and 32 others */
#define LARDER_MAX_KEYS 65536  /* per call of larder_exists() */
#define LARDER_MAX_PAGES 65536 /* per call of larder_get() and larder_put() */

#if defined(__GNUC__)
#define LARDER_API __attribute__((visibility("default")))
#else
#define LARDER_API
#endif

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): names as C has them */

/* What the caller should do next. Of a call, and of each page in it. */
typedef enum larder_code {
  LARDER_OK = 0,
  LARDER_INVALID_ARGUMENT = 1,  /* mend the call; the message says how */
  LARDER_NOT_FOUND = 2,         /* a miss */
  LARDER_CONFLICT = 3,          /* the place belongs to another store, process or identity */
  LARDER_OVERLOADED = 4,        /* a bounded queue is full: later, or do without */
  LARDER_DEADLINE_EXCEEDED = 5, /* not there in time; memory that was lent is the caller's again */
  LARDER_CANCELLED = 6,         /* larder_cancel_set(), a clear or the close ended it */
  LARDER_CORRUPT = 7,           /* stored bytes did not verify: a miss; the page is dropped */
  LARDER_UNAVAILABLE = 8,       /* disk, peer or directory cannot serve now: after a while */
  LARDER_UNSUPPORTED = 9,       /* this build or backend cannot do it */
  LARDER_INTERNAL = 10          /* a broken invariant: report it */
} larder_code;

/* Filled when a call does not return LARDER_OK; text is UTF-8, ends with a zero, says what, where and how to mend it.
 */
typedef struct larder_error {
  int32_t code; /* larder_code */
  char message[1020];
} larder_error;

typedef struct larder_store larder_store;   /* an open storage backend */
typedef struct larder_space larder_space;   /* a namespace of a store: one model on one rank */
typedef struct larder_cancel larder_cancel; /* a flag that ends calls */

typedef struct larder_segment {
  void* data;
  size_t size;
} larder_segment;

/* ---- library ---- */

LARDER_API uint32_t larder_abi_version(void);          /* LARDER_ABI_VERSION of the library that was loaded */
LARDER_API const char* larder_version(void);           /* "1.2.3" */
LARDER_API const char* larder_code_name(int32_t code); /* "not_found"; "?" for others */

/* The chain of page keys: key(i) = SHA-256(key(i-1) || tokens of page i, u32 little-endian), key(-1) = prior.
 * prior: 32 bytes, or null for the head of an unseeded chain. Writes token_count / page_size keys (a partial last page
 * has none), returns how many; 0 if page_size is 0. Pure. 0.3 us per page of 64 tokens. */
LARDER_API size_t larder_page_keys(const uint32_t* tokens, size_t token_count, uint32_t page_size, const uint8_t* prior,
                                   uint8_t* keys);

/* ---- stores ---- */

/* level: 1 information, 2 warning, 3 error; 0 (debug) is reserved. Any thread. */
typedef void (*larder_log_fn)(void* context, int32_t level, const char* where, const char* message);

typedef struct larder_store_options {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  const char* backend; /* a name of larder_backends(): "file", "memory", "hf3fs", "mooncake", "plugin" */
  const char* config;  /* a JSON object: the backend's options, and those of larder_store_option_help(). Null and "": */
                       /* no options */
  const larder_segment*
      memory;          /* where payloads mostly lie, aligned to 4096: registered with the device once, and so */
  size_t memory_count; /* has to live until larder_store_close(). May be null, 0 */
  larder_log_fn log;   /* null: silent. One per process: that of the newest open store that has one */
  void* log_context;
} larder_store_options;

/* Opens a backend. Reading a large store's index takes a while: about 0.2 us per stored page and core.
 * LARDER_INVALID_ARGUMENT: unknown backend or option (the message lists the known ones), JSON that is none.
 * LARDER_CONFLICT: another process has it. LARDER_UNAVAILABLE: cannot be reached, read or written. LARDER_OVERLOADED:
 * the machine has no memory for `staging_bytes`. */
LARDER_API larder_code larder_store_open(const larder_store_options* options, larder_store** store,
                                         larder_error* error);
/* Registers more memory in which payloads will mostly lie, as larder_store_options.memory does: an engine's pools may
 * come into being after the store. It has to live until larder_store_close(). Of use with `zero_copy`; transfers work
 * without. LARDER_INVALID_ARGUMENT: one of them is no memory. LARDER_UNSUPPORTED: nothing to gain with this backend or
 * system. LARDER_OVERLOADED: the system refuses, mostly by its limit of locked memory. */
LARDER_API larder_code larder_store_add_memory(larder_store* store, const larder_segment* memory, size_t memory_count,
                                               larder_error* error);
/* Ends what waits, waits for what the disk works on (at most timeout_seconds; 0: the store's own), then frees the
 * handle. LARDER_DEADLINE_EXCEEDED: something still runs and keeps the memory it was lent; the handle stays, takes no
 * more work, and may be closed again. LARDER_INVALID_ARGUMENT: a namespace is open, or it is attached to a connector:
 * nothing was done. */
LARDER_API larder_code larder_store_close(larder_store* store, double timeout_seconds, larder_error* error);

/* Names of the backends of this build, separated by commas. */
LARDER_API const char* larder_backends(void);
/* One line per option of a backend, "key<TAB>default<TAB>help\n"; backend null: the options that every store has.
 * Writes at most `size` bytes with the final zero; returns the length of the whole text. 0: no such backend. */
LARDER_API size_t larder_store_option_help(const char* backend, char* text, size_t size);

/* Statistics as a JSON object (docs/c_api.md lists the keys), or with larder_store_metrics() as Prometheus text.
 * Writes at most `size` bytes with the final zero; returns the length of the whole text, 0 for a null store. */
LARDER_API size_t larder_store_stats(const larder_store* store, char* text, size_t size);
LARDER_API size_t larder_store_metrics(const larder_store* store, char* text, size_t size);

/* Drops every page of every namespace, with what calls and connectors of this process were writing until now.
 * Connectors write again what they have in host memory: larder_connector_flush() them before, if that is not to be.
 * It counts for all processes of a share_directory: what they put before it, are writing, or keep for another try
 * (LARDER_PUT_RETRY), does not come afterwards. It waits for writes that are under way; LARDER_DEADLINE_EXCEEDED: it
 * may still be done when they end. LARDER_UNSUPPORTED: the backend cannot. */
LARDER_API larder_code larder_store_clear(larder_store* store, double timeout_seconds, larder_error* error);

/* ---- namespaces ---- */

typedef enum larder_hit_policy { LARDER_ALL_PAGES = 0, LARDER_TRAILING_PAGES = 1 } larder_hit_policy;

#define LARDER_POOL_REPLICATED 1u /* the same bytes on every tensor-parallel rank: stored once for all of them */

typedef struct larder_pool {
  uint32_t struct_size;
  uint32_t flags;      /* LARDER_POOL_* */
  const char* name;    /* 1 to 63 characters of [a-z0-9_.-]; any: SGLang's names, or an engine's own */
  uint64_t page_bytes; /* below 4 GiB; 0: a marker without bytes */
  const char* layout;  /* text with all that gives the bytes their meaning: dtype, shape, order of dimensions. Pages */
                       /* under another text are other pages. Not null */
  uint32_t hit_policy; /* larder_hit_policy */
  uint32_t trailing_pages; /* TRAILING_PAGES: how many pages before a restore point it needs, 1 or more. Else 0 */
} larder_pool;

typedef struct larder_space_options {
  uint32_t struct_size;
  uint32_t page_size; /* tokens per page of keys; 1 or more */
  const char*
      identity; /* text with all that gives the state its meaning besides layout: model, revision, digest of the */
                /* weights, quantization, RoPE scaling ... Not empty */
  const char* adapter;                                           /* LoRA and the like; null and "": none */
  const char* salt;                                              /* of a tenant; null and "": none */
  uint32_t tp_rank, tp_size, pp_rank, pp_size, cp_rank, cp_size; /* sizes 0 count as 1 */
  const larder_pool* pools; /* the first is the anchor: it commits a page, and its presence bounds every prefix */
  size_t pool_count;        /* 1 to LARDER_MAX_POOLS */
} larder_space_options;

/* Describes a model to a store. Cheap; does no I/O. The store outlives it. Texts and pools are copied: the caller's may
 * go when it returns. LARDER_INVALID_ARGUMENT names the field. */
LARDER_API larder_code larder_space_open(larder_store* store, const larder_space_options* options, larder_space** space,
                                         larder_error* error);
LARDER_API void larder_space_close(larder_space* space);
/* Drops every page of the namespace: of all its pools, tensor-parallel ranks included. Else as larder_store_clear(). */
LARDER_API larder_code larder_space_clear(larder_space* space, double timeout_seconds, larder_error* error);
/* The 32 bytes of the namespace digest. */
LARDER_API larder_code larder_space_digest(const larder_space* space, uint8_t digest[LARDER_KEY_BYTES]);

/* ---- pages ---- */

/* A flag that several calls may share. Outlives the calls that were given it. */
LARDER_API larder_cancel* larder_cancel_new(void); /* null: out of memory */
LARDER_API void larder_cancel_set(larder_cancel* cancel);
LARDER_API void larder_cancel_free(larder_cancel* cancel);

typedef struct larder_terms {
  uint32_t struct_size;
  uint32_t flags;         /* LARDER_PUT_* */
  double timeout_seconds; /* 0: the store's own */
  larder_cancel* cancel;  /* may be null. Ends what has not begun, and the wait for the rest */
} larder_terms;

/* Answer only when the pages survive a power cut. (Of backend `memory` nothing survives its process.) */
#define LARDER_PUT_DURABLE 1u
/* A group that fails for a reason that may pass (LARDER_OVERLOADED, LARDER_UNAVAILABLE, LARDER_DEADLINE_EXCEEDED,
 * LARDER_INTERNAL) is copied into a queue of the store (option `retry_bytes`) and written later; the pages are answered
 * LARDER_OK. A full queue answers with the failure. A write that is still under way at the deadline is answered
 * LARDER_OK, too; if it fails later and the queue is full, its pages are lost, and counted (`retry.refused`).
 * With LARDER_PUT_DURABLE the pages are written later just so, but answered with the failure. */
#define LARDER_PUT_RETRY 2u

/* What one pool of a query needs, where it differs from its larder_pool. */
typedef struct larder_need {
  uint32_t pool;           /* index into larder_space_options.pools */
  uint32_t hit_policy;     /* larder_hit_policy */
  uint32_t trailing_pages; /* TRAILING_PAGES: 1 or more */
} larder_need;

/* Which prefixes of a chain of pages are restorable.
 * keys: key_count keys of 32 bytes, the chain from its first page. needs: the pools that matter; the anchor is always
 * one of them. Null: all pools, as they were described.
 * restorable: (key_count + 63) / 64 words: bit p - 1 (of word (p - 1) / 64) is set if all pools have what it takes to
 * resume after p pages. AND of several ranks' words is what is restorable on all of them.
 * present: null, or for each pool of `needs` (or of the namespace) in order as many words: bit i is set if the pool has
 * page i. A page of another pool than the anchor counts as present only if it was stored, whether or not the anchor is.
 * Not LARDER_OK: all words are zero; beyond LARDER_MAX_KEYS or LARDER_MAX_POOLS, the first that a call may have. */
LARDER_API larder_code larder_exists(larder_space* space, const uint8_t* keys, size_t key_count,
                                     const larder_need* needs, size_t need_count, const larder_terms* terms,
                                     uint64_t* restorable, uint64_t* present, larder_error* error);

typedef struct larder_page {
  const uint8_t* key;             /* 32 bytes */
  const larder_segment* segments; /* sizes add up to the pool's page_bytes; null for a marker */
  uint32_t segment_count;
  uint32_t pool; /* index into larder_space_options.pools */
  const uint8_t*
      parent;        /* put: key of the page before it in the chain, so that tails are evicted before heads; or null */
  int32_t code;      /* out: larder_code */
  uint32_t reserved; /* 0 */
} larder_page;

/* Reads pages into the segments. Each page's `code` tells; segments of a page that is not LARDER_OK hold what they
 * held, or nothing of use. Returns LARDER_OK if every page is, LARDER_INVALID_ARGUMENT if one is wrong, else the
 * code of the first that is not. */
LARDER_API larder_code larder_get(larder_space* space, larder_page* pages, size_t page_count, const larder_terms* terms,
                                  larder_error* error);

/* Stores pages. Successive pages with one key are a group: all of it becomes visible, or nothing. Within a group the
 * anchor comes last. Sidecars may come in calls of their own before their anchor: larder_exists() counts no page whose
 * prefix lacks its anchors, so it is the anchor that commits. Parents before children. Storing a page that is there is
 * cheap. The bytes are the caller's again when the call returns.
 * Returns as larder_get() does. LARDER_UNSUPPORTED of a page: declined by the store's admission policy. */
LARDER_API larder_code larder_put(larder_space* space, larder_page* pages, size_t page_count, const larder_terms* terms,
                                  larder_error* error);

/* ---- connectors: a host tier beside an engine that keeps the books of its device memory ----
 *
 * A connector keeps pages of prompts in host memory, found by their tokens, and in a store behind it. The unit is the
 * *restore point*: p pages after which a request can resume, because every pool has what it needs there.
 *
 *   larder_lookup() -> larder_points(): the points, and a lease that keeps them in host memory -> larder_load() ...
 *   -> larder_release(); and after the engine has computed: larder_save()
 *
 * Pools are those of larder_space_options: ALL_PAGES; TRAILING_PAGES with 1, a state of a recurrent layer; and
 * TRAILING_PAGES with more, a sliding window. All windows of a model have the same number of pages.
 * A page of a pool is named by its index from the start of the prompt. A state is named by the last page that it has
 * seen: the state at point p is page p - 1.
 *
 * Copies run on threads of the connector and end in larder_connector_poll(). What an engine lends to larder_load() and
 * larder_save() is touched until that transfer has ended, and at no other time. Pages of a save are found when all of
 * its bytes have come, or not at all; pages that are there already are not copied.
 *
 * Threads: one call at a time on one connector, but for larder_connector_wake(), which must have returned
 * before larder_connector_close() begins. Callbacks run on the copying threads.
 * Nothing blocks but larder_connector_poll() and larder_connector_close().
 * Not LARDER_OK: nothing was begun. LARDER_OVERLOADED: later, mostly after a poll, or do without. A call that finds no
 * memory half-way is LARDER_INTERNAL, as each one after it: take the transfers that end, close it, and open another. */

typedef struct larder_connector larder_connector;

typedef enum larder_prefetch_policy {
  LARDER_PREFETCH_TIMEOUT = 0,      /* points wait for the store as long as prefetch_seconds say; then what has come */
  LARDER_PREFETCH_BEST_EFFORT = 1,  /* they do not wait: what has come when they are asked for */
  LARDER_PREFETCH_WAIT_COMPLETE = 2 /* for all of it, at most five minutes */
} larder_prefetch_policy;

typedef struct larder_connector_options {
  uint32_t struct_size;
  uint32_t copy_threads; /* 0: 2; at most 64 are made */
  const larder_space_options*
      model;                /* page_size, identity, ranks, pools. Its adapter and salt do not count: they come */
                            /* with each call. The first pool is the anchor of those with ALL_PAGES */
  uint64_t host_bytes;      /* of the host tier; taken at once, and touched (about 1 s per GiB) */
  double lease_share;       /* of it: what leases keep at most; 0: 0.5. One alone may be larger */
  double save_share;        /* of it: what saves under way hold at most; 0: 0.25 */
  uint32_t max_lookups;     /* open at once; 0: 1024 */
  uint32_t max_transfers;   /* whose result was not taken; 0: 1024 */
  uint32_t max_points;      /* of a lookup, the longest ones; 0: 16 */
  uint32_t prefetch_policy; /* larder_prefetch_policy */
  uint32_t prefetch_tokens; /* a store is not asked for fewer; 0: 256 */
  uint32_t reserved;        /* 0 */
  double prefetch_seconds;  /* LARDER_PREFETCH_TIMEOUT; 0: 1. And 0.25 more for each 1024 tokens */
} larder_connector_options;

/* Texts and pools of the model are copied. LARDER_INVALID_ARGUMENT names the field. LARDER_UNSUPPORTED: windows of
 * different lengths, or more pools of a kind than a connector has room for. LARDER_OVERLOADED: no memory. */
LARDER_API larder_code larder_connector_open(const larder_connector_options* options, larder_connector** connector,
                                             larder_error* error);
/* Detaches, and waits for copies under way and for the store's use of the host memory, at most timeout_seconds (0: 5).
 * LARDER_DEADLINE_EXCEEDED: one of them still uses it; the handle stays, and may be
 * closed again. */
LARDER_API larder_code larder_connector_close(larder_connector* connector, double timeout_seconds, larder_error* error);
/* Where the host memory is: what larder_page_fn is given lies in it. To register it with a device (cudaHostRegister(),
 * ibv_reg_mr()) or to mlock() it: after larder_connector_open(), and undone when the last transfer has ended, before
 * larder_connector_close(), which frees it; one that is LARDER_DEADLINE_EXCEEDED does not. Its bytes are the
 * connector's: read and write none. Writes at most `capacity` pieces, aligned to 4096; returns how many there are. */
LARDER_API size_t larder_connector_memory(const larder_connector* connector, larder_segment* memory, size_t capacity);

/* What is in host memory goes to the store, and what the store has is found. Until a detach, or the close of the
 * connector, the store cannot be closed. LARDER_CONFLICT: one is attached. */
LARDER_API larder_code larder_connector_attach(larder_connector* connector, larder_store* store, larder_error* error);
/* Lookups that wait for it wait a second more at most. What is under way there keeps its memory until it ends;
 * larder_store_close() waits for it. Another store may be attached at once. LARDER_NOT_FOUND: none is attached. */
LARDER_API larder_code larder_connector_detach(larder_connector* connector, larder_error* error);

/* Applies what ended. Waits for something to end, at most timeout_seconds (0, less, or not a number: not at all; above
 * 1e7: 1e7); not at all if there is an answer that neither a poll nor larder_connector_events() has told of. Returns 1
 * if something changed, or if there is such an answer, else 0. */
LARDER_API int32_t larder_connector_poll(larder_connector* connector, double timeout_seconds);
/* Ends a wait in larder_connector_poll(), and makes the descriptor readable, if there is one. Any thread. */
LARDER_API void larder_connector_wake(larder_connector* connector);

/* For an engine with an event loop of its own (epoll, libuv, asio), which does not wait in larder_connector_poll().
 * *fd becomes readable when something has ended, is so at first, and is no more after a poll (with a timeout of 0; it
 * may be so once in vain). Wait for it at most larder_connector_next_poll() seconds, then poll. It is the connector's,
 * and the same at each call: neither read nor close it, and take it out of the loop before larder_connector_close().
 * LARDER_OVERLOADED: the process has no descriptor to spare; *fd is -1. */
LARDER_API larder_code larder_connector_fd(larder_connector* connector, int32_t* fd, larder_error* error);
/* Seconds after which a poll is due though the descriptor has not become readable: limits of waits for the store, and
 * tries anew, have their time, and a clear by another process is heard of in a poll. 0: at once, because a call had
 * its answer at once, or the last poll has left work. Never more than 1. Ask after your last call before the wait,
 * and round up. O(lookups and transfers that are open). */
LARDER_API double larder_connector_next_poll(larder_connector* connector);

#define LARDER_EVENT_LOOKUP 1u   /* larder_points() has an answer */
#define LARDER_EVENT_TRANSFER 2u /* larder_transfer_take() has one */

typedef struct larder_event {
  uint32_t kind; /* LARDER_EVENT_* */
  uint32_t reserved;
  uint64_t number; /* of the lookup or the transfer */
} larder_event;

/* Lookups and transfers that have an answer now and had none before: each is named once, lookups again if
 * larder_points() has been LARDER_OVERLOADED since. Returns how many it wrote; `capacity`: perhaps there are more. */
LARDER_API size_t larder_connector_events(larder_connector* connector, larder_event* events, size_t capacity);
/* Copies and operations of the store that are under way. */
LARDER_API uint64_t larder_connector_in_flight(const larder_connector* connector);
/* No lookup finds any more what is in host memory now, or comes there from transfers and reads of the store that are
 * under way; it goes for room, or when nobody holds anything of its adapter and salt. Points that were told can be
 * loaded until larder_release(); lookups without points find nothing of it, and wait for no store. The store keeps what
 * it has; what still waits to be written there is not written. Returns pages of the anchor that were found until now.
 * For new weights: this, then larder_store_clear(), then the first lookup and save. */
LARDER_API uint64_t larder_connector_flush(larder_connector* connector);
/* Counters as a JSON object (docs/c_api.md), or as Prometheus text, with lookups by larder_miss_reason and times of
 * copies; that may follow the text of larder_store_metrics() on a page. As larder_store_stats(). */
LARDER_API size_t larder_connector_stats(const larder_connector* connector, char* text, size_t size);
LARDER_API size_t larder_connector_metrics(const larder_connector* connector, char* text, size_t size);

typedef struct larder_lookup_options {
  uint32_t struct_size;
  uint32_t flags;         /* LARDER_LOOKUP_* */
  const uint32_t* tokens; /* the prompt; read during the call. Its last token is computed in any case */
  size_t token_count;     /* 1 or more */
  uint64_t own_pages;     /* that the engine has itself, from page 0 on: they are not loaded */
  uint64_t own_window;    /* of the window, the last ones before own_pages, that it has itself */
  const char* adapter;    /* null and "": none */
  const char* salt;
} larder_lookup_options;

#define LARDER_LOOKUP_HOST_ONLY 1u /* do not ask the store */

/* *lookup: its number; 0: none, not LARDER_OK. LARDER_INVALID_ARGUMENT: no token, or own_pages are more than the
 * tokens. LARDER_OVERLOADED: max_lookups are open. */
LARDER_API larder_code larder_lookup(larder_connector* connector, const larder_lookup_options* options,
                                     uint64_t* lookup, larder_error* error);

/* A point, and what a load up to it brings: pages [first_page, pages) of pools with ALL_PAGES, [first_window, pages) of
 * windows, and, if has_state, page pages - 1 of states. */
typedef struct larder_point {
  uint64_t pages, first_page, first_window, bytes;
  uint32_t has_state;
  uint32_t reserved;
} larder_point;

/* The points of a lookup, ascending, none below own_pages (who has pages beyond the last state asks with fewer of
 * them). From the first LARDER_OK on they are leased. Writes the longest `capacity` of them; *count: how many there
 * are. No point is LARDER_OK with a count of 0. LARDER_OVERLOADED: the store is being read, or other leases hold their
 * share: again after a poll. LARDER_NOT_FOUND: no such lookup. */
LARDER_API larder_code larder_points(larder_connector* connector, uint64_t lookup, larder_point* points,
                                     size_t capacity, size_t* count, larder_error* error);

/* How it came that the last point of a lookup is not a later one. */
typedef enum larder_miss_reason {
  LARDER_MISS_NONE = 0,             /* all that may be reused is there */
  LARDER_MISS_NEVER_SEEN = 1,       /* nothing like it was saved: new tokens follow, or the whole prompt is new */
  LARDER_MISS_DIVERGED = 2,         /* what is there goes on with other tokens */
  LARDER_MISS_EVICTED = 3,          /* it was there, and left to make room */
  LARDER_MISS_NO_CHECKPOINT = 4,    /* pages are there, and no state or window where the next point would be */
  LARDER_MISS_OTHER_NAMESPACE = 5,  /* saved under another adapter or salt */
  LARDER_MISS_NOT_FETCHED = 6,      /* the store has it: too little to fetch, or no room in host memory */
  LARDER_MISS_STORAGE_LATE = 7,     /* the store had not brought it when the wait was over */
  LARDER_MISS_STORAGE_DECLINED = 8, /* the store had declined to keep it before host memory let it go */
  LARDER_MISS_STORAGE_DAMAGED = 9,  /* what the store brought failed its checksum */
  LARDER_MISS_STORAGE_FAILED = 10,  /* the store answered with an error */
  LARDER_MISS_FLUSHED = 12          /* it was there, and larder_connector_flush() dropped it */
} larder_miss_reason;

typedef struct larder_miss {
  uint32_t struct_size;
  uint32_t reason;        /* larder_miss_reason; more may come */
  uint64_t at_token;      /* the first that cannot be reused for this reason */
  uint32_t trailing;      /* what is missing there: 0 pages of pools with ALL_PAGES, 1 a state, 2 a window */
  uint32_t for_operators; /* 1: it tells of another tenant, for logs and not for clients */
  double seconds_ago;     /* EVICTED, STORAGE_DECLINED, FLUSHED: how long before the lookup; negative: not known */
  char text[128];         /* a sentence, cut to fit; ends with 0 */
} larder_miss;

/* After larder_points() was LARDER_OK, until larder_release(); before, as larder_points(). Writes struct_size bytes. */
LARDER_API larder_code larder_lookup_miss(larder_connector* connector, uint64_t lookup, larder_miss* miss,
                                          larder_error* error);
/* Ends the lookup and its lease; loads of it that are under way go on. Unknown numbers are ignored. */
LARDER_API void larder_release(larder_connector* connector, uint64_t lookup);

/* Where one page is in the engine's memory, in the order of its bytes. */
typedef struct larder_place {
  uint32_t pool; /* index into larder_space_options.pools */
  uint32_t segment_count;
  uint64_t page;
  const larder_segment* segments; /* sizes add up to the pool's page_bytes */
} larder_place;

/* A page that is loaded (its bytes are read from the segments) or saved (they are written there).
 * Not LARDER_OK: the transfer fails with that code. */
typedef larder_code (*larder_page_fn)(void* context, uint32_t pool, uint64_t page, const larder_segment* segments,
                                      size_t segment_count);

typedef struct larder_load_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t lookup;
  uint64_t pages;             /* one of its points; if all pools have ALL_PAGES, any from own_pages (and 1) on */
  const larder_place* places; /* exactly what the point says, for each pool with bytes; read during the call */
  size_t place_count;
  larder_page_fn page; /* or else, with places null and place_count 0: takes each page, pool by pool, pages ascending */
  void* context;
} larder_load_options;

/* *transfer: its number; 0: none, not LARDER_OK. LARDER_NOT_FOUND: no such lookup. LARDER_INVALID_ARGUMENT:
 * larder_points() has not been LARDER_OK, `pages` is none of its points, a place is missing (where a page has bytes),
 * not part of it or of another size, or places and `page` are both given. LARDER_OVERLOADED: max_transfers have a
 * result to take. */
LARDER_API larder_code larder_load(larder_connector* connector, const larder_load_options* options, uint64_t* transfer,
                                   larder_error* error);

typedef struct larder_save_options {
  uint32_t struct_size;
  uint32_t flags;         /* LARDER_SAVE_* */
  const uint32_t* tokens; /* from the start of the prompt, at least to_page pages; read during the call */
  size_t token_count;
  const char* adapter;         /* null and "": none */
  const char* salt;            /* null and "": none */
  uint64_t from_page, to_page; /* of pools with ALL_PAGES; what is before from_page was saved before */
  uint64_t window_pages;       /* of windows: the last so many before to_page */
  const uint64_t* states;      /* points at which states are given, ascending, above 0, at most to_page */
  size_t state_count;
  const larder_place* places; /* exactly these pages, of each pool with bytes; read during the call */
  size_t place_count;
  larder_page_fn page; /* or else, with places null and place_count 0: fills each page that is copied */
  void* context;
} larder_save_options;

/* If what would have to go is what the store lacks and is taking: LARDER_OVERLOADED, for a bounded number of polls. */
#define LARDER_SAVE_MAY_WAIT 1u

/* *transfer: as larder_load().
 * LARDER_INVALID_ARGUMENT: nothing is given (no page, window or state), the tokens do not reach to_page, a place is
 * missing (where a page has bytes), not part of it or of another size, or places and `page` are both given.
 * LARDER_OVERLOADED: as larder_load(); saves under way hold save_share; or the pages before from_page are on their way
 * in an earlier save: again after a poll. */
LARDER_API larder_code larder_save(larder_connector* connector, const larder_save_options* options, uint64_t* transfer,
                                   larder_error* error);

typedef enum larder_save_stop {
  LARDER_SAVE_ALL = 0,            /* all of it is in host memory */
  LARDER_SAVE_NO_ROOM = 1,        /* up to the largest point for which there is room, or nothing */
  LARDER_SAVE_PARENT_MISSING = 2, /* a page before from_page is not there (any more), nothing was kept: save from */
                                  /* larder_transfer_result.pages on, up to where the host has the path */
  LARDER_SAVE_COPY_FAILED = 3     /* nothing was kept */
} larder_save_stop;

typedef struct larder_transfer_result {
  uint32_t struct_size;
  int32_t code;         /* larder_code: of the copy; of the call, if that is not LARDER_OK, which says nothing of the */
                        /* copy. A load that is not LARDER_OK has left nothing of use */
  uint64_t pages;       /* load: the point. save: of what was given, all up to here is in host memory; with */
                        /* LARDER_SAVE_PARENT_MISSING: the host has the path up to here */
  uint64_t bytes;       /* copied */
  uint64_t known_pages; /* save: of the anchor, that were there already */
  uint32_t stop;        /* save: larder_save_stop */
  uint32_t reserved;
} larder_transfer_result;

/* Of a load or a save; given once, then the number is forgotten. LARDER_OVERLOADED: it is under way: again after a
 * poll. LARDER_NOT_FOUND: no such transfer. `error` then, and for a copy that failed, says why. */
LARDER_API larder_code larder_transfer_take(larder_connector* connector, uint64_t transfer,
                                            larder_transfer_result* result, larder_error* error);

/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#ifdef __cplusplus
}
#endif

#endif
