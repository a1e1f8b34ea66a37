// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What notebooks use beside the library: checks that can fail, random matrices and tensors, and figures.
#pragma once

#include "reference/tensor/view.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::notebook {

/// Checks what the text claims, and ends the notebook with status 1 where it does not hold. Prints nothing if it does.
inline void expect(bool holds, const std::string& claim) {
  if (holds) return;
  std::fflush(stdout);
  std::fprintf(stderr, "notebook: does not hold: %s\n", claim.c_str());
  std::exit(1);
}

/// A matrix of standard normal numbers.
inline Eigen::MatrixXd normal(std::mt19937& random, Eigen::Index rows, Eigen::Index columns) {
  std::normal_distribution<double> draw;
  return Eigen::MatrixXd::NullaryExpr(rows, columns, [&] { return draw(random); });
}

/// A dense tensor of four axes in F32.
struct Tensor {
  std::vector<float> elements;
  std::array<std::int64_t, 4> shape;
  TensorView view() const { return TensorView::dense(elements.data(), DType::F32, shape); }
};
/// A tensor of standard normal elements.
inline Tensor normal(unsigned seed, const std::array<std::int64_t, 4>& shape) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  Tensor tensor{std::vector<float>(std::size_t(shape[0] * shape[1] * shape[2] * shape[3])), shape};
  std::generate(tensor.elements.begin(), tensor.elements.end(), [&] { return draw(random); });
  return tensor;
}

/// The largest difference between an output and the exact one. @pre as many elements
inline double largest_error(const std::vector<float>& output, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) largest = std::max(largest, std::abs(double(output[i]) - exact[i]));
  return largest;
}

/// Numbers as a line of a plot's data.
inline std::string row(const std::vector<double>& elements) {
  std::string line;
  for (const double number : elements) line += std::to_string(number) + " ";
  return line + "\n";
}

/// Draws NAME.svg in the current folder with gnuplot; the script is kept beside it as NAME.gp. Without gnuplot, says so on
/// standard error and goes on: the figure belongs to the page, not to the test.
/// @param name file name without an ending, letters, digits and underscores
/// @param script gnuplot commands, without terminal and output; data in inline blocks, $name << EOD
/// @param width, height size in pixels
inline void figure(const std::string& name, const std::string& script, int width = 640, int height = 400) {
  std::ofstream(name + ".gp") << "set terminal svg size " << width << "," << height
                              << " font 'sans-serif,13' background '#ffffff'\n"
                              << "set output '" << name << ".svg'\nset border 3\nset tics nomirror\n"
                              << script << "\n";
  if (std::system(("gnuplot " + name + ".gp >&2").c_str()) != 0) {
    std::fprintf(stderr, "notebook: %s.svg not drawn: gnuplot failed or is missing (apt-get install gnuplot-nox)\n",
                 name.c_str());
  }
}

}  // namespace tree_attn::notebook
