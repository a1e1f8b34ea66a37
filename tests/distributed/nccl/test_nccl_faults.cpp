// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Faults of NCCL end with one line that says what and where, within the deadline.
#include "reference/data/input_error.hpp"
#include "tests/distributed/nccl/nccl_ranks.hpp"
#include "tests/support/message.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

constexpr double kTimeout = 0.5;
/// Longest time from a deadline to the end of all ranks.
constexpr double kMargin = 2;

/// Decodes by an algorithm on p ranks. @param gathers whether two-level on two ranks may be an AllGather of the library
/// @returns the error that ended it; all ranks have ended
std::string error_of(const std::string& fault, int p, const char* algorithm = "two-level", int n_steps = 2,
                     bool gathers = false) {
  const auto workload = normal_workload(3, {.head_dim = 64, .value_dim = 64, .n_keys = 64 * p});
  const Topology topology = Topology::pretend(p, 2);
  const std::vector<KeyRange> ranges = coarse_ranges(64 * p, p, kLeafKeys);
  const auto start = std::chrono::steady_clock::now();
  std::string error;
  try {
    run_nccl(topology, kTimeout, fault, [&](const Ranks& ranks, NcclTransport& transport) {
      OpenRank rank(*workload, ranges, transport, algorithm, {.network = gathers ? transport.network() : kMpiNetwork});
      for (int step = 1; step <= n_steps; ++step) {
        ranks.doing("in " + std::string(algorithm) + ", step " + std::to_string(step));
        rank.step();
      }
    });
  } catch (const TransportError& exception) {
    error = exception.what();
  } catch (const InputError& exception) {
    error = "bad input: " + std::string(exception.what());
  }
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < kTimeout + kMargin);
  CHECK(error.find('\n') == std::string::npos);
  return error;
}

}  // namespace

TEST_CASE("nccl faults: one line says what has failed, on which rank and in which step. None, and all steps pass") {
  struct Case {
    std::string fault;
    int p;
    const char* algorithm;
    int n_steps;
    std::string error;
    bool gathers = false;
  };
  const auto text = [](int number) { return std::to_string(number); };
  const auto failed = [&](int rank, const std::string& what, int step) {
    return "rank " + text(rank) + ": NCCL 2.29.7: " + what + " (in two-level, step " + text(step) + ")";
  };
  const std::string injected = ": unhandled system error: stand-in: injected",
                    lost =
                        "an asynchronous error: remote process exited or there was a network error: stand-in: the "
                        "connection to a peer was lost";
  const auto gave_up = [&](int rank, const char* algorithm, int step) {
    return "rank " + text(1 - rank) + " waited 0.5 s for the message of rank " + text(rank) + " over NCCL in " + algorithm +
           ", step " + text(step) + " and gave up";
  };
  // Two ranks queue a group of two calls in the first step, record them in the second, and launch a graph from then on.
  // Four ranks queue two groups in a step: of the second step, the recording has begun with the first.
  std::vector<Case> cases{{"", 4, "two-level", 2, ""},
                          {"call 1 1", 4, "two-level", 2, failed(1, "ncclRecv" + injected, 1)},
                          {"call 2 5", 4, "two-level", 2, failed(2, "ncclRecv" + injected, 2)},
                          {"call 2 7", 4, "two-level", 2, failed(2, "ncclRecv" + injected, 2)},
                          {"call 1 3", 2, "two-level", 2, failed(1, "ncclRecv" + injected, 2)},
                          {"async 2 2", 4, "two-level", 2, failed(2, lost, 1)},
                          {"silent 1 1", 2, "ring", 1, gave_up(1, "ring", 1)},
                          {"", 2, "two-level", 4, "", true},
                          {"call 1 1", 2, "two-level", 4, failed(1, "ncclAllGather" + injected, 1), true},
                          {"call 1 2", 2, "two-level", 4, failed(1, "ncclAllGather" + injected, 2), true}};
  // No other rank waits for messages at the same time: the silent step is the last, and there are two ranks.
  for (const int step : {1, 2, 3, 4}) {
    for (const bool gathers : {false, true}) {
      cases.push_back({"silent 1 " + text(step), 2, "two-level", step, gave_up(1, "two-level", step), gathers});
      cases.push_back({"async 1 " + text(step), 2, "two-level", 5, failed(1, lost, step), gathers});
    }
  }
  for (const auto& [fault, p, algorithm, n_steps, error, gathers] : cases) {
    CAPTURE(fault);
    CAPTURE(gathers);
    CHECK(error_of(fault, p, algorithm, n_steps, gathers) == error);
  }
  for (const int group : {2, 6})
    CHECK(error_of("silent 1 " + text(group), 4, "two-level", group - 1).find("waited 0.5 s for the message") !=
          std::string::npos);
  CHECK(
      error_of("join 3", 4)
          .ends_with(" waited 0.5 s for all ranks to join NCCL (rank 0 listens on eth7 10.0.0.1; NCCL_SOCKET_IFNAME chooses "
                     "the interface) and gave up"));
}

