/* SPDX-License-Identifier: Apache-2.0 */
/* A storage backend of Larder in one C file: each object is a file under one directory.
 *
 *   <directory>/LOCK                                         held while a handle is open: one handle per directory
 *   <directory>/tmp/                                         files that are being written
 *   <directory>/<namespace>/<key>-<layout>-<pool>            an object; digests as 64 hex digits
 *
 * Option: directory (required). Threads: reads run side by side; a write, drop or clear runs alone, so that no reader
 * sees half a group. After a crash half a group may be there (no ATOMIC_GROUPS): the renames are single steps.
 * It shows the contract, not speed: production code would write the temporary files outside the lock, and bound its
 * size by evicting. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "larder_backend.h"

enum { kRootBytes = 3072, kPathBytes = 4096, kBlockBytes = 4096, kHexDigits = 2 * LARDER_BACKEND_DIGEST_BYTES };

struct LarderBackend {
  char root[kRootBytes];
  int lock_file;
  pthread_rwlock_t lock;       /* files and their names */
  pthread_mutex_t counts_lock; /* taken last; never held over I/O, so that stats() does not wait for a disk */
  LarderBackendStatistics counts;
};

static int32_t fail(LarderBackendCall* call, int32_t code, const char* what, const char* name) {
  snprintf(call->error, call->error_capacity, "%s '%s': %s", what, name, strerror(errno));
  return code;
}

/* The code of the last system call that failed. */
static int32_t errno_code(void) {
  return errno == ENOSPC || errno == EDQUOT || errno == EMFILE || errno == ENFILE ? LARDER_BACKEND_OVERLOADED
                                                                                  : LARDER_BACKEND_UNAVAILABLE;
}

