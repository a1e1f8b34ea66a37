// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stand-in for NCCL: a library of its names, for emulated devices, with faults on request. For tests alone.
///
/// It is as late as NCCL may be. Calls on a communicator are in progress until they are polled a few times; only then are a
/// group's operations on the stream. A receive buffer holds NaN from when the stream gets to the operation. Operations of a
/// communicator take place in the order of their groups.
///
/// Operations may be captured, with the rules of NCCL's user guide and of its sources: a message is captured on both sides
/// or on neither; ranks connect in their first message to each other, which therefore is not captured; and a communicator
/// ends only when all graphs with its operations have ended. Where NCCL would wait forever for that, the program ends here.
/// So it does where a communicator is aborted in an open group, which the abort would become a part of.
///
/// The environment variable TREE_ATTN_NCCL_FAULT asks for a fault:
///
/// | value | fault |
/// | --- | --- |
/// | `call R N` | call N of rank R, of ncclSend, ncclRecv, ncclAllReduce and ncclAllGather, returns an error |
/// | `async R N` | from group N of rank R on there is an asynchronous error, and nothing arrives |
/// | `join R` | rank R never joins |
/// | `silent R N` | from group N on, rank R sends nothing |
/// | `window` | the devices reach each other's memory nowhere: windows are null |
/// | `version V` | the version is V |
///
/// Counts start from 1.
#include "distributed/transport/nccl_api.hpp"
#include "gpu/emulator/outside.hpp"
#include "gpu/types/shared_pages.hpp"
#include "tests/distributed/nccl/mail.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace tree_attn::nccl;
using tree_attn::SharedPages;
using tree_attn::emulated::OutsideAccess;
using tree_attn::emulated::OutsideStream;
using tree_attn::test::Mail;
using tree_attn::test::Message;

constexpr int kVersion = 22907;
/// Polls of a call before it is done.
constexpr int kPolls = 3;

/// Fault that TREE_ATTN_NCCL_FAULT names.
struct Fault {
  std::string kind;
  int number = -1, count = -1;  ///< R or V, N

  static Fault wanted() {
    Fault fault;
    const char* const text = std::getenv("TREE_ATTN_NCCL_FAULT");
    std::istringstream(text == nullptr ? "" : text) >> fault.kind >> fault.number >> fault.count;
    return fault;
  }
  bool is(const char* other, int rank) const { return kind == other && number == rank; }
};

/// State that a communicator shares with the operations that it has queued.
struct State {
  State(const std::string& name, int n_ranks, int own) : mail(name, n_ranks), rank(own) {}
  Mail mail;
  int rank;
  Fault fault = Fault::wanted();
  Status error = Status::kSuccess;
  std::string last;
  bool is_aborted = false;
  int n_queued = 0, n_done = 0;              ///< groups
  int n_in_graphs = 0;                       ///< groups that graphs hold
  std::set<std::pair<bool, int>> connected;  ///< for sends, or receives, with a rank

  void fail(Status status, const std::string& text) { error = status, last = "stand-in: " + text; }
};

/// A sum or a maximum of what all ranks send each other.
struct Reduction {
  std::vector<float> parts;  ///< [n_ranks][n]
  std::size_t n = 0;
  float* to = nullptr;
  Operator op = Operator::kSum;

  void finish() const {
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = parts[i];
      // As in NCCL, the maximum of a NaN and a number is the number.
      for (std::size_t j = i + n; j < parts.size(); j += n)
        to[i] = op == Operator::kSum ? to[i] + parts[j] : std::fmax(to[i], parts[j]);
    }
  }
};

/// The operations of a group on one stream.
struct Group {
  std::shared_ptr<State> state;
  std::vector<Message> messages;
  std::vector<std::shared_ptr<Reduction>> reductions;
  struct OwnPart {
    const std::byte* from;
    std::byte* to;
    std::size_t n_bytes;
    bool is_inside;
  };
  std::vector<OwnPart> copies;  ///< of collectives; where they end up already, or apart
  int number = 0;
  bool has_begun = false;

  std::vector<OutsideAccess> accesses() const {
    std::vector<OutsideAccess> accesses;
    for (const Message& message : messages) {
      if (!message.is_inside) accesses.push_back({message.at, message.n_bytes, !message.sends});
    }
    for (const OwnPart& copy : copies) {
      if (!copy.is_inside) accesses.push_back({copy.to, copy.n_bytes, true});
    }
    for (const auto& reduction : reductions) accesses.push_back({reduction->to, reduction->n * sizeof(float), true});
    return accesses;
  }

