// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How the keys are cut over blocks.
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

int choose_splits(const DeviceProblem& problem, std::int64_t n_strips, int n_workers) {
  const std::int64_t n_leaves = (problem.end - problem.begin + kLeafKeys - 1) / kLeafKeys;
  const std::int64_t fill = device().n_multiprocessors / std::max<std::int64_t>(1, n_strips);
  return static_cast<int>(std::max<std::int64_t>(1, std::min(fill, (n_leaves + n_workers - 1) / n_workers)));
}

Plan plan_splits(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan{.n_threads = options.n_threads > 0 ? options.n_threads : kSplitThreads, .n_counters = problem.n_rows()};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    plan.n_splits = options.n_splits > 0 ? options.n_splits : choose_splits(problem, problem.n_rows(), n_workers_of<Team>(plan.n_threads));
    plan.n_floats = problem.n_rows() * SplitWorkspace::of<Team>(problem, plan, nullptr).n_floats();
  });
  return plan;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
