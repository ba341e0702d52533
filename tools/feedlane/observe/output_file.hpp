// SPDX-License-Identifier: Apache-2.0
// A file that a command writes: it appears complete or not at all, and no link that somebody put there is followed.
#pragma once

#include <string>

#include "descriptor.hpp"

namespace observe {

// Written as another file of the same folder, which has no name where the file system can do that and else one that nobody can
// guess, and put in the place of the target at the end. The target is a regular file or does not exist. The functions say on
// standard error what failed, and return false.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // Removes what was not put in place.
  ~OutputFile();

  // Call it first, before time is spent on the contents.
  [[nodiscard]] bool create();
  // Call it once, with all the contents.
  [[nodiscard]] bool put(const std::string& contents);

 private:
  [[nodiscard]] bool complain(const std::string& what) const;
  [[nodiscard]] bool create_named();

  const std::string path_;
  const std::string folder_;
  std::string temporary_;  // in the folder; empty: it has no name
  Descriptor file_{-1};
};

}  // namespace observe
