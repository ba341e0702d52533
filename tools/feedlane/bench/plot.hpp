// SPDX-License-Identifier: Apache-2.0
// Plots of measured curves.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bench {

// Curves over sizes, both axes logarithmic.
struct Plot {
  struct Curve {
    std::string name;
    std::vector<std::pair<double, double>> points;
  };
  std::string title, x, y;
  std::vector<Curve> curves;

  // The next point of the curve of this name.
  void add(const std::string& name, double x_value, double y_value);
  // Writes an SVG, by gnuplot; ends the program if that can't be had or doesn't manage.
  void draw(const std::string& file) const;
};

}  // namespace bench
