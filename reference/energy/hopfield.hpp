// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Hopfield retrieval: attention, iterated, with the keys as values (section 4 and appendix A mention it).
///
/// The memory stores N patterns x_a. A state xi attends to them with inverse temperature beta. One step is attention with
/// q = beta xi and K = V = X, which is the gradient of the energy of energy.hpp,
///
///     xi <- X^T softmax(beta X xi)  =  dF/dzeta at zeta = 0,      F(zeta) = log sum_a exp(beta xi.x_a + zeta.x_a).
///
/// Since keys and values are equal here, a source acts as a query: beta xi and zeta enter only as a sum. The steps descend
/// on an energy of the state,
///
///     E(xi) = -1/beta log sum_a exp(beta xi.x_a) + 1/2 |xi|^2,      dE/dxi = xi - X^T softmax(beta X xi).
///
/// Each step lowers E by at least half its squared length. Proof: log-sum-exp is convex and lies above its tangent at xi, so
/// with xi' the next state E(xi') <= E(xi) - xi'.(xi' - xi) + (|xi'|^2 - |xi|^2) / 2 = E(xi) - |xi' - xi|^2 / 2. The fixed
/// points are the stationary points of E: single patterns at large beta, averages of a few (metastable states) or of all
/// patterns at small beta.
///
/// Shapes: X [N, d], one pattern per row; xi [d]; all elements double. With separate values Y [N, d_v] the memory is
/// hetero-associative: iterate on the keys, then read the values. A head of a transformer does not iterate: it reads the
/// values once, with the weights of the first step.
#pragma once

#include "reference/energy/energy.hpp"
#include "reference/energy/moments.hpp"

#include <Eigen/Core>

#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// E(xi) = -1/beta log sum_a exp(beta xi.x_a) + 1/2 |xi|^2; +inf without patterns.
/// @param[in] X patterns [N, d]
/// @param[in] xi state [d]
/// @param beta inverse temperature, > 0
/// @throws std::invalid_argument if beta is not positive or the shapes do not match
inline double hopfield_energy(const MatrixRef& X, const VectorRef& xi, double beta) {
  if (!(beta > 0)) throw std::invalid_argument("hopfield_energy: beta is " + std::to_string(beta));
  return -energy(beta * xi, X, X, Vector()) / beta + 0.5 * xi.squaredNorm();
}

/// One step, xi' = X^T softmax(beta X xi): attention of the query beta xi with the patterns as keys and values.
/// @param[in] X patterns [N, d]
/// @param[in] xi state [d]
/// @param beta inverse temperature
/// @returns xi' [d], in the convex hull of the patterns; 0 without patterns
inline Vector hopfield_step(const MatrixRef& X, const VectorRef& xi, double beta) { return attention_mean(beta * xi, X, X); }

/// The result and history of one retrieval.
struct Retrieval {
  Vector xi;                   ///< last state [d]
  Vector P;                    ///< weights of the patterns in xi, softmax(beta X xi) [N]
  std::vector<double> energy;  ///< E at the cue and after every step [n_steps + 1], non-increasing
  int n_steps;                 ///< number of steps
  bool settled;                ///< whether the last step was within the tolerance; if not, max_steps was reached
};

/// Iterates hopfield_step() from a cue until the length of a step is at most `tolerance` times that of the longest pattern.
/// @param[in] X patterns [N, d]
/// @param[in] cue first state [d]
/// @param beta inverse temperature, > 0
/// @param tolerance relative length of the last step
/// @param max_steps maximum number of steps; between two basins the steps can be arbitrarily small
/// @throws std::invalid_argument if there are no patterns, beta is not positive or the shapes do not match
inline Retrieval hopfield_retrieve(const MatrixRef& X, const VectorRef& cue, double beta, double tolerance = 1e-8,
                                   int max_steps = 10000) {
  if (X.rows() == 0) throw std::invalid_argument("hopfield_retrieve: no patterns");
  const double small = tolerance * X.rowwise().norm().maxCoeff();
  Retrieval course{cue, {}, {hopfield_energy(X, cue, beta)}, 0, false};
  while (!course.settled && course.n_steps < max_steps) {
    const Vector next = hopfield_step(X, course.xi, beta);
    course.settled = (next - course.xi).norm() <= small;
    course.xi = next;
    course.energy.push_back(hopfield_energy(X, course.xi, beta));
    ++course.n_steps;
  }
  course.P = attention_probabilities(beta * course.xi, X);
  return course;
}

