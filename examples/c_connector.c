/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with memory of its own, and Larder's connector beside it: a host tier, and a store on disk behind that.
 *
 *     cc -std=c11 c_connector.c $(pkg-config --cflags --libs larder) -o c_connector && ./c_connector /var/tmp/pages
 *
 * The "engine" runs three conversations of three turns in memory that has room for one. Its model has KV, a sliding
 * window of two pages, and a recurrent state. What it "computes" for a page are bytes that follow from the tokens, so
 * that it can tell whether it was given the right ones. Run it twice: the second time the prompts come from the store. */
#include <larder/larder.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_TOKENS = 16, MOST_PAGES = 24, KV_BYTES = 4096, WINDOW_BYTES = 2048, STATE_BYTES = 8192 };
enum { KV, WINDOW, STATE, POOLS, WINDOW_PAGES = 2, MOST_PLACES = MOST_PAGES * 2 + 1 };

static const size_t bytes_of[POOLS] = {KV_BYTES, WINDOW_BYTES, STATE_BYTES};
static larder_error error;

/* The engine's own memory: pages of one request. */
static uint8_t kv[MOST_PAGES][KV_BYTES], window[MOST_PAGES][WINDOW_BYTES], state[STATE_BYTES];
static uint32_t tokens[MOST_PAGES * PAGE_TOKENS + 1];

/* Where pages are in that memory, for one transfer. */
typedef struct places {
  larder_place list[MOST_PLACES];
  larder_segment segments[MOST_PLACES];
  size_t count;
} places;

static bool failed(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", what, larder_code_name(error.code), error.message);
  return false;
}

static void add_place(places *to, uint32_t pool, uint64_t page) {
  larder_segment *segment = &to->segments[to->count];
  segment->data = pool == KV ? kv[page] : pool == WINDOW ? window[page] : state;
  segment->size = bytes_of[pool];
  to->list[to->count++] = (larder_place){.pool = pool, .segment_count = 1, .page = page, .segments = segment};
}

/* Pages [first, end) of KV, [first_window, end) of the window, and the state at `end`. */
static void find_places(places *to, uint64_t first, uint64_t first_window, uint64_t end) {
  to->count = 0;
  for (uint64_t page = first; page < end; ++page) add_place(to, KV, page);
  for (uint64_t page = first_window; page < end; ++page) add_place(to, WINDOW, page);
  add_place(to, STATE, end - 1);
}

/* What the model makes of the tokens up to the end of a page. */
static uint8_t value_of(uint32_t pool, uint64_t page) {
  uint32_t sum = pool + 1;
  for (uint64_t i = 0; i < (page + 1) * PAGE_TOKENS; ++i) sum = sum * 31 + tokens[i];
  return (uint8_t)(sum >> 7);
}

static void compute(uint64_t from, uint64_t to) {
  for (uint64_t page = from; page < to; ++page) {
    memset(kv[page], value_of(KV, page), KV_BYTES);
    memset(window[page], value_of(WINDOW, page), WINDOW_BYTES);
    memset(state, value_of(STATE, page), STATE_BYTES);
  }
}

static bool is_right(const places *where) {
  for (size_t i = 0; i < where->count; ++i) {
    const uint8_t *bytes = where->segments[i].data;
    const uint8_t wanted = value_of(where->list[i].pool, where->list[i].page);
    for (size_t k = 0; k < where->segments[i].size; ++k) {
      if (bytes[k] != wanted) return false;
    }
  }
  return true;
}

static bool open_all(const char *directory, larder_store **store, larder_connector **connector) {
  char config[1100];
  snprintf(config, sizeof config, "{\"directory\": \"%s\", \"max_size\": \"1Gi\"}", directory);
  const larder_store_options shelf = {.struct_size = sizeof shelf, .backend = "file", .config = config};
  if (larder_store_open(&shelf, store, &error) != LARDER_OK) return failed("opening the store");
  const larder_pool pools[POOLS] = {
      [KV] = {.struct_size = sizeof pools[0], .name = "kv", .page_bytes = KV_BYTES, .layout = "f16 [16][2][64]",
              .hit_policy = LARDER_ALL_PAGES},
      [WINDOW] = {.struct_size = sizeof pools[0], .name = "swa", .page_bytes = WINDOW_BYTES, .layout = "f16 [16][64]",
                  .hit_policy = LARDER_TRAILING_PAGES, .trailing_pages = WINDOW_PAGES},
      [STATE] = {.struct_size = sizeof pools[0], .name = "ssm", .page_bytes = STATE_BYTES, .layout = "f32 [2048]",
                 .hit_policy = LARDER_TRAILING_PAGES, .trailing_pages = 1}};
  const larder_space_options model = {.struct_size = sizeof model, .page_size = PAGE_TOKENS,
                                      .identity = "my-hybrid revision 1", .pools = pools, .pool_count = POOLS};
  /* A small host tier, so that prompts leave it; and short prompts are worth asking the store for. */
  const larder_connector_options beside = {.struct_size = sizeof beside, .model = &model, .host_bytes = 256 * 1024,
                                           .prefetch_tokens = PAGE_TOKENS};
  if (larder_connector_open(&beside, connector, &error) != LARDER_OK) return failed("opening the connector");
  if (larder_connector_attach(*connector, *store, &error) != LARDER_OK) return failed("attaching the store");
  return true;
}

