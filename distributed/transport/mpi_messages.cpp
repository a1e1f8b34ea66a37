// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages as an attribute of the communicator of the program.
#include "distributed/transport/mpi_messages.hpp"

#include "distributed/transport/mpi_ranks.hpp"

#include <utility>

namespace tree_attn {
namespace {

using Cached = std::weak_ptr<Messages>;

int forget(MPI_Comm, int, void* cached, void*) {
  delete static_cast<Cached*>(cached);
  return MPI_SUCCESS;
}

int make_key() {
  int key = MPI_KEYVAL_INVALID;
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, nullptr), "MPI_Comm_create_keyval");
  return key;
}

const MpiRanks& ranks_of(const Messages& messages) { return static_cast<const MpiRanks&>(messages.ranks()); }

}  // namespace

std::shared_ptr<Messages> messages_of(MPI_Comm comm, double timeout) {
  const auto open = [&] { return std::make_shared<Messages>(std::make_unique<const MpiRanks>(comm, timeout)); };
  if (!MpiRanks::is_running() || comm == MPI_COMM_NULL) return open();  // which throws
  static const int key = make_key();
  void* found = nullptr;
  int is_found = 0;
  check_mpi(MPI_Comm_get_attr(comm, key, static_cast<void*>(&found), &is_found), "MPI_Comm_get_attr");
  if (is_found != 0) {
    if (std::shared_ptr<Messages> messages = static_cast<Cached*>(found)->lock(); messages && ranks_of(*messages).can_meet())
      return messages;
  }
  std::shared_ptr<Messages> messages = open();
  if (is_found != 0) {
    *static_cast<Cached*>(found) = messages;
    return messages;
  }
  auto cached = std::make_unique<Cached>(messages);
  check_mpi(MPI_Comm_set_attr(comm, key, cached.get()), "MPI_Comm_set_attr");
  static_cast<void>(cached.release());
  return messages;
}

}  // namespace tree_attn
