/* SPDX-License-Identifier: Apache-2.0 */
/* A storage backend for tests that misbehaves on command: objects in this process's memory, and a control file that
 * any process may map and change while calls run. Options: control=PATH, store=NUMBER (stores are told apart by it).
 * Objects stay over close(), as on a server, so that a store can be attached again. One lock; a list; no speed. */
#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "larder_backend.h"

enum Kind { kExists, kRead, kWrite, kKinds };
enum Mood { kFine, kHang, kError, kShort, kSilent, kSlow, kWrong };

/* The control file. moody.py has the same list. */
typedef struct Control {
  int32_t mood[kKinds];  /* enum Mood */
  int32_t calls[kKinds]; /* that have begun */
  int32_t hung;          /* calls that hang now */
  int32_t pass_groups;   /* so many written groups are stored; then */
  int32_t fail_groups;   /* so many fail; then all is as `mood` says */
  int32_t objects;
  int32_t open; /* handles */
} Control;

typedef struct Object {
  struct Object* next;
  int store;
  LarderBackendPage page; /* the identity and `bytes` of it count */
  uint8_t* data;
} Object;

struct LarderBackend {
  volatile Control* control;
  int store;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Object* objects = NULL;

static void add(volatile int32_t* number, int32_t much) { __atomic_add_fetch(number, much, __ATOMIC_SEQ_CST); }

/* Counts the call, lets it hang or wait as long as the mood says so, and returns the mood. */
static enum Mood begin(LarderBackend* b, enum Kind kind) {
  volatile Control* const control = b->control;
  add(&control->calls[kind], 1);
  const enum Mood mood = (enum Mood)control->mood[kind];
  if (mood == kHang) {
    add(&control->hung, 1);
    while (control->mood[kind] == kHang) usleep(500);
    add(&control->hung, -1);
  }
  if (mood == kSlow) usleep(20000);
  return mood;
}

static int32_t create_backend(const char* options, LarderBackendCall* call, LarderBackend** out) {
  LarderBackend* const b = calloc(1, sizeof *b);
  char path[1024];
  if (b != NULL && sscanf(options, "control=%1023[^\n]\nstore=%d\n", path, &b->store) == 2) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void* const memory = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory != MAP_FAILED) {
      b->control = memory;
      add(&b->control->open, 1);
      *out = b;
      return LARDER_BACKEND_OK;
    }
  }
  snprintf(call->error, call->error_capacity, "options: control, a file; store, a number");
  free(b);
  return LARDER_BACKEND_INVALID;
}

/* The place of an object in the list, or of the list's end. Under the lock. */
static Object** find(const LarderBackend* b, const LarderBackendPage* page) {
  Object** at = &objects;
  for (; *at != NULL; at = &(*at)->next) {
    const LarderBackendPage* const have = &(*at)->page;
    if ((*at)->store == b->store && have->pool == page->pool && memcmp(have->key, page->key, 32) == 0 &&
        memcmp(have->namespace_digest, page->namespace_digest, 32) == 0 &&
        memcmp(have->layout_fingerprint, page->layout_fingerprint, 32) == 0) {
      break;
    }
  }
  return at;
}

static void remove_at(LarderBackend* b, Object** at) {
  Object* const gone = *at;
  *at = gone->next;
  add(&b->control->objects, -1);
  free(gone->data);
  free(gone);
}

