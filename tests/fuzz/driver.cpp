// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over inputs: DRIVER FILE... A file NAME.hex is a corpus with one input per line in hexadecimal, as
// tools/fuzz_corpus.py describes it; another file is an input, a folder stands for its files. Fails without any input.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
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

void run(const std::string& name, std::vector<std::uint8_t> bytes) {
  (void)std::fprintf(stderr, "%s\n", name.c_str());  // the last one named is the one that ended the process
  bytes.shrink_to_fit();                             // so that a sanitizer detects an access beyond the end
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::vector<std::uint8_t> from_hex(const std::string& name, const std::string& line) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < line.size(); i += 2) {
    const std::string digits = line.substr(i, 2);
    if (digits.size() != 2 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
      (void)std::fprintf(stderr, "%s: not hexadecimal\n", name.c_str());
      std::exit(2);
    }
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(digits, nullptr, 16)));
  }
  return bytes;
}

std::size_t run_corpus(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::size_t number = 0, count = 0;
  for (std::string line; std::getline(in, line);) {
    number++;
    if (line.starts_with('#')) continue;
    const std::string name = file.string() + ":" + std::to_string(number);
    run(name, from_hex(name, line));
    count++;
  }
  return count;
}

std::size_t run_file(const std::filesystem::path& file) {
  if (file.extension() == ".hex") return run_corpus(file);
  std::ifstream in(file, std::ios::binary);
  run(file.string(), {std::istreambuf_iterator<char>(in), {}});
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  (void)LLVMFuzzerInitialize(&argc, &argv);
  std::size_t count = 0;
  for (int i = 1; i < argc; i++)
    for (const auto& file : files_of(argv[i])) count += run_file(file);
  std::printf("%zu inputs\n", count);
  return count == 0 ? 1 : 0;
}
