// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The tests of the decoders over MPI: mpirun -n P mpi_decoders. Every rank runs every test and sees all results.
///
/// All ranks agree at the end of every test case, so one failed check on one rank fails the run on all of them. A rank that
/// leaves a test case by an exception ends the others at once: they might be waiting for it.
#define DOCTEST_CONFIG_IMPLEMENT
#include "distributed/transport/shared_transport.hpp"
#include "tests/distributed/program/pmpi_counts.hpp"
#include "tests/support/mpi_test_session.hpp"
#include "tests/support/rank_group.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

namespace tree_attn::test {
namespace {

MpiSession* the_session = nullptr;
std::int64_t n_failed_cases = 0;

class MpiRankGroup : public RankGroup {
 public:
  /// @param shares_memory whether messages inside nodes go through memory
  MpiRankGroup(const MpiRanks& ranks, bool shares_memory)
      : RankGroup(ranks.size()), ranks_(ranks), shares_memory_(shares_memory) {}

  std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    Transport& transport = open(topology);
    const Traffic before = given(topology);
    DecodeOutput mine = body(transport);
    Traffic over_mpi = given(topology);
    over_mpi.messages -= before.messages, over_mpi.bytes -= before.bytes;
    over_mpi.bytes_between_nodes -= before.bytes_between_nodes;
    const Traffic traffic = transport.traffic();
    // Inside a node messages go through memory alone.
    if (shares_memory_) over_mpi.messages = traffic.messages, over_mpi.bytes += traffic.bytes - traffic.bytes_between_nodes;
    transport.clear_traffic();

    // Let every rank know what every rank saw: [out | lse] of one length, and the counters.
    std::vector<float> elements = mine.out;
    elements.insert(elements.end(), mine.lse.begin(), mine.lse.end());
    std::vector<float> all_elements(elements.size() * static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(std::as_bytes(std::span(elements)), std::as_writable_bytes(std::span(all_elements)), kWhat);
    const std::vector<Traffic> all_traffic = ranks_.all_gather(traffic, kWhat),
                               all_over_mpi = ranks_.all_gather(over_mpi, kWhat);
    std::vector<RankResult> results;
    for (std::size_t rank = 0; rank < all_traffic.size(); ++rank) {
      const auto begin = all_elements.begin() + static_cast<std::ptrdiff_t>(rank * elements.size());
      const auto middle = begin + static_cast<std::ptrdiff_t>(mine.out.size());
      results.push_back({{{begin, middle}, {middle, begin + static_cast<std::ptrdiff_t>(elements.size())}},
                         all_traffic[rank],
                         all_over_mpi[rank]});
    }
    return results;
  }

  bool has_oracle() const override { return ranks_.rank() == 0; }

 private:
  /// Traffic that this rank has passed to MPI so far.
  Traffic given(const Topology& topology) const {
    Traffic sum;
    for (int peer = 0; peer < size(); ++peer) {
      const auto& [messages, bytes] = given_to_mpi()[static_cast<std::size_t>(peer)];
      sum.messages += messages, sum.bytes += bytes;
      if (topology.node_of(peer) != topology.node_of(ranks_.rank())) sum.bytes_between_nodes += bytes;
    }
    return sum;
  }
  /// A transport for the topology; the next run takes it again if it can.
  Transport& open(const Topology& topology) {
    std::vector<int> nodes;
    for (int rank = 0; rank < size(); ++rank) nodes.push_back(topology.node_of(rank));
    if (transport_ == nullptr || nodes != nodes_)
      transport_ = shares_memory_ ? ranks_.open_shared_transport(topology) : ranks_.open_transport(topology);
    nodes_ = nodes;
    return *transport_;
  }

  static constexpr std::string_view kWhat = "the results of all ranks";
  const MpiRanks& ranks_;
  bool shares_memory_;
  std::unique_ptr<Transport> transport_;
  std::vector<int> nodes_;  ///< of that transport
};

/// One over MPI, one through shared memory; they end before MPI does.
std::vector<std::unique_ptr<MpiRankGroup>> the_groups;

/// Lets the ranks agree on every test case.
class Agreement : public doctest::IReporter {
 public:
  explicit Agreement(const doctest::ContextOptions& options) : out_(*options.cout) {}

  void test_case_start(const doctest::TestCaseData& data) override { name_ = data.m_name; }
  void test_case_exception(const doctest::TestCaseException& exception) override {
    the_session->abandon(std::runtime_error("rank " + std::to_string(the_session->ranks().rank()) + " left \"" + name_ +
                                            "\": " + exception.error_string.c_str()));
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    const std::int64_t n_ranks = the_session->ranks().all_sum(stats.failure_flags != 0);
    if (n_ranks == 0) return;
    ++n_failed_cases;
    out_ << "\"" << name_ << "\" failed on " << n_ranks << " of " << the_session->ranks().size() << " ranks" << std::endl;
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  std::ostream& out_;
  std::string name_;
};
REGISTER_LISTENER("agreement", 1, Agreement);

}  // namespace

MpiSession& session() { return *the_session; }

/// There is one size, that of the run, whatever sizes a test would like.
std::vector<RankGroup*> rank_groups(const std::vector<int>&) {
  std::vector<RankGroup*> groups;
  for (const auto& group : the_groups) groups.push_back(group.get());
  return groups;
}

}  // namespace tree_attn::test

int main(int argc, char** argv) {
  using namespace tree_attn::test;
  constexpr double kTimeout = 60;
  tree_attn::MpiSession session(&argc, &argv, kTimeout);
  the_session = &session;
  for (const bool shares_memory : {false, true})
    the_groups.push_back(std::make_unique<MpiRankGroup>(session.ranks(), shares_memory));

  // Rank 0 speaks; the others only of what went wrong.
  doctest::Context context(argc, argv);
  std::ostringstream kept;
  if (session.ranks().rank() != 0) context.setCout(&kept);
  int status = 1;
  try {
    status = context.run();
    if (status != 0 && session.ranks().rank() != 0)
      std::cout << "rank " << session.ranks().rank() << ":\n" << kept.str() << std::flush;
    if (session.ranks().all_sum(status) != 0 || n_failed_cases > 0) status = 1;
  } catch (const std::exception& error) {
    session.abandon(error);
  }
  the_groups.clear();
  return status;
}