  /// Advances the operation; called by the stream until it returns true. @returns whether all is done
  bool advance() {
    if (state->is_aborted) return true;
    if (state->n_done != number) return false;
    if (!has_begun) begin();
    if (state->error != Status::kSuccess) return false;
    std::set<std::pair<bool, int>> waits;  // messages to one rank, and from it, keep their order
    bool all_done = true;
    for (Message& message : messages) {
      if (message.is_done()) continue;
      if (!waits.contains({message.sends, message.peer}) &&
          !message.advance(message.sends ? state->mail.channel(state->rank, message.peer)
                                         : state->mail.channel(message.peer, state->rank))) {
        const std::uint64_t differs = message.head ^ message.own_head();
        const std::string peer = "rank " + std::to_string(message.peer), own = "rank " + std::to_string(state->rank);
        state->fail(Status::kInvalidUsage,
                    differs == Message::kInGraph
                        ? "of " + peer + ", which sends, and " + own + ", which receives, one alone is a graph"
                        : peer + " sends " + std::to_string(message.head & ~Message::kInGraph) + " bytes, " + own +
                              " expects " + std::to_string(message.n_bytes));
        return false;
      }
      if (message.is_done()) continue;
      all_done = false;
      waits.insert({message.sends, message.peer});
    }
    if (!all_done) return false;
    for (const OwnPart& copy : copies) std::memmove(copy.to, copy.from, copy.n_bytes);
    for (const auto& reduction : reductions) reduction->finish();
    ++state->n_done;
    return true;
  }

 private:
  void begin() {
    has_begun = true;
    for (const Message& message : messages) {
      if (!message.sends) std::memset(message.at, 0xFF, message.n_bytes);  // a NaN in every type
    }
    const Fault& fault = state->fault;
    if (fault.is("silent", state->rank) && number + 1 >= fault.count)
      std::erase_if(messages, [](const Message& message) { return message.sends; });
    if (fault.is("async", state->rank) && number + 1 >= fault.count)
      state->fail(Status::kRemoteError, "the connection to a peer was lost");
  }
};

}  // namespace

struct tree_attn::nccl::Comm {
  std::shared_ptr<State> state;
  bool has_joined = false, finalizes = false;
  int n_polls_left = 0, n_calls = 0;
  std::vector<std::pair<OutsideStream*, std::shared_ptr<Group>>> pending{};  ///< not on their streams yet
};
struct tree_attn::nccl::Window {};

namespace {

/// Allocations of ncclMemAlloc(), by address.
std::mutex memory_mutex;
std::map<void*, SharedPages> allocated;

thread_local int group_depth = 0;
/// The communicators and streams of the open group.
thread_local std::vector<std::pair<Comm*, OutsideStream*>> group_of;

/// The part of the open group for a communicator and a stream.
Group& part(Comm* comm, void* stream) {
  auto* const to = static_cast<OutsideStream*>(stream);
  for (auto& [on, group] : comm->pending) {
    if (on == to) return *group;
  }
  group_of.emplace_back(comm, to);
  auto group = std::make_shared<Group>();
  group->state = comm->state;
  return *comm->pending.emplace_back(to, std::move(group)).second;
}

/// Checks that a call may be made, and that no fault is set for it.
Status check(Comm* comm, const void* memory, const void* stream) {
  if (comm == nullptr || memory == nullptr || stream == nullptr) return Status::kInvalidArgument;
  State& state = *comm->state;
  if (!comm->has_joined || comm->finalizes || group_depth == 0) {
    state.last = "stand-in: a call before the communicator is ready, after its end, or outside a group";
    return Status::kInvalidUsage;
  }
  if (comm->n_polls_left > 0) {
    state.last = "stand-in: a call before the last one is done";
    return Status::kInvalidArgument;
  }
  if (state.fault.is("call", state.rank) && ++comm->n_calls == state.fault.count) {
    state.last = "stand-in: injected";
    return Status::kSystemError;
  }
  return Status::kSuccess;
}

/// A group that a graph holds, as long as a copy of this lives.
std::shared_ptr<void> held_by_graph(const std::shared_ptr<State>& state) {
  ++state->n_in_graphs;
  return {nullptr, [state](void*) { --state->n_in_graphs; }};
}

/// Puts a group on its stream, or into the graph that is recorded there.
void queue(OutsideStream& stream, std::shared_ptr<Group> group) {
  State& state = *group->state;
  const bool is_captured = stream.is_captured();
  for (Message& message : group->messages) {
    message.is_in_graph = is_captured;
    const std::pair connection{message.sends, message.peer};
    if (is_captured && !state.connected.contains(connection))
      return state.fail(Status::kInvalidUsage, "a graph begins with a rank that has not been met");
    state.connected.insert(connection);
  }
  const std::vector<OutsideAccess> accesses = group->accesses();
  const std::shared_ptr<void> held = is_captured ? held_by_graph(group->state) : nullptr;
  // A replay moves the bytes anew.
  stream.queue("ncclGroupEnd", accesses, [group = std::move(group), held] {
    auto now = std::make_shared<Group>(*group);
    now->number = now->state->n_queued++;
    return [now] { return now->advance(); };
  });
}

/// A line where NCCL's log goes.
void write_log(const char* line) {
  if (std::getenv("NCCL_DEBUG") == nullptr) return;
  const char* const name = std::getenv("NCCL_DEBUG_FILE");
  std::FILE* const file = name == nullptr ? stdout : std::fopen(name, "w");
  if (file == nullptr) return;
  std::fprintf(file, "stand-in INFO %s\n", line);
  if (file != stdout) std::fclose(file);
}

void end_with_graphs(const char* call, const State& state) {
  if (state.n_in_graphs == 0) return;
  std::fprintf(stderr, "stand-in: %s of rank %d would wait forever: a graph holds its messages\n", call, state.rank);
  std::abort();
}

Status queue_message(Comm* comm, bool sends, const void* at, std::size_t n, Type type, int peer, void* stream) {
  if (const Status status = check(comm, at, stream); status != Status::kSuccess) return status;
  if (peer < 0 || peer >= comm->state->mail.n_ranks()) return Status::kInvalidArgument;
  auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(at));
  part(comm, stream).messages.push_back({sends, bytes, n * (type == Type::kFloat32 ? 4 : 1), peer});
  return Status::kSuccess;
}

