// SPDX-License-Identifier: Apache-2.0
// Messages one way over their size, as a picture.
#pragma once

#include "measure.hpp"

namespace bench {

// Draws options.plot.
void plot_sizes(const Options& options);

}  // namespace bench
