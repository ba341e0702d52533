// SPDX-License-Identifier: Apache-2.0
// Two unrelated programs and a ring between them: this one makes it and listens at a path; ring_sender, started by anybody
// of the same user, as often as lanes allow, sends lines of text.
// Usage: ring_receiver PATH [LANES]; prints what comes until every sender has left or died.
#include <feedlane.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  if (argc < 2) return fputs("usage: ring_receiver PATH [LANES]\n", stderr), 2;
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_ring_config c = {.size = sizeof c,
                            .message_bytes = 120,
                            .capacity = 64,
                            .path = argv[1],
                            .lanes = argc > 2 ? (uint32_t)atoi(argv[2]) : 4};
  feedlane_rx *rx = NULL;
  int32_t s = feedlane_rx_create(&c, &rx, &e);
  if (s == FEEDLANE_OK) printf("listening\n"), fflush(stdout);
  feedlane_span span;
  while (s == FEEDLANE_OK || s == FEEDLANE_INTERRUPTED) {
    s = feedlane_rx_peek(rx, 16, FEEDLANE_FOREVER, &span, &e);
    if (s != FEEDLANE_OK) continue;
    for (uint32_t i = 0; i < span.count; i++)  // messages in place, `stride` bytes apart
      printf("lane %u: %.120s\n", span.lane, (const char *)span.data + i * span.stride);
    s = feedlane_rx_release(rx, span.lane, span.count, &e);
    fflush(stdout);
  }
  if (s < 0) fprintf(stderr, "ring_receiver: %s: %s\n", feedlane_status_name(s), e.text);
  feedlane_rx_destroy(&rx);
  return s < 0;
}
