// SPDX-License-Identifier: Apache-2.0
// The worker's side: copies windows into the rows of a batch.
#include "token_dataset.hpp"

#include <cstdint>
#include <stdexcept>

namespace tokens {

std::vector<feedlane::Field> token_fields(const CorpusFiles& files) {
  return {feedlane::field<int32_t>("tokens", {static_cast<int64_t>(files.length) + 1})};
}

void TokenDataset::fetch(const feedlane::Task& task) const {
  const feedlane::Tensor all = task[0];
  for (size_t row = 0; row < task.count(); row++) {
    const auto window = static_cast<size_t>(task.indices()[row]);
    if (window >= corpus_.size()) throw std::runtime_error("a file has become shorter since the run began");
    corpus_.read(window, all.row<int32_t>(row));
  }
}

}  // namespace tokens
