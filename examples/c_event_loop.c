/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with an event loop of its own: Larder's connector is one of the descriptors in its epoll, and no call of it
 * waits. Several requests are under way at once, each a small state machine that goes on when its event has come.
 *
 *     cc -std=c11 c_event_loop.c $(pkg-config --cflags --libs larder) -o c_event_loop && ./c_event_loop /var/tmp/pages
 *
 * What the "engine" computes for a page are bytes that follow from the tokens, so that it can tell whether it was given
 * the right ones. Run it twice: the second time the prompts come from the store. */
#include <larder/larder.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { PAGE_TOKENS = 16, PAGE_BYTES = 4096, MOST_PAGES = 24, REQUESTS = 4 };

typedef enum phase { LOOKS_UP, LOADS, SAVES, DONE } phase;

typedef struct request {
  phase phase;
  uint64_t lookup, transfer;
  uint64_t pages, reused; /* of the prompt */
  bool is_wrong;
  uint32_t tokens[MOST_PAGES * PAGE_TOKENS + 1];
  uint8_t kv[MOST_PAGES][PAGE_BYTES];
} request;

static larder_error error;
static request requests[REQUESTS];

static bool failed(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", what, larder_code_name(error.code), error.message);
  return false;
}

/* What the model makes of the tokens up to the end of a page. */
static uint8_t value_of(const request *r, uint64_t page) {
  uint32_t sum = 1;
  for (uint64_t i = 0; i < (page + 1) * PAGE_TOKENS; ++i) sum = sum * 31 + r->tokens[i];
  return (uint8_t)(sum >> 7);
}

/* On Larder's copying threads: from its host memory, and into it. With a GPU these are copies to and from the device,
 * and larder_connector_memory() says what to register with it. */
static larder_code take_page(void *context, uint32_t pool, uint64_t page, const larder_segment *segments, size_t count) {
  uint8_t *to = ((request *)context)->kv[page];
  (void)pool;
  for (size_t i = 0; i < count; to += segments[i++].size) memcpy(to, segments[i].data, segments[i].size);
  return LARDER_OK;
}
static larder_code give_page(void *context, uint32_t pool, uint64_t page, const larder_segment *segments, size_t count) {
  const uint8_t *from = ((request *)context)->kv[page];
  (void)pool;
  for (size_t i = 0; i < count; from += segments[i++].size) memcpy(segments[i].data, from, segments[i].size);
  return LARDER_OK;
}

static void begin(larder_connector *connector, request *r, uint32_t number, uint64_t pages) {
  memset(r, 0, sizeof *r);
  r->pages = pages;
  const size_t count = (size_t)pages * PAGE_TOKENS + 1;
  for (size_t i = 0; i < count; ++i) r->tokens[i] = (uint32_t)(i * 7 + (i < 4 * PAGE_TOKENS ? 0 : number));
  const larder_lookup_options look = {.struct_size = sizeof look, .tokens = r->tokens, .token_count = count};
  /* What is refused here or below (overload) costs a miss, and no more. */
  if (larder_lookup(connector, &look, &r->lookup, &error) != LARDER_OK) r->phase = DONE;
}

static void compute_and_save(larder_connector *connector, request *r) {
  larder_release(connector, r->lookup);
  for (uint64_t page = 0; page < r->reused; ++page) r->is_wrong |= r->kv[page][PAGE_BYTES - 1] != value_of(r, page);
  for (uint64_t page = r->reused; page < r->pages; ++page) memset(r->kv[page], value_of(r, page), PAGE_BYTES);
  const larder_save_options save = {.struct_size = sizeof save, .tokens = r->tokens,
                                    .token_count = (size_t)r->pages * PAGE_TOKENS + 1, .from_page = r->reused,
                                    .to_page = r->pages, .page = give_page, .context = r};
  r->phase = SAVES;
  if (r->reused == r->pages || larder_save(connector, &save, &r->transfer, &error) != LARDER_OK) r->phase = DONE;
}

/* The event of the request has come. */
static void go_on(larder_connector *connector, request *r) {
  larder_transfer_result result = {.struct_size = sizeof result};
  if (r->phase == LOOKS_UP) {
    larder_point best;
    size_t count;
    const larder_code code = larder_points(connector, r->lookup, &best, 1, &count, &error);
    if (code == LARDER_OVERLOADED) return; /* there will be another event */
    if (code == LARDER_OK && count > 0) {
      const larder_load_options load = {.struct_size = sizeof load, .lookup = r->lookup, .pages = best.pages,
                                        .page = take_page, .context = r};
      if (larder_load(connector, &load, &r->transfer, &error) == LARDER_OK) {
        r->phase = LOADS;
        return;
      }
    }
    compute_and_save(connector, r);
  } else if (larder_transfer_take(connector, r->transfer, &result, &error) == LARDER_OK) {
    if (r->phase == SAVES) {
      r->phase = DONE;
      return;
    }
    r->reused = result.code == LARDER_OK ? result.pages : 0;
    compute_and_save(connector, r);
  }
}

