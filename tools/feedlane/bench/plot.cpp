// SPDX-License-Identifier: Apache-2.0
// Plots as SVG, drawn by gnuplot.
#include "plot.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "measure.hpp"

namespace bench {

namespace {

// For gnuplot between double quotes.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c != '\n') out += c;
  }
  return out + '"';
}

}  // namespace

void Plot::add(const std::string& name, double x_value, double y_value) {
  auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
  if (curve == curves.end()) curve = curves.insert(curve, {name, {}});
  curve->points.emplace_back(x_value, y_value);
}

void Plot::draw(const std::string& file) const {
  std::FILE* gnuplot = ::popen("gnuplot", "w");
  if (gnuplot == nullptr) fail("gnuplot can't be started");
  fmt::print(gnuplot,
             "set terminal svg size 840,520 background rgb 'white' noenhanced\n"
             "set output {}\nset title {}\nset xlabel {}\nset ylabel {}\n"
             "set logscale x 4\nset logscale y\nset format x '%.0b %BB'\nset key below\nset grid\nplot",
             quoted(file), quoted(title), quoted(x), quoted(y));
  for (std::size_t i = 0; i < curves.size(); i++)
    fmt::print(gnuplot, "{} '-' with linespoints title {}", i == 0 ? "" : ",", quoted(curves[i].name));
  fmt::print(gnuplot, "\n");
  for (const Curve& c : curves) {
    for (const auto& [px, py] : c.points) fmt::print(gnuplot, "{} {}\n", px, py);
    fmt::print(gnuplot, "e\n");
  }
  if (::pclose(gnuplot) != 0) fail("gnuplot drew no picture; is it installed (gnuplot-nox)?");
}

}  // namespace bench
