// SPDX-License-Identifier: Apache-2.0
// A folder of pictures: each folder in it is a class, each JPEG in that one a sample. Classes and files are numbered in the
// order of their names, so every process that lists the folder comes to the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace images {

class Folder {
 public:
  /// Lists it. Throws if it can't be read or holds no picture.
  explicit Folder(const std::string& root);

  size_t size() const { return names_at_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }
  int64_t label(size_t sample) const;
  std::string path(size_t sample) const;
  /// Differs (in all likelihood) when the folder holds something else.
  uint64_t fingerprint() const;

 private:
  void add_class(const std::string& name);

  std::string root_;
  std::vector<std::string> classes_;
  std::vector<size_t> ends_;      ///< of each class, the number of the sample behind its last
  std::string names_;             ///< of all files, one after the other, each with a terminator: a million fit well
  std::vector<size_t> names_at_;  ///< where each begins
};

}  // namespace images
