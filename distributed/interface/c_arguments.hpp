// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Arguments of the C interface that several of its functions take, and errors as codes with a line.
#pragma once

#include "distributed/interface/dlpack_view.hpp"
#include "distributed/interface/tree_attn.h"
#include "distributed/transport/transport.hpp"
#include "reference/data/input_error.hpp"
#include "reference/state/lse.hpp"
#include "reference/state/mask.hpp"
#include "reference/state/seen.hpp"
#include "reference/tensor/float_environment.hpp"

#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// Keeps the line that ta_error() returns on this thread. @returns the status
int failed(ta_status status, const char* what);

/// Calls the body in the default floating-point environment, and turns what it throws into a status.
template <class Body>
int guarded(const Body& body) {
  const FloatEnvironment environment;
  try {
    body();
    return TA_OK;
  } catch (const TransportError& error) {
    return failed(error.kind == TransportError::Kind::kCallback ? TA_CALLBACK : TA_TRANSPORT, error.what());
  } catch (const InputError& error) {
    return failed(TA_INVALID, error.what());
  } catch (const std::out_of_range& error) {
    return failed(TA_RANGE, error.what());
  } catch (const std::bad_alloc&) {
    return failed(TA_NO_MEMORY, "memory ran out");
  } catch (const std::length_error&) {  // more elements than any memory has
    return failed(TA_NO_MEMORY, "memory ran out");
  } catch (const std::logic_error& error) {  // arguments, or a call out of its turn
    return failed(TA_INVALID, error.what());
  } catch (const std::exception& error) {
    return failed(TA_INTERNAL, error.what());
  } catch (...) {
    return failed(TA_INTERNAL, "an exception of an unknown type");
  }
}

/// Rule of the keys that a query sees, the learned sinks, and what becomes of scores.
struct Asked {
  SeenRule rule;
  std::vector<float> sink;
  Mask mask;
  double softcap = 0;
};

/// Checks a seen that may be null. @param heads n_h @param outputs that a mask and sinks must not overlap
Asked asked(const ta_seen* seen, std::int64_t heads, const dlpack::Outputs& outputs);
/// The form of that number. @throws std::invalid_argument
LseForm form_of(int form);
/// The factor of q.k, if it is given.
std::optional<double> scale_of(double scale, int has_scale);

}  // namespace tree_attn
