// SPDX-License-Identifier: Apache-2.0
// Sends each line of standard input to the ring at PATH; see ring_receiver.c. Usage: ring_sender PATH
#include <feedlane.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  if (argc < 2) return fputs("usage: ring_sender PATH\n", stderr), 2;
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_tx *tx = NULL;
  int32_t s = feedlane_tx_attach(-1, argv[1], 10000000000, &tx, &e);
  char line[120];
  while (s == FEEDLANE_OK && fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    feedlane_span span;
    do s = feedlane_tx_reserve(tx, 1, FEEDLANE_FOREVER, &span, &e);  // waits for room
    while (s == FEEDLANE_INTERRUPTED);
    if (s == FEEDLANE_OK) {
      memcpy(span.data, line, sizeof line);
      s = feedlane_tx_commit(tx, 1, &e);  // seen whole, even if this process is killed right here
    }
  }
  if (s < 0) fprintf(stderr, "ring_sender: %s: %s\n", feedlane_status_name(s), e.text);
  feedlane_tx_destroy(&tx);
  return s < 0;
}
