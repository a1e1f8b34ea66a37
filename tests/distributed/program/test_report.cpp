// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Numbers of the tables, where their unit changes, and a report without a prediction.
#include "distributed/program/report.hpp"

#include <doctest/doctest.h>

#include <sstream>

namespace tree_attn::test::report_test {
namespace {

/// The cells of time and bytes in the row of a run.
std::string row_of(double us, std::int64_t n_bytes) {
  GenerationRun run;
  run.algorithm = "ring", run.token.median = us, run.per_token.bytes = n_bytes;
  std::istringstream lines(table({&run, 1}));
  std::string row;
  while (std::getline(lines, row) && !row.starts_with("ring")) {
  }
  std::istringstream words(row);
  std::string name, time, unit, messages, bytes, unit_of_bytes;
  words >> name >> time >> unit >> messages >> bytes >> unit_of_bytes;
  return time + " " + unit + ", " + bytes + " " + unit_of_bytes;
}

}  // namespace

TEST_CASE("tables: a number has three digits, and its unit is the one that it has after rounding") {
  for (const auto& [us, text] : {std::pair{0.0, "0.00 us"},
                                 {9.994, "9.99 us"},
                                 {9.996, "10.0 us"},
                                 {99.94, "99.9 us"},
                                 {99.96, "100 us"},
                                 {999.4, "999 us"},
                                 {999.7, "1.00 ms"},
                                 {999.4e3, "999 ms"},
                                 {999.7e3, "1.00 s"},
                                 {2e9, "2000 s"}})
    CHECK(row_of(us, 0) == text + std::string(", 0 B"));
  constexpr std::int64_t kKi = 1024;
  for (const auto& [n, text] : {std::pair{1023 * kKi / kKi, "1023 B"},
                                {kKi, "1.00 KiB"},
                                {10235 * kKi / 1000, "10.2 KiB"},
                                {1023 * kKi, "1023 KiB"},
                                {kKi * kKi - 1, "1.00 MiB"},
                                {9999 * kKi * kKi / 1000, "10.0 MiB"},
                                {1000 * kKi * kKi, "1000 MiB"},
                                {kKi * kKi * kKi - 1, "1.00 GiB"},
                                {2000 * kKi * kKi * kKi * kKi, "2000 TiB"}})
    CHECK(row_of(0, n) == std::string("0.00 us, ") + text);
}

TEST_CASE("reports: a step that was not predicted has null in the place of its numbers") {
  Measurement run;
  const auto is_null = [&] { return json(ReportHeader{}, {&run, 1}).find("\"predicted\": null") != std::string::npos; };
  CHECK(is_null());
  run.predicted.emplace();
  CHECK(!is_null());
}

}  // namespace tree_attn::test::report_test
