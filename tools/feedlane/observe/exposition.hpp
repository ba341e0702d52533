// SPDX-License-Identifier: Apache-2.0
// Text formats of metrics: OpenMetrics 1.0, and the Prometheus text format 0.0.4, which node_exporter's textfile collector
// reads. They differ in the names of counters in "# TYPE" lines, in info metrics, in "# UNIT" and in "# EOF". And JSON.
#pragma once

#include <feedlane.h>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace observe {

enum class Exposition { openmetrics, prometheus, json };
enum class Kind { counter, gauge, histogram, info };

using Labels = std::vector<std::pair<std::string, std::string>>;

// Metrics by family, in the order in which families were first named. A family's lines must be together in both formats.
class Metrics {
 public:
  // What a family is. `name` has no suffix, `unit` is "seconds", "bytes" or empty, and the name ends in it.
  struct Family {
    const char* name;
    Kind kind;
    const char* unit;
    const char* help;
  };

  void add(const Family& family, const Labels& labels, const std::string& value);
  void add(const Family& family, const Labels& labels, std::uint64_t value);
  // A histogram of durations; the family's unit is "seconds".
  void add(const Family& family, const Labels& labels, const feedlane_histogram& h);

  [[nodiscard]] std::string text(Exposition form) const;

 private:
  struct Line {
    std::string suffix;  // of the family's name, "_bucket" and so on
    Labels labels;
    std::string value;  // a decimal number
  };
  struct Group {
    Family family;
    std::vector<Line> lines;
  };

  [[nodiscard]] std::string json() const;
  Group& group(const Family& family);

  std::vector<Group> groups_;
};

// Nanoseconds as seconds, exactly: "0.000000255", "12".
std::string seconds_text(std::uint64_t ns);

}  // namespace observe
