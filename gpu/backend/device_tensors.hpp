// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensors of other programs in memory of this device, in their types and layouts: copies, and states of (o, lse).
#pragma once

#include "gpu/platform/launch.hpp"
#include "reference/state/lse.hpp"
#include "reference/tensor/view.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Queues a copy of all elements, through F32, rounded to the type of `to`, as load() and store() on the host.
/// @param from, to on the current device, of the same axes
/// @param scales on the device, one for each index of the second axis: elements of another type are divided by them, as
/// quantise() does; null: by none
/// @throws std::invalid_argument for a view with other axes, or an address that is no multiple of an element; DeviceError
void convert_rows(const TensorView& from, const TensorView& to, Stream stream, const float* scales = nullptr);

/// Queues set_from_lse() of every row.
/// @param[out] states [rows][2 + d_v] in the order of the axes of o
/// @param[in] o [.., .., .., d_v]; rows whose lse is -inf are not read @param[in] lse [.., .., .., 1]
/// @throws as convert_rows()
void set_states(float* states, const TensorView& o, const TensorView& lse, LseForm form, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