static int32_t exists_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count) {
  (void)call;
  const enum Mood mood = begin(b, kExists);
  if (mood == kError) return LARDER_BACKEND_UNAVAILABLE;
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count && mood != kSilent; ++i) {
    const int is_there = *find(b, &pages[i]) != NULL || mood == kWrong;
    pages[i].status = is_there ? LARDER_BACKEND_OK : LARDER_BACKEND_NOT_FOUND;
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static int32_t read_page(LarderBackend* b, LarderBackendPage* page, enum Mood mood) {
  const Object* const object = *find(b, page);
  if (object == NULL || object->page.bytes != page->bytes) return LARDER_BACKEND_NOT_FOUND;
  uint64_t left = page->bytes - (mood == kShort ? page->bytes / 2 : 0);
  const uint8_t* from = object->data;
  for (uint64_t i = 0; i < page->segment_count && left > 0; ++i) {
    const uint64_t size = page->segments[i].bytes < left ? page->segments[i].bytes : left;
    if (size > 0) memcpy(page->segments[i].data, from, size);
    from += size;
    left -= size;
  }
  if (mood == kWrong) ((uint8_t*)page->segments[page->segment_count - 1].data)[0] ^= 1;
  page->bytes_done = (uint64_t)(from - object->data);
  return LARDER_BACKEND_OK;
}

static int32_t read_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t count) {
  (void)call;
  const enum Mood mood = begin(b, kRead);
  if (mood == kError) return LARDER_BACKEND_UNAVAILABLE;
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < count && mood != kSilent; ++i) pages[i].status = read_page(b, &pages[i], mood);
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static void write_page(LarderBackend* b, LarderBackendPage* page, enum Mood mood) {
  page->bytes_done = page->bytes - (mood == kShort ? 1 : 0);
  page->status = *find(b, page) != NULL ? LARDER_BACKEND_ALREADY : LARDER_BACKEND_OK;
  if (page->status != LARDER_BACKEND_OK || mood == kShort) return;
  Object* const object = calloc(1, sizeof *object);
  object->store = b->store;
  object->page = *page;
  object->data = malloc(page->bytes);
  uint8_t* to = object->data;
  for (uint64_t i = 0; i < page->segment_count; ++i) {
    if (page->segments[i].bytes > 0) memcpy(to, page->segments[i].data, page->segments[i].bytes);
    to += page->segments[i].bytes;
  }
  object->next = objects;
  objects = object;
  add(&b->control->objects, 1);
}

/* Whether this group is one of those that fail. Under the lock. */
static int fails(LarderBackend* b) {
  volatile Control* const control = b->control;
  if (control->fail_groups == 0) return 0;
  if (control->pass_groups > 0) {
    add(&control->pass_groups, -1);
    return 0;
  }
  add(&control->fail_groups, -1);
  return 1;
}

static int32_t write_groups(LarderBackend* b, LarderBackendCall* call, LarderBackendGroup* groups, uint64_t count) {
  (void)call;
  const enum Mood mood = begin(b, kWrite);
  if (mood == kError) return LARDER_BACKEND_UNAVAILABLE;
  pthread_mutex_lock(&lock);
  for (uint64_t g = 0; g < count && mood != kSilent; ++g) {
    groups[g].status = fails(b) ? LARDER_BACKEND_UNAVAILABLE : LARDER_BACKEND_OK;
    for (uint64_t i = 0; i < groups[g].page_count && groups[g].status == LARDER_BACKEND_OK; ++i) {
      write_page(b, &groups[g].pages[i], mood);
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
    if (*at != NULL) remove_at(b, at);
    pages[i].status = LARDER_BACKEND_OK;
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static int32_t clear_store(LarderBackend* b, LarderBackendCall* call, const uint8_t* namespace_digest) {
  (void)call;
  pthread_mutex_lock(&lock);
  for (Object** at = &objects; *at != NULL;) {
    const int is_meant = namespace_digest == NULL || memcmp((*at)->page.namespace_digest, namespace_digest, 32) == 0;
    if ((*at)->store == b->store && is_meant) {
      remove_at(b, at);
    } else {
      at = &(*at)->next;
    }
  }
  pthread_mutex_unlock(&lock);
  return LARDER_BACKEND_OK;
}

static void close_backend(LarderBackend* b) {
  add(&b->control->open, -1);
  munmap((void*)b->control, sizeof(Control));
  free(b);
}

LARDER_BACKEND_EXPORT const LarderBackendTable* larder_backend_v1(void) {
  static const LarderBackendTable kTable = {
      .abi_version = LARDER_BACKEND_ABI_VERSION,
      .struct_size = sizeof(LarderBackendTable),
      .name = "moody",
      .flags = LARDER_BACKEND_PERSISTENT | LARDER_BACKEND_ATOMIC_GROUPS,
      .create = create_backend,
      .exists = exists_pages,
      .read = read_pages,
      .write = write_groups,
      .drop = drop_pages,
      .clear = clear_store,
      .close = close_backend,
  };
  return &kTable;
}
