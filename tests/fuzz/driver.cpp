// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files as they are: DRIVER FILE_OR_FOLDER... With no file in them it fails.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "input.hpp"

extern "C" [[gnu::weak]] int LLVMFuzzerInitialize(int*, char***) { return 0; }

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void run(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> content{std::istreambuf_iterator<char>(in), {}};
  // In memory of its own size, so that a sanitizer sees a step beyond its end.
  std::vector<std::uint8_t> bytes(content.begin(), content.end());
  bytes.shrink_to_fit();
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  (void)LLVMFuzzerInitialize(&argc, &argv);
  std::size_t count = 0;
  for (int i = 1; i < argc; i++)
    for (const auto& file : files_of(argv[i])) {
      (void)std::fprintf(stderr, "%s\n", file.c_str());  // the last one named is the one that ended the process
      run(file);
      count++;
    }
  std::printf("%zu inputs\n", count);
  return count == 0 ? 1 : 0;
}
