// SPDX-License-Identifier: Apache-2.0
// Lists the classes and files of a folder.
#include "folder.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>
#include <stdexcept>

#include "../common/checksum.hpp"

namespace images {
namespace {

bool is_jpeg(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".jpg" || extension == ".jpeg";
}

}  // namespace

Folder::Folder(const std::string& root) : root_(root) {
  std::error_code failed;
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(root, failed))
    if (entry.is_directory()) found.push_back(entry.path().filename().string());
  if (failed) throw std::runtime_error(root + ": " + failed.message());
  std::sort(found.begin(), found.end());
  for (const std::string& name : found) add_class(name);
  if (names_at_.empty()) throw std::runtime_error(root + ": no folder in it holds a .jpg or .jpeg file");
}

void Folder::add_class(const std::string& name) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + "/" + name))
    if (is_jpeg(entry.path())) files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    names_at_.push_back(names_.size());
    names_ += file;
    names_ += '\0';
  }
  classes_.push_back(name);
  ends_.push_back(names_at_.size());
}

int64_t Folder::label(size_t sample) const {
  return std::upper_bound(ends_.begin(), ends_.end(), sample) - ends_.begin();
}

std::string Folder::path(size_t sample) const {
  return root_ + "/" + classes_[static_cast<size_t>(label(sample))] + "/" + (names_.data() + names_at_[sample]);
}

uint64_t Folder::fingerprint() const {
  common::Checksum sum;
  for (const std::string& name : classes_) sum.add(std::as_bytes(std::span(name)));
  for (const size_t end : ends_) sum.add(end);
  sum.add(std::as_bytes(std::span(names_)));
  return sum.value();
}

}  // namespace images