static void hex(const uint8_t* digest, char* out) {
  for (int i = 0; i < LARDER_BACKEND_DIGEST_BYTES; ++i) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static int is_namespace(const char* name) {
  return strlen(name) == kHexDigits && strspn(name, "0123456789abcdef") == kHexDigits;
}

static void space_path(const LarderBackend* b, const uint8_t* namespace_digest, char* out) {
  char space[kHexDigits + 1];
  hex(namespace_digest, space);
  snprintf(out, kPathBytes, "%s/%s", b->root, space);
}

static void object_path(const LarderBackend* b, const LarderBackendPage* page, char* out) {
  char space[kHexDigits + 1], key[kHexDigits + 1], layout[kHexDigits + 1];
  hex(page->namespace_digest, space);
  hex(page->key, key);
  hex(page->layout_fingerprint, layout);
  snprintf(out, kPathBytes, "%s/%s/%s-%s-%s", b->root, space, key, layout, page->pool_name);
}

/* Counts an object that came (+1) or went (-1). */
static void count(LarderBackend* b, uint64_t bytes, int sign) {
  const uint64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  pthread_mutex_lock(&b->counts_lock);
  b->counts.objects += sign > 0 ? 1 : (uint64_t)-1;
  b->counts.bytes += sign > 0 ? bytes : -bytes;
  b->counts.physical_bytes += sign > 0 ? blocks : -blocks;
  pthread_mutex_unlock(&b->counts_lock);
}

/* Removes a counted file. 0, also if it is not there; -1 with errno. */
static int remove_object(LarderBackend* b, const char* path) {
  struct stat info;
  if (stat(path, &info) != 0) return errno == ENOENT ? 0 : -1;
  if (unlink(path) != 0) return -1;
  count(b, (uint64_t)info.st_size, -1);
  return 0;
}

/* What a walk over one directory does with a file. */
enum Walk { kWalkCount, kWalkRemove, kWalkUnlink };

/* Each file of a directory. 0, or -1 with errno; a directory that is not there has no files. */
static int walk(LarderBackend* b, const char* directory, enum Walk what) {
  DIR* const files = opendir(directory);
  if (files == NULL) return errno == ENOENT ? 0 : -1;
  int result = 0;
  for (struct dirent* entry = readdir(files); entry != NULL && result == 0; entry = readdir(files)) {
    char path[kPathBytes];
    struct stat info;
    if (entry->d_name[0] == '.') continue;
    if (snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path) continue;
    if (what == kWalkRemove) result = remove_object(b, path);
    if (what == kWalkUnlink) result = unlink(path);
    if (what == kWalkCount && stat(path, &info) == 0) count(b, (uint64_t)info.st_size, +1);
  }
  closedir(files);
  return result;
}

/* The same for the directory of each namespace. */
static int walk_spaces(LarderBackend* b, enum Walk what) {
  DIR* const spaces = opendir(b->root);
  if (spaces == NULL) return -1;
  int result = 0;
  for (struct dirent* entry = readdir(spaces); entry != NULL && result == 0; entry = readdir(spaces)) {
    char path[kPathBytes];
    if (!is_namespace(entry->d_name)) continue;
    snprintf(path, sizeof path, "%s/%s", b->root, entry->d_name);
    result = walk(b, path, what);
    if (what == kWalkRemove && result == 0) rmdir(path);
  }
  closedir(spaces);
  return result;
}

/* The value of the one option into b->root. */
static int32_t read_options(const char* options, LarderBackendCall* call, LarderBackend* b) {
  static const char kKey[] = "directory=";
  for (const char* line = options; *line != '\0';) {
    const char* const end = strchr(line, '\n'); /* each line has one */
    const char* const value = line + sizeof kKey - 1;
    if (strncmp(line, kKey, sizeof kKey - 1) != 0 || end - value >= kRootBytes) {
      snprintf(call->error, call->error_capacity, "option '%.*s': the one option is directory=PATH (at most %d bytes)",
               (int)(end - line), line, kRootBytes - 1);
      return LARDER_BACKEND_INVALID;
    }
    snprintf(b->root, sizeof b->root, "%.*s", (int)(end - value), value);
    line = end + 1;
  }
  if (b->root[0] != '\0') return LARDER_BACKEND_OK;
  snprintf(call->error, call->error_capacity, "option 'directory' is missing");
  return LARDER_BACKEND_INVALID;
}

/* Makes and locks the directory, removes what a crash left in tmp/, counts what is there. */
static int32_t open_store(LarderBackend* b, LarderBackendCall* call) {
  char path[kPathBytes];
  if (mkdir(b->root, 0755) != 0 && errno != EEXIST) return fail(call, errno_code(), "mkdir", b->root);
  snprintf(path, sizeof path, "%s/LOCK", b->root);
  b->lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (b->lock_file < 0) return fail(call, errno_code(), "open", path);
  if (flock(b->lock_file, LOCK_EX | LOCK_NB) != 0) return fail(call, LARDER_BACKEND_UNAVAILABLE, "in use", path);
  snprintf(path, sizeof path, "%s/tmp", b->root);
  if (mkdir(path, 0755) != 0 && errno != EEXIST) return fail(call, errno_code(), "mkdir", path);
  if (walk(b, path, kWalkUnlink) != 0) return fail(call, errno_code(), "clean", path);
  return walk_spaces(b, kWalkCount) == 0 ? LARDER_BACKEND_OK : fail(call, errno_code(), "list", b->root);
}

static void close_backend(LarderBackend* b) {
  if (b->lock_file >= 0) close(b->lock_file);
  pthread_mutex_destroy(&b->counts_lock);
  pthread_rwlock_destroy(&b->lock);
  free(b);
}

static int32_t create_backend(const char* options, LarderBackendCall* call, LarderBackend** out) {
  LarderBackend* const b = calloc(1, sizeof *b);
  if (b == NULL) return LARDER_BACKEND_OVERLOADED;
  b->lock_file = -1;
  pthread_rwlock_init(&b->lock, NULL);
  pthread_mutex_init(&b->counts_lock, NULL);
  int32_t code = read_options(options, call, b);
  if (code == LARDER_BACKEND_OK) code = open_store(b, call);
  if (code == LARDER_BACKEND_OK) {
    *out = b;
  } else {
    close_backend(b);
  }
  return code;
}

static int32_t exists_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t page_count) {
  (void)call;
  pthread_rwlock_rdlock(&b->lock);
  for (uint64_t i = 0; i < page_count; ++i) {
    char path[kPathBytes];
    object_path(b, &pages[i], path);
    pages[i].status = access(path, F_OK) == 0 ? LARDER_BACKEND_OK : LARDER_BACKEND_NOT_FOUND;
  }
  pthread_rwlock_unlock(&b->lock);
  return LARDER_BACKEND_OK;
}

