// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Hopfield retrieval: attention with keys that are their own values, iterated (after C.1; the paper names it only).
///
/// Store N patterns x_a, and let a state xi attend to them with inverse temperature beta. One step is attention with
/// q = beta xi and K = V = X, which is the gradient of the energy of energy.hpp,
///
///     xi <- X^T softmax(beta X xi)  =  dF/dzeta at zeta = 0,      F(zeta) = log sum_a exp(beta xi.x_a + zeta.x_a).
///
/// In this tied case a source is a query: beta xi and zeta enter only as a sum. The steps go down an energy of the state,
///
///     E(xi) = -1/beta log sum_a exp(beta xi.x_a) + 1/2 |xi|^2,      dE/dxi = xi - X^T softmax(beta X xi),
///
/// by at least half the squared length of each: log-sum-exp is convex and lies above its tangent at xi, so with xi' the next
/// state E(xi') <= E(xi) - xi'.(xi' - xi) + (|xi'|^2 - |xi|^2) / 2 = E(xi) - |xi' - xi|^2 / 2. Fixed points are where E is
/// stationary: single patterns at large beta, averages of a few (metastable states) or of all at small beta.
///
/// Shapes: X [N, d], one pattern a row; xi [d]; everything in double. With values Y [N, d_v] of their own, the memory is
/// hetero-associative: settle among the keys, read out among the values. A layer of a transformer makes one step, and reads.
#pragma once

#include "reference/energy/energy.hpp"
#include "reference/energy/moments.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// E(xi) = -1/beta log sum_a exp(beta xi.x_a) + 1/2 |xi|^2. +inf without patterns.
/// @param[in] X patterns [N, d]
/// @param[in] xi state [d]
/// @param beta inverse temperature, > 0
/// @throws std::invalid_argument if beta is not above 0 or shapes do not fit
inline double hopfield_energy(const MatrixRef& X, const VectorRef& xi, double beta) {
  if (!(beta > 0)) throw std::invalid_argument("hopfield_energy: beta is " + std::to_string(beta));
  return -energy(beta * xi, X, X, Vector()) / beta + 0.5 * xi.squaredNorm();
}

/// One step, xi' = X^T softmax(beta X xi): attention of the query beta xi over keys that are their own values.
/// @param[in] X patterns [N, d]
/// @param[in] xi state [d]
/// @param beta inverse temperature, > 0
/// @returns xi' [d], in the convex hull of the patterns; 0 without patterns
inline Vector hopfield_step(const MatrixRef& X, const VectorRef& xi, double beta) { return attention_mean(beta * xi, X, X); }

/// The course of one retrieval.
struct Retrieval {
  Vector xi;                   ///< last state [d]
  Vector P;                    ///< weights of the patterns in it, softmax(beta X xi) [N]
  std::vector<double> energy;  ///< E at the cue and after every step [n_steps + 1]: never rises
  int n_steps;                 ///< steps made
  bool settled;                ///< the last step was no longer than the tolerance; otherwise the steps ran out
};

/// Iterates hopfield_step() from a cue until a step is no longer than `tolerance` times the longest pattern.
/// @param[in] X patterns [N, d]
/// @param[in] cue first state [d]
/// @param beta inverse temperature, > 0
/// @param tolerance of the length of the last step
/// @param max_steps give up after so many; between two basins the steps can be as small as you like
/// @throws std::invalid_argument if there are no patterns, beta is not above 0 or shapes do not fit
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

/// Hetero-associative recall: settle among the keys, then read out the values, Y^T softmax(beta X xi*).
///
/// With max_steps = 0 nothing settles: Y^T softmax(beta X cue) is attention.
/// @param[in] X keys [N, d]
/// @param[in] Y values [N, d_v]
/// @param[in] cue first state [d]
/// @param beta inverse temperature, > 0
/// @param max_steps at most so many steps among the keys
/// @returns [d_v]
inline Vector hopfield_recall(const MatrixRef& X, const MatrixRef& Y, const VectorRef& cue, double beta,
                              int max_steps = 10000) {
  return attention_mean(beta * hopfield_retrieve(X, cue, beta, 1e-8, max_steps).xi, X, Y);
}

/// How many patterns share a state: exp of the entropy of the weights softmax(beta X xi). 1 for a single one, N for all.
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

/// How capacity is measured.
struct CapacityTrial {
  double beta;                ///< inverse temperature for patterns of length 1
  double noise = 0.3;         ///< length of the random vector added to the pattern that is asked for
  double accuracy = 0.1;      ///< the pattern has come back if the state ends within this distance of it
  Eigen::Index n_max = 8192;  ///< no more patterns than this are tried
  int n_trials = 20;          ///< independent sets of patterns
};

/// Capacity for random patterns of length 1: how many, on average over trials, can be stored before one of them, given a
/// noisy cue, no longer comes back.
///
/// A trial starts with 2 patterns and adds more, a quarter of those there are at a time, until pattern 0 is lost.
/// @param d dimension
/// @param trial what counts as coming back
/// @param[in,out] random source of patterns and noise
/// @returns geometric mean over the trials of the largest N at which it came back: 1 if not even with 2; a trial in which it
///   always came back counts with the last N that was tried, at most n_max
inline double hopfield_capacity(Eigen::Index d, const CapacityTrial& trial, std::mt19937& random) {
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