/// Hetero-associative recall: iterates on the keys to a state xi*, then reads the values, Y^T softmax(beta X xi*).
///
/// With max_steps = 0 there is no iteration, and Y^T softmax(beta X cue) is attention.
/// @param[in] X keys [N, d]
/// @param[in] Y values [N, d_v]
/// @param[in] cue first state [d]
/// @param beta inverse temperature, > 0
/// @param max_steps maximum number of steps on the keys
/// @returns [d_v]
inline Vector hopfield_recall(const MatrixRef& X, const MatrixRef& Y, const VectorRef& cue, double beta,
                              int max_steps = 10000) {
  return attention_mean(beta * hopfield_retrieve(X, cue, beta, 1e-8, max_steps).xi, X, Y);
}

/// Effective number of patterns in a state: exp of the entropy of the weights softmax(beta X xi). 1 for a single pattern, N
/// if all have equal weight.
/// @param[in] X patterns [N, d]
/// @param[in] xi state [d]
/// @param beta inverse temperature
inline double n_effective_patterns(const MatrixRef& X, const VectorRef& xi, double beta) {
  return std::exp(entropy(beta * xi, X, X, Vector()));
}

/// N random directions: patterns [N, d] of length 1.
inline Matrix random_patterns(Eigen::Index N, Eigen::Index d, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Matrix X(N, d);
  for (Eigen::Index a = 0; a < N; ++a) {
    for (Eigen::Index j = 0; j < d; ++j) X(a, j) = normal(random);
    X.row(a).normalize();
  }
  return X;
}

/// Parameters of a measurement of the capacity.
struct CapacityTrial {
  double beta;                ///< inverse temperature for patterns of length 1
  double noise = 0.3;         ///< length of the random vector added to the pattern to form the cue
  double accuracy = 0.1;      ///< the pattern is recalled if the last state is within this distance of it
  Eigen::Index n_max = 8192;  ///< maximum number of patterns
  int n_trials = 20;          ///< independent sets of patterns
};

/// Capacity for random patterns of length 1: the number of patterns, averaged over trials, that can be stored before a noisy
/// cue no longer recalls its pattern.
///
/// Each trial starts with 2 patterns and adds a quarter of the present number at a time, until pattern 0 is no longer
/// recalled.
/// @param d dimension
/// @param trial the parameters, including the criterion for recall
/// @param[in,out] random source of patterns and noise
/// @returns geometric mean over the trials of the largest N at which pattern 0 was recalled; 1 for a trial that failed with
///   2 patterns; the last N tried, at most n_max, for a trial that never failed
/// @throws std::invalid_argument unless d, n_max and n_trials are at least 1
inline double hopfield_capacity(Eigen::Index d, const CapacityTrial& trial, std::mt19937& random) {
  if (d < 1 || trial.n_max < 1 || trial.n_trials < 1)
    throw std::invalid_argument("hopfield_capacity: " + std::to_string(trial.n_trials) + " trials of " +
                                std::to_string(trial.n_max) + " patterns of " + std::to_string(d) + " components");
  double sum_log = 0;
  for (int i = 0; i < trial.n_trials; ++i) {
    const Matrix X = random_patterns(trial.n_max, d, random);
    const Vector cue = (X.row(0) + trial.noise * random_patterns(1, d, random)).transpose();
    Eigen::Index kept = 1;
    for (Eigen::Index N = 2; N <= trial.n_max; N += (N + 3) / 4) {
      const Vector xi = hopfield_retrieve(X.topRows(N), cue, trial.beta, 1e-4, 200).xi;
      if ((xi - X.row(0).transpose()).norm() > trial.accuracy) break;
      kept = N;
    }
    sum_log += std::log(static_cast<double>(kept));
  }
  return std::exp(sum_log / trial.n_trials);
}

}  // namespace tree_attn
