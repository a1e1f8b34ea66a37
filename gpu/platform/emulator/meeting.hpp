// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Collectives of a warp: the last lane to arrive does the work of all.
#pragma once

#include "tree_attn/gpu/platform/emulator/thread.hpp"

namespace tree_attn::emulated::runtime {

/// Opens a meeting of some lanes or joins the open one. @throws DeviceError for lanes that meet elsewhere or have returned
Meeting& enter_warp(unsigned mask, const Call& call, void* operand, bool& last);
/// Lets its lanes go on.
void close_warp(Meeting& meeting);

/// A collective: `operand` is the argument and the result of this lane; the last lane calls work(lanes), once.
template <class Work>
void meet_lanes(unsigned mask, const Call& call, void* operand, const Work& work) {
  bool last = false;
  Meeting& meeting = enter_warp(mask, call, operand, last);
  if (last) {
    work(running->warp->lanes);
    close_warp(meeting);
  }
  park(call);
}

}  // namespace tree_attn::emulated::runtime
