// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Packets for other devices and launches that arrive late: after any others of the same cluster.
///
/// A far store is on its way until the scheduler delivers it: after a random number of switches between fibers, which the
/// seed determines and no clock; at the latest when no thread of the cluster can run, or when the cluster ends. So a
/// receiver that does not wait for the step of a packet reads old data for some seed. Not modelled: stores of 16 bytes that
/// arrive in pieces.
#pragma once

#include "tree_attn/gpu/platform/packet.hpp"

namespace tree_attn::emulated::runtime {

struct Cluster;

/// A store on its way.
struct FarStore {
  Packet* to;
  Packet packet;
};

/// Delivers one store at random; those to one address arrive in their order. @returns false if there is none
bool deliver_far_store(Cluster& cluster);

}  // namespace tree_attn::emulated::runtime
