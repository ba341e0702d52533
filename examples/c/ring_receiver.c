// SPDX-License-Identifier: Apache-2.0
// Two unrelated programs and a ring between them: this one creates the ring and listens at a path; ring_sender.c sends lines
// of text. Any process of the same user may be a sender, as many at a time as the ring has lanes.
// Usage: ring_receiver PATH [LANES]; prints messages until every sender has left or died.
#include <feedlane.h>
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_BYTES = 120, CAPACITY = 64, DEFAULT_LANES = 4, MOST_MESSAGES = 16 };

static void print_messages(const feedlane_span *span) {
  for (uint32_t i = 0; i < span->count; i++) {
    const char *message = (const char *)span->data + i * span->stride;  // in place, in shared memory
    printf("lane %u: %.*s\n", span->lane, MESSAGE_BYTES, message);
  }
  fflush(stdout);
}

// Prints messages until END.
static int32_t receive(feedlane_rx *rx, feedlane_error *error) {
  int32_t status = FEEDLANE_OK;
  while (status == FEEDLANE_OK || status == FEEDLANE_INTERRUPTED) {
    feedlane_span span;
    status = feedlane_rx_peek(rx, MOST_MESSAGES, FEEDLANE_FOREVER, &span, error);
    if (status != FEEDLANE_OK) continue;
    print_messages(&span);
    status = feedlane_rx_release(rx, span.lane, span.count, error);
  }
  return status;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: ring_receiver PATH [LANES]\n");
    return 2;
  }
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_ring_config config = {.size = sizeof config,
                                 .message_bytes = MESSAGE_BYTES,
                                 .capacity = CAPACITY,
                                 .path = argv[1],
                                 .lanes = argc > 2 ? (uint32_t)atoi(argv[2]) : DEFAULT_LANES};
  feedlane_rx *rx = NULL;
  int32_t status = feedlane_rx_create(&config, &rx, &error);
  if (status == FEEDLANE_OK) {
    printf("listening\n");
    fflush(stdout);
    status = receive(rx, &error);
  }
  feedlane_rx_destroy(&rx);
  if (status < 0) {
    fprintf(stderr, "ring_receiver: %s: %s\n", feedlane_status_name(status), error.text);
    return 1;
  }
  return 0;
}
