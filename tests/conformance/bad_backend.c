/* SPDX-License-Identifier: Apache-2.0 */
/* A backend library that is wrong in one way at a time: option defect=NAME. For the test that the conformance checks
 * find each defect. Objects lie in this process's memory and stay there over close() (option store=NUMBER tells stores
 * apart), so that it counts as persistent. One lock; lists; no speed. Defects "hangs", "hangs_in_create" and
 * "hangs_in_close" are for the command only, which can end although a call does not. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "larder_backend.h"

typedef struct Object {
  struct Object* next;
  unsigned store;
  LarderBackendPage page; /* the identity and `bytes` of it count */
  uint8_t* data;
} Object;

struct LarderBackend {
  char defect[32];
  unsigned store;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Object* objects = NULL;
static uint64_t reads = 0;
static const int kMostYields = 5000;

static int has(const LarderBackend* b, const char* defect) { return strcmp(b->defect, defect) == 0; }

static int32_t create_backend(const char* options, LarderBackendCall* call, LarderBackend** out) {
  LarderBackend* const b = calloc(1, sizeof *b);
  if (sscanf(options, "defect=%31[a-z_]\nstore=%u\n", b->defect, &b->store) != 2) {
    snprintf(call->error, call->error_capacity, "options: defect, store");
    free(b);
    return LARDER_BACKEND_INVALID;
  }
  while (has(b, "hangs_in_create")) pause();
  *out = b;
  return LARDER_BACKEND_OK;
}

/* The place of an object in the list, or of the list's end. Under the lock. */
static Object** find(const LarderBackend* b, const LarderBackendPage* page) {
  Object** at = &objects;
  for (; *at != NULL; at = &(*at)->next) {
    const LarderBackendPage* const have = &(*at)->page;
    const int is_same_space =
        has(b, "ignores_namespace") || memcmp(have->namespace_digest, page->namespace_digest, 32) == 0;
    const int is_same_layout =
        has(b, "ignores_layout") || memcmp(have->layout_fingerprint, page->layout_fingerprint, 32) == 0;
    if ((*at)->store == b->store && is_same_space && is_same_layout && have->pool == page->pool &&
        memcmp(have->key, page->key, 32) == 0) {
      break;
    }
  }
  return at;
}

static void remove_at(Object** at) {
  Object* const gone = *at;
  *at = gone->next;
  free(gone->data);
  free(gone);
}

static int32_t exists_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count) {
  (void)call;
  while (has(b, "hangs")) pause();
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count; ++i) {
    int is_there = *find(b, &pages[i]) != NULL;
    if (has(b, "exists_lies")) is_there = 1;
    if (has(b, "exists_denies")) is_there = 0;
    pages[i].status = is_there ? LARDER_BACKEND_OK : LARDER_BACKEND_NOT_FOUND;
    if (has(b, "unknown_code")) pages[i].status = 77;
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

/* Another object as long as this one, if there is one. */
static const Object* other_than(const LarderBackend* b, const Object* object) {
  for (const Object* at = objects; at != NULL; at = at->next) {
    if (at != object && at->store == b->store && at->page.bytes == object->page.bytes) return at;
  }
  return object;
}

static int32_t read_page(LarderBackend* b, LarderBackendPage* page) {
  const Object* object = *find(b, page);
  if (object == NULL) return has(b, "misses_are_errors") ? LARDER_BACKEND_UNAVAILABLE : LARDER_BACKEND_NOT_FOUND;
  if (object->page.bytes != page->bytes && !has(b, "ignores_length")) return LARDER_BACKEND_NOT_FOUND;
  if (has(b, "other_bytes")) object = other_than(b, object);
  uint64_t at = 0;
  for (uint64_t i = 0; i < page->segment_count; ++i) {
    uint64_t size = page->segments[i].bytes;
    if (size > object->page.bytes - at) size = object->page.bytes - at;
    if (size > 0) memcpy(page->segments[i].data, object->data + at, size);
    at += size;
  }
  if (has(b, "flips_a_bit")) ((uint8_t*)page->segments[0].data)[150] ^= 4;
  page->bytes_done = page->bytes - (has(b, "short_reads") ? 1 : 0);
  return LARDER_BACKEND_OK;
}

static int32_t read_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count) {
  (void)call;
  for (uint64_t i = 0; i < count; ++i) {
    pthread_mutex_lock(&lock);
    const int32_t answer = read_page(b, &pages[i]);
    ++reads;
    pthread_mutex_unlock(&lock);
    if (has(b, "no_answer") && i + 1 == count) continue;
    pages[i].status = answer;
  }
  return LARDER_BACKEND_OK;
}

