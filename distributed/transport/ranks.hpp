// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Collective operations outside decode steps: agreement on errors and on values that all ranks must have alike
/// (section 5.3), reductions, the nodes of the ranks.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/topology.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/data/input_error.hpp"
#include "reference/state/require.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tree_attn {

/// A fixed set of ranks. All ranks call the functions below together, in the same order. Every wait has a deadline.
///
/// MpiRanks implements this over a communicator, ThreadRanks over threads of one process. The messages of a decode step go
/// through a Transport instead, which counts them.
class Ranks {
 public:
  /// @param remedy after give_up(), at the end of the line of check() @throws std::out_of_range unless 0 <= rank < size
  Ranks(int rank, int size, const char* remedy) : rank_(rank), size_(size), remedy_(remedy) {
    require<std::out_of_range>(rank >= 0 && rank < size, "Ranks: rank ", rank, " of ", size);
  }
  virtual ~Ranks() = default;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns whether all ranks are threads of one process, so that an address of one is an address of all.
  virtual bool is_one_process() const { return size_ == 1; }

  /// Refuses all further work over these ranks, after an error that leaves messages in flight.
  void give_up() const { gave_up_ = true; }
  bool has_given_up() const { return gave_up_; }
  /// Calls a function, and gives up if it throws.
  template <class Function>
  auto or_give_up(const Function& function) const {
    try {
      return function();
    } catch (...) {
      give_up();
      throw;
    }
  }
  /// @throws TransportError after give_up()
  virtual void check() const;

  /// Sets what this rank is doing, for the message of a missed deadline: "in two-level, step 3".
  void doing(std::string_view phrase) const { deadline().doing(phrase); }
  /// Observes the waits of this rank for others: those of libraries that poll.
  virtual Deadline& deadline() const = 0;
  /// Waits for all ranks.
  virtual void barrier() const = 0;
  /// Concatenates the bytes of all ranks, by rank.
  /// @param[in] mine the same number of bytes on every rank
  /// @param[out] all size() times as many
  /// @param what the rank waits for, for the message of a missed deadline: "all ranks to agree"
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const = 0;
  /// Concatenates the bytes of all ranks on rank 0 alone. @param[out] all on rank 0 size() times as many; elsewhere not
  /// written
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const;
  /// Copies the bytes of one rank to all ranks. @param[in,out] bytes the same number on every rank
  virtual void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const = 0;

  /// One value of a trivial type from every rank, by rank.
  template <class T>
  std::vector<T> all_gather(const T& mine, std::string_view what) const {
    std::vector<T> all(static_cast<std::size_t>(size_));
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), what);
    return all;
  }
  /// Elements are gathered as bytes, above.
  template <class T>
  void all_gather(std::span<const T>, std::string_view) const = delete;

  /// Tests whether all ranks pass the same number. If a rank passes an error instead, all throw it as throw_if_any_failed()
  /// does: where ranks compare a number anyway, that takes no further message.
  bool all_equal(std::uint64_t x, std::string_view what, const std::optional<std::string>& error = {}) const;
  /// Maximum and minimum over all ranks; NaN if it is NaN on one of them.
  double all_max(double x) const;
  std::uint64_t all_max(std::uint64_t x) const;
  std::uint64_t all_min(std::uint64_t x) const;
  /// Sum over all ranks.
  std::int64_t all_sum(std::int64_t x) const;
  /// The value on rank 0.
  std::uint64_t broadcast_from_root(std::uint64_t x) const;

  /// If any rank passes an error, every rank throws InputError with the error of the lowest such rank. The message starts
  /// with that rank, unless all ranks passed the same error. Errors are cut after 1023 bytes.
  void throw_if_any_failed(const std::optional<std::string>& error) const;

  /// Nodes of `ranks_per_node` consecutive ranks each; with 0, ranks that share memory form a node.
  /// @throws std::invalid_argument for a negative number
  Topology topology(int ranks_per_node) const;
  /// Messages between these ranks, which outlive the transport. If there are several transports, all ranks use them in the
  /// same order.
  virtual std::unique_ptr<Transport> open_transport(Topology topology) const = 0;
  /// Opens a transport through memory that the ranks of a node share. Collective.
  virtual std::unique_ptr<Transport> open_shared_transport(Topology topology) const = 0;

  /// Notes that a step is under way over messages of these ranks, or no longer: a message of another step, over any
  /// transport of theirs, would take the place of one of its later rounds.
  void set_busy(bool is_busy) const { is_busy_ = is_busy; }
  /// @throws std::logic_error while a step is under way
  void require_idle(const char* function) const {
    if (is_busy_)
      throw std::logic_error(std::string(function) + ": a step of another object over these messages is under way");
  }

 protected:
  Ranks(const Ranks&) = default;
  enum class Reduction { kMax, kMin, kTotal };
  /// Replaces each number by the maximum, the minimum or the sum over all ranks, modulo 2^64.
  virtual void all_reduce(std::span<std::uint64_t> numbers, Reduction reduction, std::string_view what) const;
  /// A label of the node of every rank. Collective.
  virtual std::vector<int> find_nodes() const = 0;

 private:
  int rank_, size_;
  const char* remedy_;
  mutable bool is_busy_ = false, gave_up_ = false;
};

/// Runs the checks of this rank, for an error that the others are told by Ranks::all_equal() or throw_if_any_failed().
/// @param is_told whether they are; else what the checks throw is thrown
/// @returns the line of what they have thrown @throws TransportError
template <class Checks>
std::optional<std::string> refusal_of(bool is_told, Checks&& checks) {
  try {
    std::forward<Checks>(checks)();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_told) throw;
    return error.what();
  }
  return {};
}

/// Runs work on every rank. If it throws Error on any of them, all ranks throw; see Ranks::throw_if_any_failed().
template <class Error = InputError, class Work>
void run_on_all(const Ranks& ranks, Work&& work) {
  std::optional<std::string> error;
  try {
    std::forward<Work>(work)();
  } catch (const Error& exception) {
    if (ranks.size() == 1) throw;
    error = exception.what();
  }
  ranks.throw_if_any_failed(error);
}

/// A name, and a value that ranks compare and print. Numbers keep all their digits.
struct Field {
  std::string_view name;
  std::array<char, 48> value{};  ///< a text, followed by zeros; a longer one is cut, and ends with its hash
  std::string_view remedy{};     ///< an option with which no two ranks differ; empty: there is none

  Field(std::string_view of, std::string_view text, std::string_view option = {});
  template <class Number>
  requires std::is_arithmetic_v<Number> Field(std::string_view of, Number number) : name(of) {
    std::to_chars(value.data(), value.data() + value.size(), +number);
  }
};

/// Hash of the values of fields, for a comparison that takes no memory.
std::uint64_t hash_of(std::span<const Field> fields);

/// Compares values over all ranks. Collective: one reduction of a hash, and all-gathers if ranks differ.
/// @param function that all ranks have called, and that begins the line
/// @param what the rank waits for, as Ranks::all_gather() @param refusal of this rank, see Ranks::all_equal()
/// @throws InputError, the same line on every rank: the refusal of a rank; or two ranks, and the functions that they have
///   called, or the values that they have different; TransportError
void require_equal(const Ranks& ranks, std::string_view function, std::string_view what, std::span<const Field> fields,
                   const std::optional<std::string>& refusal = {});

}  // namespace tree_attn
