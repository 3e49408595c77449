/* SPDX-License-Identifier: Apache-2.0 */
/* Larder from C: keeps four pages of a prompt in a directory, finds them, reads them back, and again after a restart.
 *
 *     cc -std=c11 c_store.c $(pkg-config --cflags --libs larder) -o c_store && ./c_store /var/tmp/pages
 *
 * The model of this "engine" has two kinds of state: KV of every page, and a recurrent state that it copies aside after
 * every second page. So it can resume after 2 and after 4 pages, and not after 1 or 3. */
#include <larder/larder.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_TOKENS = 64, PAGES = 4, KV_BYTES = 16384, STATE_BYTES = 4096, KV = 0, STATE = 1 };

typedef struct pages { /* what an engine has in its own memory */
  uint8_t kv[PAGES][KV_BYTES], state[PAGES][STATE_BYTES];
} pages;

static uint8_t keys[PAGES * LARDER_KEY_BYTES];
static larder_error error;
static const larder_terms terms = {.struct_size = sizeof terms, .timeout_seconds = 10};

static bool failed(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", what, larder_code_name(error.code), error.message);
  return false;
}

static bool open_all(const char *directory, larder_store **store, larder_space **space) {
  char config[1100]; /* JSON; larder_store_option_help() lists what may stand here */
  snprintf(config, sizeof config, "{\"directory\": \"%s\", \"max_size\": \"1Gi\"}", directory);
  const larder_store_options how = {.struct_size = sizeof how, .backend = "file", .config = config};
  if (larder_store_open(&how, store, &error) != LARDER_OK) return failed("opening the store");

  const larder_pool pools[] = {
      [KV] = {.struct_size = sizeof pools[0], .name = "kv", .page_bytes = KV_BYTES, .layout = "f16 [64][2][64]",
              .hit_policy = LARDER_ALL_PAGES},
      [STATE] = {.struct_size = sizeof pools[0], .name = "mamba", .page_bytes = STATE_BYTES, .layout = "f32 [1024]",
                 .hit_policy = LARDER_TRAILING_PAGES, .trailing_pages = 1}};
  const larder_space_options what = {.struct_size = sizeof what, .page_size = PAGE_TOKENS,
                                     .identity = "my-hybrid revision 3 weights 5f1c", .pools = pools, .pool_count = 2};
  if (larder_space_open(*store, &what, space, &error) != LARDER_OK) return failed("describing the model");
  return true;
}

/* The most pages after which the prompt can be resumed; -1: the store did not answer. */
static int restorable_pages(larder_space *space) {
  uint64_t restorable[(PAGES + 63) / 64]; /* bit p - 1: after p pages */
  if (larder_exists(space, keys, PAGES, NULL, 0, &terms, restorable, NULL, &error) != LARDER_OK) {
    failed("asking");
    return -1;
  }
  for (int p = PAGES; p > 0; --p) {
    if (restorable[(p - 1) / 64] >> ((p - 1) % 64) & 1) return p;
  }
  return 0;
}

typedef larder_code (*move_fn)(larder_space *, larder_page *, size_t, const larder_terms *, larder_error *);

/* Stores all pages, or reads them: larder_put() and larder_get() are given the same. */
static bool move_pages(const char *what, move_fn move, larder_space *space, pages *memory) {
  larder_page list[2 * PAGES] = {0};
  larder_segment segments[2 * PAGES];
  size_t count = 0;
  for (int i = 0; i < PAGES; ++i) { /* parents before children; of one key the first pool last: it commits the others */
    for (int pool = i % 2 == 1 ? STATE : KV; pool >= KV; --pool) {
      segments[count].data = pool == KV ? memory->kv[i] : memory->state[i];
      segments[count].size = pool == KV ? KV_BYTES : STATE_BYTES;
      list[count].key = keys + i * LARDER_KEY_BYTES;
      list[count].parent = i > 0 ? keys + (i - 1) * LARDER_KEY_BYTES : NULL;
      list[count].pool = (uint32_t)pool;
      list[count].segments = &segments[count];
      list[count++].segment_count = 1;
    }
  }
  return move(space, list, count, &terms, &error) == LARDER_OK || failed(what); /* list[i].code has each page's */
}

int main(int argc, char **argv) {
  if (argc != 2 || strlen(argv[1]) > 1000 || strpbrk(argv[1], "\"\\") != NULL) {
    fprintf(stderr, "usage: %s DIRECTORY (without \" and \\ in its name)\n", argv[0]);
    return 2;
  }
  static uint32_t prompt[PAGES * PAGE_TOKENS];
  static pages computed, read;
  for (int i = 0; i < PAGES * PAGE_TOKENS; ++i) prompt[i] = (uint32_t)(i * 7 + 1);
  for (int i = 0; i < PAGES; ++i) {
    memset(computed.kv[i], 0x10 + i, KV_BYTES);
    if (i % 2 == 1) memset(computed.state[i], 0x40 + i, STATE_BYTES);
  }
  larder_page_keys(prompt, PAGES * PAGE_TOKENS, PAGE_TOKENS, NULL, keys); /* key i names the tokens of pages 0 to i */

  bool is_ok = true;
  for (int opening = 1; is_ok && opening <= 2; ++opening) {
    larder_store *store = NULL;
    larder_space *space = NULL;
    is_ok = open_all(argv[1], &store, &space);
    int found = is_ok ? restorable_pages(space) : -1;
    if (found >= 0) printf("opening %d: the store can resume after %d of %d pages\n", opening, found, PAGES);
    if (found >= 0 && found < PAGES && move_pages("storing", larder_put, space, &computed)) {
      found = restorable_pages(space);
      printf("  stored %d pages: it can resume after %d\n", PAGES, found);
    }
    memset(&read, 0, sizeof read);
    is_ok = found == PAGES && move_pages("reading", larder_get, space, &read);
    if (is_ok) {
      is_ok = memcmp(&read, &computed, sizeof read) == 0;
      printf("  read them back: %s\n", is_ok ? "the same bytes" : "OTHER bytes than were stored");
    }
    larder_space_close(space);
    if (larder_store_close(store, 0, &error) != LARDER_OK) is_ok = failed("closing the store");
  }
  return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
