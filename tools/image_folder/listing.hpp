// SPDX-License-Identifier: Apache-2.0
// The list of samples, which all workers share: a line LABEL<TAB>PATH for each sample, in the order of their indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace images {

/// Prints the list of a folder whose folders are the classes, with paths relative to it. Order and labels are those of
/// torchvision.datasets.ImageFolder. Throws if a folder can't be read, if there is no class, or if a class has no picture.
void print_list(const std::string& root, std::FILE* out);

/// A view of a list, which must outlive it.
class List {
 public:
  struct Sample {
    int64_t label;
    std::string_view path;
  };

  List() = default;
  /// Throws if a line isn't as print_list() writes it, or if there is none.
  explicit List(std::span<const std::byte> text);

  size_t size() const { return starts_.size(); }
  Sample operator[](size_t index) const;

 private:
  std::string_view text_;
  std::vector<uint32_t> starts_;  ///< of the lines; a worker_config has at most 2^30 bytes
};

}  // namespace images
