// SPDX-License-Identifier: Apache-2.0
// Lists the classes and files of a folder, and reads such a list.
#include "listing.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <stdexcept>

namespace images {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// torchvision's IMG_EXTENSIONS, so that indices are equal. Files of a format that isn't decoded fail as samples.
constexpr std::array extensions{".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};

bool is_picture(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::any_of(extensions.begin(), extensions.end(), [&](const char* end) { return name.ends_with(end); });
}

/// The names in a folder, sorted by their bytes: directories and other files. Links are followed.
void list(const std::string& folder, Names& folders, Names& files) {
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    std::error_code broken;  // a link to nothing is a file that can't be read
    const bool is_folder = entry->is_directory(broken);
    if (broken == std::errc::too_many_symbolic_link_levels)
      throw std::runtime_error(entry->path().string() + ": a link to a folder that contains it; remove the link");
    (is_folder ? folders : files).push_back(entry->path().filename().string());
  }
  if (failed) throw std::runtime_error(folder + ": " + failed.message());
  std::sort(folders.begin(), folders.end());
  std::sort(files.begin(), files.end());
}

/// `path` and all folders below it, relative to the root and sorted, each with the pictures in it.
void walk(const std::string& root, const std::string& path, std::vector<std::pair<std::string, Names>>& found) {
  Names folders;
  Names files;
  list(root + "/" + path, folders, files);
  std::erase_if(files, [](const std::string& name) { return !is_picture(name); });
  found.emplace_back(path, std::move(files));
  for (const std::string& name : folders) walk(root, path + "/" + name, found);
}

void print_class(const std::string& root, const std::string& name, size_t label, std::FILE* out) {
  std::vector<std::pair<std::string, Names>> folders;
  walk(root, name, folders);
  std::sort(folders.begin(), folders.end());
  bool is_empty = true;
  for (const auto& [folder, files] : folders)
    for (const std::string& file : files) {
      std::string path = folder + "/" + file;
      if (const size_t at = path.find('\n'); at != std::string::npos)
        throw std::runtime_error(root + "/" + path.replace(at, 1, "\\n") +
                                 ": the name has a line break, which the list can't hold; rename it");
      (void)std::fprintf(out, "%zu\t%s\n", label, path.c_str());
      is_empty = false;
    }
  if (is_empty)
    throw std::runtime_error(root + "/" + name +
                             ": the class has no file that ends in .jpg, .jpeg, .png or another of "
                             "torchvision's extensions; remove the folder");
}

}  // namespace

void print_list(const std::string& root, std::FILE* out) {
  Names classes;
  Names files;
  list(root, classes, files);
  if (classes.empty())
    throw std::runtime_error(root + ": it has no folder; each class needs a folder with its pictures");
  for (size_t label = 0; label < classes.size(); label++) print_class(root, classes[label], label, out);
  if (std::fflush(out) != 0 || std::ferror(out) != 0) throw std::runtime_error("the list can't be written");
}

List::List(std::span<const std::byte> text) : text_(reinterpret_cast<const char*>(text.data()), text.size()) {
  for (size_t at = 0; at < text_.size();) {
    starts_.push_back(static_cast<uint32_t>(at));
    const size_t end = std::min(text_.find('\n', at), text_.size());
    const Sample sample = (*this)[starts_.size() - 1];
    if (sample.label < 0 || sample.path.empty() || sample.path.find('\0') != std::string_view::npos)
      throw std::runtime_error("worker_config: line " + std::to_string(starts_.size()) + " is \"" +
                               std::string(text_.substr(at, std::min<size_t>(end - at, 80))) +
                               "\": must be a label of 0 or more, a tab and a path, as --list prints them");
    at = end + 1;
  }
  if (starts_.empty())
    throw std::runtime_error("worker_config is empty: must be a list of samples, as --list prints it");
}

List::Sample List::operator[](size_t index) const {
  const std::string_view line = text_.substr(starts_[index], text_.find('\n', starts_[index]) - starts_[index]);
  Sample sample{-1, {}};
  const auto [end, status] = std::from_chars(line.data(), line.data() + line.size(), sample.label);
  const auto digits = static_cast<size_t>(end - line.data());
  if (status != std::errc() || digits == line.size() || line[digits] != '\t') return {-1, {}};
  sample.path = line.substr(digits + 1);
  return sample;
}

}  // namespace images
