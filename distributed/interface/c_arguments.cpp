// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rules, sinks, masks and scales of C callers, and the line of the last error of each thread.
#include "distributed/interface/c_arguments.hpp"

#include "reference/state/require.hpp"
#include "reference/tensor/convert.hpp"

#include <cmath>
#include <string>

namespace tree_attn {

using namespace dlpack;  // NOLINT: arguments are such tensors

namespace {

thread_local std::string last_error;

/// A mask of booleans, or of F32.
Mask mask_of(const DLManagedTensor* managed, const Outputs& outputs) {
  require(managed != nullptr, "mask is null");
  DLManagedTensor tensor = *managed;
  DLDataType& type = tensor.dl_tensor.dtype;
  const bool is_boolean = (type.code == kDLBool || type.code == kDLUInt) && type.bits == 8 && type.lanes == 1;
  if (is_boolean) type.code = kDLFloat8_e4m3fn;  // of as many bytes
  const TensorView view = view_of(&tensor, "mask", 4);
  require(is_boolean || view.dtype == DType::F32, "mask is ", name_of(view.dtype), "; booleans and F32 are taken");
  outputs.require_apart(view, "mask");
  return {view.data, is_boolean, view.shape, {view.stride[0], view.stride[1], view.stride[2]}};
}

}  // namespace

int failed(ta_status status, const char* what) {
  try {
    last_error = what;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status;
}

Asked asked(const ta_seen* seen, std::int64_t heads, const Outputs& outputs) {
  if (seen == nullptr) return {};
  require(seen->sinks <= 0 || seen->window != 0, "seen has ", seen->sinks, " sinks but no window: every key is seen");
  Asked all{{.causal = seen->causal != 0, .window = seen->window, .sinks = seen->sinks}, {}, {}, seen->softcap};
  if (seen->mask != nullptr) all.mask = mask_of(seen->mask, outputs);
  if (seen->sink == nullptr) return all;
  const TensorView sink = view_of(seen->sink, "sink", 1);
  require(sink.shape[3] == heads, "sink has ", sink.shape[3], " elements, but there are ", heads, " heads");
  outputs.require_apart(sink, "sink");
  all.sink.resize(static_cast<std::size_t>(heads));
  load_row(sink, 0, 0, 0, all.sink.data());
  return all;
}

LseForm form_of(int form) {
  require(form >= TA_NATURAL && form <= TA_NATURAL_OR_INF_EMPTY, "form is ", form, "; 0, 1 or 2");
  return form == TA_NATURAL ? LseForm::kNatural : form == TA_BASE_TWO ? LseForm::kBaseTwo : LseForm::kNaturalOrInfEmpty;
}

std::optional<double> scale_of(double scale, int has_scale) {
  require(std::isfinite(scale), "scale is ", scale, "; a finite number is needed");
  return scale == 0 && has_scale == 0 ? std::nullopt : std::optional(scale);
}

}  // namespace tree_attn

const char* ta_error() { return tree_attn::last_error.c_str(); }
