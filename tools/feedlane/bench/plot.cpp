// SPDX-License-Identifier: Apache-2.0
// Plots as SVG, drawn by gnuplot.
#include "plot.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../observe/output_file.hpp"
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

bool draw_with_gnuplot(const Plot& plot, const std::string& file) {
  std::FILE* gnuplot = ::popen("gnuplot", "w");
  if (gnuplot == nullptr) fail("cannot start gnuplot");
  fmt::print(gnuplot,
             "set terminal svg size 840,520 background rgb 'white' noenhanced\n"
             "set output {}\nset title {}\nset xlabel {}\nset ylabel {}\n"
             "set logscale x 4\nset logscale y\nset format x '%.0b %BB'\nset key below\nset grid\nplot",
             quoted(file), quoted(plot.title), quoted(plot.x), quoted(plot.y));
  for (std::size_t i = 0; i < plot.curves.size(); i++)
    fmt::print(gnuplot, "{} '-' with linespoints title {}", i == 0 ? "" : ",", quoted(plot.curves[i].name));
  fmt::print(gnuplot, "\n");
  for (const Plot::Curve& c : plot.curves) {
    for (const auto& [px, py] : c.points) fmt::print(gnuplot, "{} {}\n", px, py);
    fmt::print(gnuplot, "e\n");
  }
  return ::pclose(gnuplot) == 0;
}

}  // namespace

void Plot::add(const std::string& name, double x_value, double y_value) {
  auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
  if (curve == curves.end()) curve = curves.insert(curve, {name, {}});
  curve->points.emplace_back(x_value, y_value);
}

void Plot::draw(const std::string& file) const {
  observe::OutputFile output(file);
  if (!output.create()) fail("cannot write the plot");
  // gnuplot would follow a link in the place of the file: it draws in a folder of this process.
  std::string folder = (std::filesystem::temp_directory_path() / "feedlane-plot-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail("cannot create a folder for the plot");
  const std::string drawn = folder + "/plot.svg";
  const bool is_drawn = draw_with_gnuplot(*this, drawn);
  std::ifstream in(drawn, std::ios::binary);
  const std::string picture{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!is_drawn || picture.empty()) fail("gnuplot drew no plot: is it installed (gnuplot-nox)?");
  if (!output.put(picture)) fail("cannot write the plot");
}

}  // namespace bench
