// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The tests of the decoders over MPI: mpirun -n P mpi_decoders. Every rank runs every test and sees all results.
///
/// All ranks agree at the end of every test case, so one failed check on one rank fails the run on all of them. A rank that
/// leaves a test case by an exception ends the others at once: they might be waiting for it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/worlds.hpp"

namespace tree_attn::test {
namespace {

MpiSession* the_session = nullptr;
std::int64_t n_failed_cases = 0;

class MpiWorld : public World {
 public:
  explicit MpiWorld(const MpiSession& session) : World(session.size()), session_(session) {}

  std::vector<Seen> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    // A transport owns a communicator, which is dear: keep one for every grouping.
    std::vector<int> nodes;
    for (int rank = 0; rank < topology.size(); ++rank) nodes.push_back(topology.node_of(rank));
    std::unique_ptr<MpiTransport>& transport = transports_[nodes];
    if (!transport) transport = std::make_unique<MpiTransport>(session_, topology);
    transport->traffic = {};
    DecodeOutput mine = body(*transport);
    const Traffic traffic = transport->traffic;

    // Let every rank know what every rank saw: [out | lse] of one length, and the counters.
    std::vector<float> numbers = mine.out;
    numbers.insert(numbers.end(), mine.lse.begin(), mine.lse.end());
    const std::vector<float> all_numbers = gather<float>(numbers);
    const std::vector<Traffic> all_traffic = gather<Traffic>({&traffic, 1});
    std::vector<Seen> seen;
    for (std::size_t rank = 0; rank < all_traffic.size(); ++rank) {
      const auto begin = all_numbers.begin() + static_cast<std::ptrdiff_t>(rank * numbers.size());
      const auto middle = begin + static_cast<std::ptrdiff_t>(mine.out.size());
      seen.push_back({{{begin, middle}, {middle, begin + static_cast<std::ptrdiff_t>(numbers.size())}}, all_traffic[rank]});
    }
    return seen;
  }

  bool has_oracle() const override { return session_.rank() == 0; }
  void forget_transports() { transports_.clear(); }

 private:
  /// The same number of things from every rank, by rank.
  template <class Thing>
  std::vector<Thing> gather(std::span<const Thing> mine) const {
    std::vector<Thing> all(mine.size() * static_cast<std::size_t>(size()));
    const int n_bytes = static_cast<int>(mine.size_bytes());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(mine.data(), n_bytes, MPI_BYTE, all.data(), n_bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    session_.await({&request, 1}, "the results of all ranks");
    return all;
  }

  const MpiSession& session_;
  std::map<std::vector<int>, std::unique_ptr<MpiTransport>> transports_;
};

MpiWorld& the_world() {
  static MpiWorld world(*the_session);
  return world;
}

/// Lets the ranks agree on every test case.
class Agreement : public doctest::IReporter {
 public:
  explicit Agreement(const doctest::ContextOptions& options) : out_(*options.cout) {}

  void test_case_start(const doctest::TestCaseData& data) override { name_ = data.m_name; }
  void test_case_exception(const doctest::TestCaseException& exception) override {
    the_session->abandon("rank " + std::to_string(the_session->rank()) + " left \"" + name_ + "\": " + exception.error_string.c_str());
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    const std::int64_t n_ranks = the_session->sum(stats.failure_flags != 0);
    if (n_ranks == 0) return;
    ++n_failed_cases;
    out_ << "\"" << name_ << "\" failed on " << n_ranks << " of " << the_session->size() << " ranks" << std::endl;
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
std::vector<World*> worlds(std::span<const int>) { return {&the_world()}; }

}  // namespace tree_attn::test

int main(int argc, char** argv) {
  using namespace tree_attn::test;
  constexpr double kTimeout = 60;
  tree_attn::MpiSession session(&argc, &argv, kTimeout);
  the_session = &session;

  // Rank 0 speaks; the others only of what went wrong.
  doctest::Context context(argc, argv);
  std::ostringstream kept;
  if (session.rank() != 0) context.setCout(&kept);
  int status = 1;
  try {
    status = context.run();
    if (status != 0 && session.rank() != 0) std::cout << "rank " << session.rank() << ":\n" << kept.str() << std::flush;
    // Communicators are freed while MPI is still there.
    the_world().forget_transports();
    if (session.sum(status) != 0 || n_failed_cases > 0) status = 1;
  } catch (const std::exception& error) {
    session.abandon("rank " + std::to_string(session.rank()) + ": " + error.what());
  }
  return status;
}