static void write_page(LarderBackend* b, LarderBackendPage* page) {
  const int is_there = *find(b, page) != NULL;
  page->status = is_there ? LARDER_BACKEND_ALREADY : LARDER_BACKEND_OK;
  page->bytes_done = page->bytes;
  if (is_there && has(b, "refuses_duplicates")) page->status = LARDER_BACKEND_INVALID;
  if (is_there && has(b, "stores_duplicates")) page->status = LARDER_BACKEND_OK;
  if (page->status != LARDER_BACKEND_OK || has(b, "forgets")) return;
  Object* const object = calloc(1, sizeof *object);
  object->store = b->store;
  object->page = *page;
  object->data = malloc(page->bytes);
  uint64_t at = 0;
  for (uint64_t i = 0; i < page->segment_count; ++i) {
    if (page->segments[i].bytes > 0) memcpy(object->data + at, page->segments[i].data, page->segments[i].bytes);
    at += page->segments[i].bytes;
  }
  object->next = objects;
  objects = object;
}

/* Lets readers look, for a while. The lock is held before and after. */
static void let_readers_in(void) {
  const uint64_t before = reads;
  for (int i = 0; i < kMostYields && reads < before + 4; ++i) {
    pthread_mutex_unlock(&lock);
    sched_yield();
    pthread_mutex_lock(&lock);
  }
}

static int32_t write_groups(LarderBackend* b, LarderBackendCall* call, LarderBackendGroup* groups, uint64_t count) {
  (void)call;
  pthread_mutex_lock(&lock);
  for (uint64_t g = 0; g < count; ++g) {
    groups[g].status = LARDER_BACKEND_OK;
    for (uint64_t i = 0; i < groups[g].page_count; ++i) {
      LarderBackendPage* const page = &groups[g].pages[i];
      const int is_last = i + 1 == groups[g].page_count;
      if (is_last && i > 0 && has(b, "shows_halves")) let_readers_in();
      if (!is_last && has(b, "loses_sidecars")) {
        page->status = LARDER_BACKEND_OK;
        page->bytes_done = page->bytes;
      } else {
        write_page(b, page);
      }
      if (page->status == LARDER_BACKEND_INVALID) groups[g].status = LARDER_BACKEND_INVALID;
    }
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static int32_t drop_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count) {
  (void)call;
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count; ++i) {
    Object** const at = find(b, &pages[i]);
    if (*at != NULL) remove_at(at);
    pages[i].status = LARDER_BACKEND_OK;
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static void clear_some(LarderBackend* b, const uint8_t* namespace_digest) {
  pthread_mutex_lock(&lock);
  for (Object** at = &objects; *at != NULL;) {
    const int is_meant = namespace_digest == NULL || memcmp((*at)->page.namespace_digest, namespace_digest, 32) == 0;
    if ((*at)->store == b->store && is_meant) {
      remove_at(at);
    } else {
      at = &(*at)->next;
    }
  }
  pthread_mutex_unlock(&lock);
}

static int32_t clear_store(LarderBackend* b, LarderBackendCall* call, const uint8_t* namespace_digest) {
  (void)call;
  if (!has(b, "clears_nothing")) clear_some(b, has(b, "clears_everything") ? NULL : namespace_digest);
  return LARDER_BACKEND_OK;
}

static void read_stats(LarderBackend* b, LarderBackendStatistics* out) {
  if (has(b, "counts_nothing")) return;
  pthread_mutex_lock(&lock);
  for (const Object* at = objects; at != NULL; at = at->next) {
    if (at->store != b->store) continue;
    ++out->objects;
    out->bytes += at->page.bytes;
    out->physical_bytes += at->page.bytes;
  }
  pthread_mutex_unlock(&lock);
}

static void close_backend(LarderBackend* b) {
  while (has(b, "hangs_in_close")) pause();
  if (has(b, "forgets_on_close")) clear_some(b, NULL);
  free(b);
}

LARDER_BACKEND_EXPORT const LarderBackendTable* larder_backend_v1(void) {
  static const LarderBackendTable kTable = {
      .abi_version = LARDER_BACKEND_ABI_VERSION,
      .struct_size = sizeof(LarderBackendTable),
      .name = "bad",
      .flags = LARDER_BACKEND_PERSISTENT | LARDER_BACKEND_ATOMIC_GROUPS,
      .alignment = 0,
      .create = create_backend,
      .exists = exists_pages,
      .read = read_pages,
      .write = write_groups,
      .drop = drop_pages,
      .clear = clear_store,
      .stats = read_stats,
      .close = close_backend,
  };
  return &kTable;
}