static request *request_of(const larder_event *event) {
  for (request *r = requests; r < requests + REQUESTS; ++r) {
    if (event->kind == LARDER_EVENT_LOOKUP ? r->phase == LOOKS_UP && r->lookup == event->number
                                           : (r->phase == LOADS || r->phase == SAVES) && r->transfer == event->number) {
      return r;
    }
  }
  return NULL;
}

/* One turn of the loop. Sockets and timers of the engine are in the same epoll. */
static void turn(larder_connector *connector, int loop) {
  struct epoll_event ready[8];
  const double most = larder_connector_next_poll(connector) * 1000; /* after the turn's last call of the connector */
  const int wait = (int)most + ((double)(int)most < most ? 1 : 0);
  (void)epoll_wait(loop, ready, 8, wait); /* ready or not: */
  larder_connector_poll(connector, 0);
  larder_event events[8];
  for (size_t count; (count = larder_connector_events(connector, events, 8)) > 0;) {
    for (size_t i = 0; i < count; ++i) {
      request *r = request_of(&events[i]);
      if (r != NULL) go_on(connector, r);
    }
  }
}

static bool is_any_open(void) {
  for (int i = 0; i < REQUESTS; ++i) {
    if (requests[i].phase != DONE) return true;
  }
  return false;
}

static bool serve(larder_connector *connector, int loop) {
  for (int round = 1; round <= 2; ++round) {
    for (uint32_t i = 0; i < REQUESTS; ++i) begin(connector, &requests[i], i, round == 1 ? 16 : MOST_PAGES);
    while (is_any_open()) turn(connector, loop);
    for (int i = 0; i < REQUESTS; ++i) {
      printf("round %d, request %d: %2u of %2u pages reused\n", round, i, (unsigned)requests[i].reused,
             (unsigned)requests[i].pages);
      if (requests[i].is_wrong) {
        fprintf(stderr, "OTHER bytes came than were saved\n");
        return false;
      }
    }
  }
  for (int i = 0; i < 1000 && larder_connector_in_flight(connector) > 0; ++i) turn(connector, loop); /* to the store */
  return true;
}

static bool open_all(const char *directory, larder_store **store, larder_connector **connector) {
  char config[1100];
  snprintf(config, sizeof config, "{\"directory\": \"%s\", \"max_size\": \"1Gi\"}", directory);
  const larder_store_options shelf = {.struct_size = sizeof shelf, .backend = "file", .config = config};
  if (larder_store_open(&shelf, store, &error) != LARDER_OK) return failed("opening the store");
  const larder_pool kv = {.struct_size = sizeof kv, .name = "kv", .page_bytes = PAGE_BYTES, .layout = "f16 [16][2][64]",
                          .hit_policy = LARDER_ALL_PAGES};
  const larder_space_options model = {.struct_size = sizeof model, .page_size = PAGE_TOKENS,
                                      .identity = "my-model revision 1", .pools = &kv, .pool_count = 1};
  const larder_connector_options beside = {.struct_size = sizeof beside, .model = &model, .host_bytes = 4 << 20,
                                           .prefetch_policy = LARDER_PREFETCH_WAIT_COMPLETE,
                                           .prefetch_tokens = PAGE_TOKENS};
  if (larder_connector_open(&beside, connector, &error) != LARDER_OK) return failed("opening the connector");
  if (larder_connector_attach(*connector, *store, &error) != LARDER_OK) return failed("attaching the store");
  return true;
}

int main(int argc, char **argv) {
  if (argc != 2 || strlen(argv[1]) > 1000 || strpbrk(argv[1], "\"\\") != NULL) {
    fprintf(stderr, "usage: %s DIRECTORY (without \" and \\ in its name)\n", argv[0]);
    return 2;
  }
  larder_store *store = NULL;
  larder_connector *connector = NULL;
  bool is_ok = open_all(argv[1], &store, &connector);
  struct epoll_event wanted = {.events = EPOLLIN};
  const int loop = epoll_create1(EPOLL_CLOEXEC);
  int32_t descriptor;
  if (is_ok && larder_connector_fd(connector, &descriptor, &error) != LARDER_OK) is_ok = failed("its descriptor");
  if (is_ok && epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &wanted) != 0) {
    perror("epoll_ctl");
    is_ok = false;
  }
  is_ok = is_ok && serve(connector, loop);
  if (loop >= 0) close(loop); /* or EPOLL_CTL_DEL: before the connector ends */
  if (larder_connector_close(connector, 10, &error) != LARDER_OK) is_ok = failed("closing the connector");
  if (larder_store_close(store, 0, &error) != LARDER_OK) is_ok = failed("closing the store");
  return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
