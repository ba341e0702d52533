// SPDX-License-Identifier: Apache-2.0
// feedlane-image-folder: a worker program that decodes pictures, for trainers in any language.
#include <feedlane/worker.hpp>

#include <cstdio>
#include <exception>

#include "dataset.hpp"
#include "listing.hpp"
#include "options.hpp"

namespace {

constexpr int exit_usage = 2;

int refuse(const char* why, int status) {
  (void)std::fprintf(stderr, "feedlane-image-folder: %s\n", why);
  return status;
}

/// The worker's side: what is wrong with the command line is the trainer's error.
int run_worker(int argc, char** argv) {
  images::Options options;
  std::string complaint;
  try {
    options = images::parse_options(argc, argv);
  } catch (const std::exception& error) {
    complaint = error.what();
  }
  images::Dataset dataset(std::move(options), std::move(complaint));
  feedlane::Error error;
  const int status = feedlane::run_worker(feedlane::worker_descriptor(), dataset, error);
  return error ? refuse(error.what(), status) : status;
}

int run(const images::Options& options) {
  using Mode = images::Options::Mode;
  if (options.mode == Mode::list) images::print_list(options.root, stdout);
  else if (options.mode == Mode::version) std::puts("feedlane-image-folder " FEEDLANE_COMMAND_VERSION);
  else if (options.mode == Mode::help) (void)std::fputs(images::usage, stdout);
  else return refuse("a worker program is started by a loader; --list DIR lists a folder, see --help", exit_usage);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (feedlane::is_worker()) return run_worker(argc, argv);
  images::Options options;
  try {
    options = images::parse_options(argc, argv);
  } catch (const std::exception& error) {
    return refuse(error.what(), exit_usage);
  }
  try {
    return run(options);
  } catch (const std::exception& error) {
    return refuse(error.what(), 1);
  }
}
