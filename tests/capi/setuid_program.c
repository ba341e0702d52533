/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what this program believes of its environment: the worker's descriptor, whether the variable is left for programs that it
 * starts, and where the rank comes from. */
#include <stdio.h>
#include <stdlib.h>

#include "feedlane.h"

int main(void) {
  const int fd = feedlane_worker_fd();
  feedlane_rank rank;
  feedlane_init(&rank, sizeof rank);
  const int status = feedlane_rank_detect(&rank, NULL);
  printf("%d %d %s\n", fd, getenv("FEEDLANE_WORKER_FD") != NULL, status == FEEDLANE_OK ? rank.source : "refused");
  return 0;
}