static int32_t read_page(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* page) {
  char path[kPathBytes];
  struct stat info;
  object_path(b, page, path);
  FILE* const file = fopen(path, "rb");
  if (file == NULL) return errno == ENOENT ? LARDER_BACKEND_NOT_FOUND : fail(call, errno_code(), "open", path);
  if (fstat(fileno(file), &info) != 0 || (uint64_t)info.st_size != page->bytes) {
    fclose(file);
    return LARDER_BACKEND_NOT_FOUND; /* another length: not what is looked for */
  }
  for (uint64_t i = 0; i < page->segment_count; ++i) {
    const LarderBackendSegment* const piece = &page->segments[i];
    if (piece->bytes > 0) page->bytes_done += fread(piece->data, 1, piece->bytes, file);
  }
  fclose(file);
  return page->bytes_done == page->bytes ? LARDER_BACKEND_OK : fail(call, LARDER_BACKEND_UNAVAILABLE, "read", path);
}

static int32_t read_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t page_count) {
  pthread_rwlock_rdlock(&b->lock);
  for (uint64_t i = 0; i < page_count; ++i) pages[i].status = read_page(b, call, &pages[i]);
  pthread_rwlock_unlock(&b->lock);
  return LARDER_BACKEND_OK;
}

/* Writes the page's bytes to `path`. 0, or -1 with errno. */
static int write_file(const char* path, LarderBackendPage* page, int is_durable) {
  FILE* const file = fopen(path, "wb");
  if (file == NULL) return -1;
  page->bytes_done = 0;
  for (uint64_t i = 0; i < page->segment_count; ++i) {
    const LarderBackendSegment* const piece = &page->segments[i];
    if (piece->bytes > 0) page->bytes_done += fwrite(piece->data, 1, piece->bytes, file);
  }
  const int is_written = page->bytes_done == page->bytes && fflush(file) == 0;
  const int is_safe = is_written && (!is_durable || fsync(fileno(file)) == 0);
  const int error = errno;
  if (fclose(file) == 0 && is_safe) return 0;
  if (!is_safe) errno = error;
  return -1;
}

/* Of a file or a directory. */
static int sync_path(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const int result = fsync(file);
  close(file);
  return result;
}

/* Makes one page visible, or answers ALREADY. */
static int32_t write_page(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* page) {
  char path[kPathBytes], temporary[kPathBytes], space[kPathBytes];
  struct stat info;
  object_path(b, page, path);
  if (stat(path, &info) == 0) {
    if ((uint64_t)info.st_size == page->bytes) { /* who wrote it may not have asked for durability */
      const int is_safe = !(call->flags & LARDER_BACKEND_DURABLE) || sync_path(path) == 0;
      return is_safe ? LARDER_BACKEND_ALREADY : fail(call, errno_code(), "sync", path);
    }
    if (remove_object(b, path) != 0) return fail(call, errno_code(), "remove", path); /* cut short by a power cut */
  }
  snprintf(temporary, sizeof temporary, "%s/tmp/object", b->root); /* one write at a time */
  if (write_file(temporary, page, call->flags & LARDER_BACKEND_DURABLE) != 0) {
    return fail(call, errno_code(), "write", temporary);
  }
  space_path(b, page->namespace_digest, space);
  if (mkdir(space, 0755) != 0 && errno != EEXIST) return fail(call, errno_code(), "mkdir", space);
  if (rename(temporary, path) != 0) return fail(call, errno_code(), "rename", path);
  count(b, page->bytes, +1);
  return LARDER_BACKEND_OK;
}

