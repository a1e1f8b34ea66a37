// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Helpers of the notebooks: checks, random matrices and tensors, figures.
#pragma once

#include "reference/tensor/view.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::notebook {

/// Checks a claim of the text. Prints nothing if it holds; otherwise ends the notebook with status 1.
inline void expect(bool holds, const std::string& claim) {
  if (holds) return;
  std::fflush(stdout);
  std::fprintf(stderr, "notebook: does not hold: %s\n", claim.c_str());
  std::exit(1);
}

/// A matrix of standard normal elements.
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

/// Tests whether two arrays have the same bits. Unlike ==, this distinguishes -0 from +0, and a NaN equals itself.
template <class A, class B>
bool same_bits(const A& a, const B& b) {
  static_assert(sizeof a[0] == sizeof b[0]);
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
}

/// The largest difference between an output and the exact one. @pre equal numbers of elements
inline double largest_error(const std::vector<float>& output, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) largest = std::max(largest, std::abs(double(output[i]) - exact[i]));
  return largest;
}

/// One line of plot data.
inline std::string row(const std::vector<double>& elements) {
  std::string line;
  for (const double number : elements) line += std::to_string(number) + " ";
  return line + "\n";
}

/// Draws NAME.svg in the current folder with gnuplot and keeps the script as NAME.gp. Without gnuplot it prints a message to
/// standard error and returns: the figure belongs to the page, not to the test.
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