/// Queues what all ranks send each other. @param to rank after rank @param is_inside whether that is memory of the stand-in
void queue_gather(Group& group, const void* from, void* to, std::size_t n_bytes, bool is_inside) {
  const State& state = *group.state;
  auto* const own = const_cast<std::byte*>(static_cast<const std::byte*>(from));
  const auto at = [&](int rank) { return static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * n_bytes; };
  group.copies.push_back({own, at(state.rank), n_bytes, is_inside});
  for (int peer = 0; peer < state.mail.n_ranks(); ++peer) {
    if (peer == state.rank) continue;
    group.messages.push_back({true, own, n_bytes, peer, is_inside});
    group.messages.push_back({false, at(peer), n_bytes, peer, is_inside});
  }
}

}  // namespace

extern "C" {

/// Tells the transport that streams are those of emulated devices.
extern const int tree_attn_nccl_stand_in = 1;

Status ncclGetVersion(int* version) {
  const Fault fault = Fault::wanted();
  *version = fault.kind == "version" ? fault.number : kVersion;
  return Status::kSuccess;
}

Status ncclGetUniqueId(UniqueId* id) {
  write_log("ncclGetUniqueId");
  static std::atomic<int> n_ids = 0;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "/tree_attn_nccl_%d_%d", static_cast<int>(::getpid()), ++n_ids);
  return Status::kSuccess;
}

Status ncclCommInitRankConfig(Comm** comm, int n_ranks, UniqueId id, int rank, Config* config) {
  *comm = nullptr;
  if (config == nullptr || config->magic != 0xcafebeef || config->size < sizeof(Config)) return Status::kInvalidArgument;
  if (config->version < 21400 || config->blocking != 0) return Status::kInvalidUsage;  // the transport never blocks
  auto state = std::make_shared<State>(id.internal, n_ranks, rank);
  if (!state->mail.is_there()) return Status::kSystemError;
  if (!state->fault.is("join", rank)) ++state->mail->n_joined;
  *comm = new Comm{.state = std::move(state), .n_polls_left = kPolls};
  return Status::kInProgress;
}

Status ncclCommGetAsyncError(Comm* comm, Status* error) {
  if (comm == nullptr) return Status::kInvalidArgument;
  State& state = *comm->state;
  *error = Status::kInProgress;
  if (!comm->has_joined) {
    // A rank that never joins removes the file, since the others may be killed before they can.
    if (state.fault.is("join", state.rank) && state.mail->n_joined == state.mail.n_ranks() - 1) state.mail.remove();
    if (state.mail->n_joined < state.mail.n_ranks()) return Status::kSuccess;
    comm->has_joined = true;
    state.mail.remove();
  }
  if (state.mail.n_windows_of_all() < state.mail->n_windows[state.rank]) return Status::kSuccess;
  if (comm->finalizes && state.mail->n_left < state.mail.n_ranks()) return Status::kSuccess;
  if (comm->n_polls_left > 0 && --comm->n_polls_left > 0) return Status::kSuccess;
  for (auto& [stream, group] : comm->pending) queue(*stream, std::move(group));
  comm->pending.clear();
  *error = state.error;
  return Status::kSuccess;
}

