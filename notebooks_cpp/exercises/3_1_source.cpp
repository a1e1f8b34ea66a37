// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 3.1: the source that moves the mean.
///
/// Expected: The zeta with dF/dzeta = z, for one component and a z inside the hull of the values: eq. (31) read from right
/// to left.
///
/// Run: ./run exercise 3.1
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/3_1_source.hpp"
#else

// Change from here ...
/// The source at which the mean of the values is z. @param r exponents @param v values @param z between the least and the
/// largest value
inline double source_of(const std::vector<double>& r, const std::vector<double>& v, double z) {
  (void)r, (void)v, (void)z;
  return 0;
}
// ... to here.

#endif

int main() {
  // Two values -1 and 1 of equal score have the mean tanh(zeta).
  for (const double zeta : {-3.0, -0.5, 0.0, 0.25, 2.0}) {
    const double found = source_of({1, 1}, {-1, 1}, std::tanh(zeta));
    expect(std::abs(found - zeta) < 1e-6, "zeta = atanh(z) = " + shown(zeta), found);
  }
  const std::vector<double> r{0.5, -1, 2, 0}, v{-2, 0, 1, 5};
  for (const double z : {-1.99, -1.0, 0.0, 2.0, 4.9}) {
    const double zeta = source_of(r, v, z);
    double D = 0, n = 0;
    for (std::size_t a = 0; a < r.size(); ++a) D += std::exp(r[a] + zeta * v[a]), n += std::exp(r[a] + zeta * v[a]) * v[a];
    expect(std::abs(n / D - z) < 1e-6, "the mean at the source is z = " + shown(z), n / D);
  }
  return result();
}