TEST_CASE("nccl faults: a rank that computes for longer than the deadline is waited for, and one that fails is not") {
  // Rank 0 receives four elements of rank 1, which does something before. @returns the error that ended the
  // run, empty if there was none, and its seconds
  const auto receive = [](double timeout, const std::function<void()>& before) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = message([&] {
      run_nccl(Topology::pretend(2, 2), timeout, "", [&](const Ranks& ranks, NcclTransport& transport) {
        const std::unique_ptr<DeviceBlocks> blocks = emulated::make_blocks(4, 1);
        const std::span<float> elements(blocks->address(0), 4);
        transport.queue_on(blocks->stream());
        if (ranks.rank() == 0) {
          transport.receive(std::as_writable_bytes(elements), 1);
        } else {
          blocks->upload(0, std::vector<float>{1, 2, 3, 4});
          before();
          transport.send(std::as_bytes(elements), 0);
        }
        transport.wait();
        transport.settle();
        std::vector<float> arrived(4);
        blocks->download(0, arrived);
        CHECK(arrived == std::vector<float>{1, 2, 3, 4});
      });
    });
    return std::pair(error, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  const auto computed = receive(kTimeout, [] { std::this_thread::sleep_for(std::chrono::duration<double>(3 * kTimeout)); });
  CHECK(computed.first == "");
  CHECK(computed.second > 3 * kTimeout);
  const auto failed = receive(60, [] { throw std::runtime_error("the disk is on fire"); });
  CHECK(failed.first == "rank 1: the disk is on fire");
  CHECK(failed.second < kMargin);
}

TEST_CASE("nccl faults: a library that is too old, missing or of another kind is refused on all ranks") {
  const std::string name = TREE_ATTN_NCCL_STAND_IN;
  CHECK(error_of("version 21200", 2) == "bad input: --transport nccl: " + name +
                                            " is NCCL 2.12.0, older than 2.14.3, the first with communicators that do not "
                                            "block");
  CHECK(error_of("version 2804", 2).find("is NCCL 2.8.4, older than 2.14.3") != std::string::npos);
  CHECK(error_of("version 21403", 2) == "");

  const auto load_error = [](const std::string& library) {
    const VariableScope chosen(kNcclVariable, library);
    return message<InputError>([] { NcclLibrary::load(); });
  };
  CHECK(load_error("/nowhere/libnccl.so.2")
            .starts_with(
                "--transport nccl: TREE_ATTN_NCCL_LIBRARY is /nowhere/libnccl.so.2: /nowhere/libnccl.so.2: cannot open"));
  CHECK(load_error("libm.so.6") == "--transport nccl: libm.so.6 has no ncclGetVersion: it is not NCCL");
  const VariableScope chosen(kNcclVariable, name);
  const std::shared_ptr<const NcclLibrary> library = NcclLibrary::load();
  CHECK(library->version_text() == "2.29.7");
  CHECK(library->path() == name);
}

TEST_CASE("nccl: the constants of a network are those of the buffers that all ranks have") {
  const auto latency = [](const char* value) {
    const VariableScope variable(kNcclLowLatencyVariable, value);
    std::atomic<double> between = 0;
    run_nccl(Topology::pretend(2, 1), kTimeout, "",
             [&](const Ranks&, NcclTransport& transport) { between = transport.network().between.latency_us; });
    return between.load();
  };
  CHECK(latency("") == 22.4);
  CHECK(latency("0") == 22.4);
  CHECK(latency("1") == 9.3);
}

}  // namespace tree_attn::test