Status ncclCommFinalize(Comm* comm) {
  end_with_graphs("ncclCommFinalize", *comm->state);
  comm->finalizes = true;
  comm->n_polls_left = kPolls;
  ++comm->state->mail->n_left;
  return Status::kInProgress;
}
Status ncclCommDestroy(Comm* comm) {
  delete comm;
  return Status::kSuccess;
}
Status ncclCommAbort(Comm* comm) {
  end_with_graphs("ncclCommAbort", *comm->state);
  if (group_depth > 0) {
    std::fprintf(stderr, "stand-in: ncclCommAbort of rank %d would wait for the end of a group\n", comm->state->rank);
    std::abort();
  }
  comm->state->is_aborted = true;
  delete comm;
  return Status::kSuccess;
}

const char* ncclGetErrorString(Status status) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return texts[static_cast<int>(status)];
}
const char* ncclGetLastError(Comm* comm) { return comm == nullptr ? "" : comm->state->last.c_str(); }

Status ncclGroupStart() {
  ++group_depth;
  return Status::kSuccess;
}
Status ncclGroupEnd() {
  if (group_depth == 0) return Status::kInvalidUsage;
  if (--group_depth > 0) return Status::kSuccess;
  for (const auto& [comm, stream] : group_of) comm->n_polls_left = kPolls;
  const bool is_empty = group_of.empty();
  group_of.clear();
  return is_empty ? Status::kSuccess : Status::kInProgress;
}

Status ncclSend(const void* from, std::size_t n, Type type, int peer, Comm* comm, void* stream) {
  return queue_message(comm, true, from, n, type, peer, stream);
}
Status ncclRecv(void* to, std::size_t n, Type type, int peer, Comm* comm, void* stream) {
  return queue_message(comm, false, to, n, type, peer, stream);
}
Status ncclAllReduce(const void* from, void* to, std::size_t n, Type type, Operator op, Comm* comm, void* stream) {
  if (const Status status = check(comm, from, stream); status != Status::kSuccess) return status;
  if (from != to || type != Type::kFloat32) return Status::kInvalidArgument;  // what the transport uses
  auto reduction = std::make_shared<Reduction>();
  reduction->parts.resize(n * static_cast<std::size_t>(comm->state->mail.n_ranks()));
  reduction->n = n, reduction->to = static_cast<float*>(to), reduction->op = op;
  Group& group = part(comm, stream);
  queue_gather(group, from, reduction->parts.data(), n * sizeof(float), true);
  group.reductions.push_back(std::move(reduction));
  return Status::kSuccess;
}
Status ncclAllGather(const void* from, void* to, std::size_t n, Type type, Comm* comm, void* stream) {
  if (const Status status = check(comm, from, stream); status != Status::kSuccess) return status;
  queue_gather(part(comm, stream), from, to, n * (type == Type::kFloat32 ? 4 : 1), false);
  return Status::kSuccess;
}

Status ncclMemAlloc(void** memory, std::size_t n_bytes) {
  const std::lock_guard lock(memory_mutex);
  SharedPages pages(n_bytes);
  std::memset(pages.data(), 0xFF, n_bytes);
  *memory = pages.data();
  allocated[*memory] = std::move(pages);
  return Status::kSuccess;
}
Status ncclMemFree(void* memory) {
  const std::lock_guard lock(memory_mutex);
  return allocated.erase(memory) == 1 ? Status::kSuccess : Status::kInvalidArgument;
}
/// Done when all have registered. As NCCL does, this succeeds with a null window where devices do not reach each other.
Status ncclCommWindowRegister(Comm* comm, void* memory, std::size_t n_bytes, Window** window, int flags) {
  if (comm == nullptr || flags != kSymmetricWindow || comm->n_polls_left > 0) return Status::kInvalidArgument;
  const std::lock_guard lock(memory_mutex);
  const auto found = allocated.find(memory);
  if (found == allocated.end() || found->second.size() != n_bytes) return Status::kInvalidArgument;
  *window = comm->state->fault.kind == "window" ? nullptr : new Window;
  ++comm->state->mail->n_windows[comm->state->rank];
  comm->n_polls_left = kPolls;
  return Status::kInProgress;
}
Status ncclCommWindowDeregister(Comm*, Window* window) {
  delete window;
  return Status::kSuccess;
}
}  // extern "C"

// The stand-in is called through these types, so its functions have them.
template <class Ours, class Wanted>
constexpr bool is_same() {
  static_assert(std::is_same_v<Ours, Wanted>);
  return true;
}
#define TREE_ATTN_SAME(function) is_same<decltype(&::function), decltype(Functions::function)>()
constexpr bool kSame[] = {TREE_ATTN_NCCL_REQUIRED(TREE_ATTN_SAME), TREE_ATTN_NCCL_OPTIONAL(TREE_ATTN_SAME)};
static_assert(sizeof(Functions) == std::size(kSame) * sizeof(void (*)()), "a function is missing in the lists");