/* Waits for a transfer; an engine would compute other requests meanwhile. */
static bool finish(larder_connector *connector, const char *what, uint64_t transfer, larder_transfer_result *result) {
  *result = (larder_transfer_result){.struct_size = sizeof *result};
  larder_code code;
  while ((code = larder_transfer_take(connector, transfer, result, &error)) == LARDER_OVERLOADED) {
    larder_connector_poll(connector, 0.1);
  }
  return (code == LARDER_OK && result->code == LARDER_OK) || failed(what);
}

/* Brings what there is of the prompt. Returns the pages that need not be computed; 0 also when Larder cannot help. */
static uint64_t resume(larder_connector *connector, size_t token_count, bool *is_ok) {
  const larder_lookup_options look = {.struct_size = sizeof look, .tokens = tokens, .token_count = token_count};
  uint64_t lookup, transfer, pages = 0;
  if (larder_lookup(connector, &look, &lookup, &error) != LARDER_OK) return 0; /* overloaded: compute it */
  larder_point best;
  size_t count = 0;
  while (larder_points(connector, lookup, &best, 1, &count, &error) == LARDER_OVERLOADED) {
    larder_connector_poll(connector, 0.1); /* the store is being read; prefetch_seconds bound this */
  }
  if (count > 0) {
    places where; /* has to live until larder_load() returns; the memory behind it, until the transfer has ended */
    find_places(&where, best.first_page, best.first_window, best.pages);
    const larder_load_options load = {.struct_size = sizeof load, .lookup = lookup, .pages = best.pages,
                                      .places = where.list, .place_count = where.count};
    larder_transfer_result result;
    if (larder_load(connector, &load, &transfer, &error) == LARDER_OK && finish(connector, "loading", transfer, &result)) {
      pages = best.pages;
      if (!is_right(&where)) {
        fprintf(stderr, "OTHER bytes came than were saved\n");
        *is_ok = false;
      }
    }
  }
  larder_release(connector, lookup);
  return pages;
}

/* Keeps the whole pages of what was computed. While the store is taking what would have to go, it waits a little; an
 * engine would compute meanwhile. Overload costs a miss later, and no more. */
static bool keep(larder_connector *connector, size_t token_count, uint64_t from) {
  const uint64_t to = token_count / PAGE_TOKENS, windows = to < WINDOW_PAGES ? to : WINDOW_PAGES;
  places where;
  find_places(&where, from, to - windows, to);
  const larder_save_options save = {.struct_size = sizeof save, .flags = LARDER_SAVE_MAY_WAIT, .tokens = tokens,
                                    .token_count = token_count, .from_page = from, .to_page = to,
                                    .window_pages = windows, .states = &to, .state_count = 1, .places = where.list,
                                    .place_count = where.count};
  uint64_t transfer;
  larder_code code = LARDER_OVERLOADED;
  for (int tries = 0; code == LARDER_OVERLOADED && tries < 200; ++tries) {
    if (tries > 0) larder_connector_poll(connector, 0.01);
    code = larder_save(connector, &save, &transfer, &error);
  }
  if (code == LARDER_OVERLOADED) return true;
  larder_transfer_result result;
  return code == LARDER_OK ? finish(connector, "saving", transfer, &result) : failed("saving");
}

static bool talk(larder_connector *connector) {
  bool is_ok = true;
  for (int turn = 1; is_ok && turn <= 3; ++turn) {
    for (uint32_t conversation = 0; is_ok && conversation < 3; ++conversation) {
      const size_t token_count = (size_t)turn * 8 * PAGE_TOKENS + 1;
      for (size_t i = 0; i < token_count; ++i) tokens[i] = (uint32_t)(i * 7 + (i < 4 * PAGE_TOKENS ? 0 : conversation));
      memset(kv, 0, sizeof kv), memset(window, 0, sizeof window), memset(state, 0, sizeof state);
      const uint64_t reused = resume(connector, token_count, &is_ok);
      compute(reused, token_count / PAGE_TOKENS);
      is_ok = is_ok && keep(connector, token_count, reused);
      printf("turn %d of conversation %u: %2u of %2u pages reused\n", turn, conversation, (unsigned)reused,
             (unsigned)(token_count / PAGE_TOKENS));
    }
  }
  return is_ok;
}

int main(int argc, char **argv) {
  if (argc != 2 || strlen(argv[1]) > 1000 || strpbrk(argv[1], "\"\\") != NULL) {
    fprintf(stderr, "usage: %s DIRECTORY (without \" and \\ in its name)\n", argv[0]);
    return 2;
  }
  larder_store *store = NULL;
  larder_connector *connector = NULL;
  bool is_ok = open_all(argv[1], &store, &connector);
  is_ok = is_ok && talk(connector);
  for (int i = 0; is_ok && i < 100 && larder_connector_in_flight(connector) > 0; ++i) {
    larder_connector_poll(connector, 0.1); /* what is on its way to the store */
  }
  char text[1024];
  if (is_ok && larder_connector_stats(connector, text, sizeof text) > 0) printf("%s\n", text);
  if (larder_connector_close(connector, 10, &error) != LARDER_OK) is_ok = failed("closing the connector");
  if (larder_store_close(store, 0, &error) != LARDER_OK) is_ok = failed("closing the store");
  return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