/* All of a group or nothing: what came before a failure is taken back. The last page, the commit mark, comes last. */
static int32_t write_group(LarderBackend* b, LarderBackendCall* call, LarderBackendGroup* group) {
  char path[kPathBytes];
  uint64_t done = 0;
  int32_t code = LARDER_BACKEND_OK;
  for (; done < group->page_count && code == LARDER_BACKEND_OK; ++done) {
    const int32_t answer = write_page(b, call, &group->pages[done]);
    group->pages[done].status = answer;
    if (answer != LARDER_BACKEND_OK && answer != LARDER_BACKEND_ALREADY) code = answer;
  }
  if (code == LARDER_BACKEND_OK && (call->flags & LARDER_BACKEND_DURABLE)) {
    space_path(b, group->pages[0].namespace_digest, path);
    if (sync_path(path) != 0 || sync_path(b->root) != 0) code = fail(call, errno_code(), "sync", path);
  }
  for (uint64_t i = 0; i < done && code != LARDER_BACKEND_OK; ++i) {
    if (group->pages[i].status != LARDER_BACKEND_OK) continue;
    object_path(b, &group->pages[i], path);
    remove_object(b, path);
  }
  return code;
}

static int32_t write_groups(LarderBackend* b, LarderBackendCall* call, LarderBackendGroup* groups,
                            uint64_t group_count) {
  for (uint64_t i = 0; i < group_count; ++i) {
    pthread_rwlock_wrlock(&b->lock); /* for each group anew: readers get in between */
    groups[i].status = write_group(b, call, &groups[i]);
    pthread_rwlock_unlock(&b->lock);
  }
  return LARDER_BACKEND_OK;
}

static int32_t drop_pages(LarderBackend* b, LarderBackendCall* call, LarderBackendPage* pages, uint64_t page_count) {
  pthread_rwlock_wrlock(&b->lock);
  for (uint64_t i = 0; i < page_count; ++i) {
    char path[kPathBytes];
    object_path(b, &pages[i], path);
    pages[i].status = remove_object(b, path) == 0 ? LARDER_BACKEND_OK : fail(call, errno_code(), "remove", path);
  }
  pthread_rwlock_unlock(&b->lock);
  return LARDER_BACKEND_OK;
}

static int32_t clear_store(LarderBackend* b, LarderBackendCall* call, const uint8_t* namespace_digest) {
  char path[kPathBytes];
  int result = 0;
  pthread_rwlock_wrlock(&b->lock);
  if (namespace_digest == NULL) {
    result = walk_spaces(b, kWalkRemove);
  } else {
    space_path(b, namespace_digest, path);
    result = walk(b, path, kWalkRemove);
    if (result == 0) rmdir(path);
  }
  const int32_t code = result == 0 ? LARDER_BACKEND_OK : fail(call, errno_code(), "clear", b->root);
  pthread_rwlock_unlock(&b->lock);
  return code;
}

static void read_stats(LarderBackend* b, LarderBackendStatistics* out) {
  pthread_mutex_lock(&b->counts_lock);
  *out = b->counts;
  pthread_mutex_unlock(&b->counts_lock);
}

LARDER_BACKEND_EXPORT const LarderBackendTable* larder_backend_v1(void) {
  static const LarderBackendTable kTable = {
      .abi_version = LARDER_BACKEND_ABI_VERSION,
      .struct_size = sizeof(LarderBackendTable),
      .name = "directory",
      .flags = LARDER_BACKEND_PERSISTENT,
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
