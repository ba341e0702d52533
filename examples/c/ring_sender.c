// SPDX-License-Identifier: Apache-2.0
// Sends each line of standard input as a message to the ring at PATH. ring_receiver.c is the other side.
// Usage: ring_sender PATH
#include <feedlane.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 120 };  // as in ring_receiver.c

static const int64_t attach_timeout_ns = INT64_C(10000000000);

// Copies one message into the ring; waits while the ring is full.
static int32_t send_message(feedlane_tx *tx, const char *message, feedlane_error *error) {
  int32_t status;
  do {
    status = feedlane_tx_send(tx, message, 1, FEEDLANE_FOREVER, NULL, error);
  } while (status == FEEDLANE_INTERRUPTED);  // a signal arrived; wait on
  return status;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: ring_sender PATH\n");
    return 2;
  }
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_tx *tx = NULL;
  int32_t status = feedlane_tx_attach(-1, argv[1], attach_timeout_ns, &tx, NULL, &error);
  char line[MESSAGE_BYTES];
  while (status == FEEDLANE_OK && fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    status = send_message(tx, line, &error);
  }
  feedlane_tx_destroy(&tx);
  if (status < 0) {
    fprintf(stderr, "ring_sender: %s: %s\n", feedlane_status_name(status), error.text);
    return 1;
  }
  return 0;
}
