// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of the seeded bugs, launched.
#pragma once

#include "tree_attn/tests/gpu/platform/seeded_bugs/seeded_bugs.hpp"

namespace tree_attn::emulated {

bool pipeline_is_right(Bug bug);
bool cluster_is_right(Bug bug);
bool warp_ring_is_right(Bug bug);
bool exchange_is_right(Bug bug);
bool one_shot_is_right(Bug bug);

}  // namespace tree_attn::emulated
