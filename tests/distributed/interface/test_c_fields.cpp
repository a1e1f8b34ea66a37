// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every field of ta_setup and of ta_seen changes something, and so does every argument that is no tensor.
#include "tests/distributed/interface/managed.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

/// All fields of a structure, each by its name: one that is added does not compile until it is named here, and tested.
constexpr std::array kSetupFields{"size",
                                  "batch",
                                  "heads",
                                  "kv_heads",
                                  "head_dim",
                                  "value_dim",
                                  "most_queries",
                                  "key_type",
                                  "value_type",
                                  "scale",
                                  "algorithm",
                                  "backend",
                                  "n_threads",
                                  "ranks_per_node",
                                  "comm",
                                  "timeout",
                                  "k_scale",
                                  "v_scale",
                                  "n_pages",
                                  "page_window",
                                  "page_sinks",
                                  "values_in_keys",
                                  "has_scale",
                                  "capacity",
                                  "refusal",
                                  "callbacks",
                                  "range_ends",
                                  "no_shared_memory",
                                  "skips_comparison",
                                  "transport",
                                  "portable"};
std::size_t n_fields(const ta_setup& setup) {
  [[maybe_unused]] const auto& [size, batch, heads, kv_heads, head_dim, value_dim, most_queries, key_type, value_type, scale,
                                algorithm, backend, n_threads, ranks_per_node, comm, timeout, k_scale, v_scale, n_pages,
                                page_window, page_sinks, values_in_keys, has_scale, capacity, refusal, callbacks, range_ends,
                                no_shared_memory, skips_comparison, transport, portable] = setup;
  return kSetupFields.size();
}

std::string text(int status, const Managed* output = nullptr) {
  if (status != TA_OK) return std::to_string(status) + ": " + ta_error() + "\n";
  const std::string bytes =
      output == nullptr ? "" : std::string(reinterpret_cast<const char*>(output->bytes.data()), output->bytes.size());
  return "taken " + bytes + "\n";
}

std::ptrdiff_t n_tasks() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// Bytes that this process may write.
std::int64_t n_bytes_of_data() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  for (int i = 0; i < 6; ++i) statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// All that a handle of this setup does with the rows of a Call.
std::string behaviour(const ta_setup& setup) {
  const Call call;
  Managed k({2, 50, 8}, 2), v({2, 50, 6}, 3), out({1, 4, 2, 6});
  ta_attention* attention = nullptr;
  const std::ptrdiff_t n_before = n_tasks();
  const std::int64_t bytes_before = n_bytes_of_data();
  std::string all = text(ta_open(&setup, &attention));
  if (attention == nullptr) return all;
  all += std::to_string(n_tasks() - n_before) + " threads\n";
  std::int64_t length = 0;
  all += text(ta_length(attention, 1, &length));
  all += text(ta_append(attention, 0, 50, k, nullptr));
  for (int i = 0; i < 14; ++i) all += text(ta_append(attention, 0, 50, k, setup.values_in_keys != 0 ? nullptr : &v.tensor));
  if (n_bytes_of_data() - bytes_before > std::int64_t{64} << 20) all += "much memory\n";
  const ta_seen window{1, 100, 3, nullptr, nullptr, 0};
  for (const ta_seen* seen : {static_cast<const ta_seen*>(nullptr), &window})
    all += text(ta_step(attention, call.q, seen, out, nullptr), &out);
  k.dl().device = {9, 0};
  all += text(ta_append(attention, 0, 50, k, v));
  ta_close(attention);
  return all;
}

}  // namespace

TEST_CASE("fields: every one of ta_setup changes what a handle does, or is refused") {
  Managed scales({1, 2}, 7);
  for (std::size_t i = 0; i < 2; ++i) scales.bytes[4 * i + 3] = std::byte{0x3F};  // positive
  const std::uint64_t no_communicator = 0;
  const ta_comm no_functions{};
  const std::int64_t no_end = std::numeric_limits<std::int64_t>::max();
  const auto eight = [](ta_setup& s) { s.key_type = s.value_type = kF8; };
  const auto emulated_eight = [&](ta_setup& s) { eight(s), s.backend = "emulated"; };
  const auto pages = [](ta_setup& s) { s.n_pages = 20; };
  const auto window = [&](ta_setup& s) { pages(s), s.page_window = 100; };
  struct Row {
    const char* name;
    std::function<void(ta_setup&)> change, before{};
  };
  const std::vector<Row> table{{"size", [](ta_setup& s) { --s.size; }},
                               {"batch", [](ta_setup& s) { s.batch = 2; }},
                               {"heads", [](ta_setup& s) { s.heads = 8; }},
                               {"kv_heads", [](ta_setup& s) { s.kv_heads = 4; }},
                               {"most_queries", [](ta_setup& s) { s.most_queries = -1; }},
                               {"head_dim", [](ta_setup& s) { s.head_dim = 9; }},
                               {"value_dim", [](ta_setup& s) { s.value_dim = 5; }},
                               {"key_type", [](ta_setup& s) { s.key_type = kBF16; }},
                               {"value_type", [](ta_setup& s) { s.value_type = kBF16; }},
                               {"scale", [](ta_setup& s) { s.scale = 0.3; }},
                               {"algorithm", [](ta_setup& s) { s.algorithm = "one-shot"; }},
                               {"backend", [](ta_setup& s) { s.backend = "emulated"; }},
                               {"n_threads", [](ta_setup& s) { s.n_threads = 3; }},
                               {"ranks_per_node", [](ta_setup& s) { s.ranks_per_node = -1; }},
                               {"comm", [&](ta_setup& s) { s.comm = &no_communicator; }},
                               {"timeout", [](ta_setup& s) { s.timeout = -1; }},
                               {"timeout", [](ta_setup& s) { s.timeout = std::numeric_limits<double>::quiet_NaN(); }},
                               {"k_scale", [&](ta_setup& s) { s.k_scale = scales; }, eight},
                               {"v_scale", [&](ta_setup& s) { s.v_scale = scales; }, eight},
                               {"n_pages", [](ta_setup& s) { s.n_pages = 3; }},
                               {"page_window", [](ta_setup& s) { s.page_window = 100; }, pages},
                               {"page_window", [](ta_setup& s) { s.page_window = 100; }},
                               {"page_sinks", [](ta_setup& s) { s.page_sinks = 3; }, window},
                               {"page_sinks", [](ta_setup& s) { s.page_sinks = 3; }, pages},
                               {"values_in_keys", [](ta_setup& s) { s.values_in_keys = 1; }},
                               {"has_scale", [](ta_setup& s) { s.has_scale = 1; }},
                               {"capacity", [](ta_setup& s) { s.capacity = -1; }},
                               {"capacity", [](ta_setup& s) { s.capacity = 1 << 20; }},
                               {"capacity", [](ta_setup& s) { s.capacity = 1; }, pages},
                               {"refusal", [](ta_setup& s) { s.refusal = "of the caller"; }},
                               {"callbacks", [&](ta_setup& s) { s.callbacks = &no_functions; }},
                               {"range_ends", [&](ta_setup& s) { s.range_ends = &no_end; }},
                               {"transport", [](ta_setup& s) { s.transport = "nccl"; }},
                               {"portable", [](ta_setup& s) { s.portable = 1; }, emulated_eight}};
  std::vector<std::string> missing(kSetupFields.begin(), kSetupFields.end());
  CHECK(n_fields(setup_of_call()) == missing.size());
  for (const Row& row : table) {
    CAPTURE(row.name);
    std::erase(missing, row.name);
    ta_setup setup = setup_of_call();
    if (row.before) row.before(setup);
    const std::string before = behaviour(setup);
    CHECK(behaviour(setup) == before);
    row.change(setup);
    const bool is_built = before.find("not built in") == std::string::npos;
    CHECK((behaviour(setup) != before || !is_built));
  }
  // Of several ranks: mpi_interface.cpp and test_c_comm.cpp.
  CHECK(missing == std::vector<std::string>{"no_shared_memory", "skips_comparison"});
}

TEST_CASE("fields: a scale is used as given, alone and by a handle, and one that is not finite is refused") {
  const Call call;
  Managed out({1, 4, 2, 6}), wide({1, 4, 2, 6}, kF64), bound({1, 4, 2, 6}, kF64), half({1, 4, 2, 6}, kF64);
  const Managed k({2, 70, 8}, 2), v({2, 70, 6}, 3);
  for (const auto& [scale, has_scale, is_zero] :
       {std::tuple{0.7, 0, false}, {0.7, 1, false}, {0.0, 1, true}, {0.0, 0, false}}) {
    CAPTURE(scale);
    CAPTURE(has_scale);
    ta_setup setup = setup_of_call();
    setup.scale = scale, setup.has_scale = has_scale;
    const Handle handle(setup);
    REQUIRE(ta_append(handle, 0, 70, k, v) == TA_OK);
    REQUIRE(ta_step(handle, call.q, nullptr, call.out, call.lse) == TA_OK);
    REQUIRE(ta_attend(call.q, call.k, call.v, scale, nullptr, out, nullptr, has_scale) == TA_OK);
    // The oracle, of the scale as a factor of the queries, or of queries that are 0.
    Managed scaled({1, 4, 2, 8}, 1);
    const double factor = scale == 0 ? (is_zero ? 0 : 1 / std::sqrt(8.0)) : scale;
    for (std::size_t i = 0; i < 64; ++i) {
      const float x = static_cast<float>(factor) * scaled.at(i);
      std::memcpy(scaled.bytes.data() + 4 * i, &x, 4);
    }
    REQUIRE(ta_oracle(scaled, call.k, call.v, nullptr, 1, nullptr, half, nullptr, nullptr, nullptr, 0) == TA_OK);
    REQUIRE(ta_oracle(call.q, call.k, call.v, nullptr, scale, nullptr, wide, nullptr, nullptr, nullptr, has_scale) == TA_OK);
    REQUIRE(ta_error_bound(call.q, call.k, call.v, scale, nullptr, 0, 0, 0, bound, has_scale) == TA_OK);
    for (std::size_t i = 0; i < 48; ++i) {
      CHECK(std::fabs(wide.at<double>(i) - half.at<double>(i)) < 1e-6);
      CHECK(std::fabs(out.at(i) - wide.at<double>(i)) <= bound.at<double>(i));
      CHECK(std::fabs(call.out.at(i) - wide.at<double>(i)) <= bound.at<double>(i));
    }
    if (is_zero) CHECK(call.lse.at(0) == doctest::Approx(std::log(70.0)).epsilon(1e-6));
  }
  for (const double scale : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    ta_setup setup = setup_of_call();
    setup.scale = scale;
    ta_attention* none = nullptr;
    CHECK(has(line(ta_open(&setup, &none)), "scale is "));
    CHECK(has(line(ta_attend(call.q, call.k, call.v, scale, nullptr, out, nullptr, 1)), "scale is "));
    CHECK(has(line(ta_oracle(call.q, call.k, call.v, nullptr, scale, nullptr, wide, nullptr, nullptr, nullptr, 0)),
              "scale is "));
    CHECK(has(line(ta_error_bound(call.q, call.k, call.v, scale, nullptr, 0, 0, 0, bound, 0)), "scale is "));
  }
}

TEST_CASE("fields: every one of ta_seen, of the model of an error bound, and the form of an lse change the output") {
  const Call call;
  const Managed logits({4}, 9), bound({1, 4, 2, 6}, kF64);
  const ta_seen base{0, 20, 0, nullptr, nullptr, 0};
  const auto attended = [&](const ta_seen& seen) {
    return text(ta_attend(call.q, call.k, call.v, 0, &seen, call.out, nullptr, 0), &call.out);
  };
  const std::string all = attended(base);
  [[maybe_unused]] const auto& [causal, window, sinks, sink, mask, softcap] = base;
  const Managed added({1, 1, 2, 70}, 8), booleans({1, 4, 2, 70}, DLDataType{kDLBool, 8, 1}), wide({1, 1, 2, 70}, kF64);
  for (const ta_seen& seen : {ta_seen{1, 20, 0, nullptr, nullptr, 0},
                              {0, 21, 0, nullptr, nullptr, 0},
                              {0, 20, 1, nullptr, nullptr, 0},
                              {0, 20, 0, logits, nullptr, 0},
                              {0, 20, 0, nullptr, added, 0},
                              {0, 20, 0, nullptr, booleans, 0},
                              {0, 20, 0, nullptr, nullptr, 0.5}})
    CHECK(attended(seen) != all);
  CHECK(has(attended({0, 20, 0, nullptr, wide, 0}), "mask is F64; booleans and F32 are taken"));
  CHECK(has(attended({0, 20, 0, nullptr, call.q, 0}), "the mask is [1, 4, 2, 8] instead of [1 or 1, 4 or 1, 2, 70]"));
  CHECK(has(attended({0, 20, 0, nullptr, nullptr, -1}), "a soft cap of -1"));
  const ta_seen useless{0, 0, 3, nullptr, nullptr, 0}, negative{0, 20, -1, nullptr, nullptr, 0};
  CHECK(has(attended(useless), "seen has 3 sinks but no window"));
  CHECK(has(attended(negative), "-1 sinks"));

  const auto bounded = [&](double n_additions, double n_rescalings, double output_roundoff) {
    REQUIRE(ta_error_bound(call.q, call.k, call.v, 0, nullptr, n_additions, n_rescalings, output_roundoff, bound, 0) ==
            TA_OK);
    return bound.at<double>(0);
  };
  const double usual = bounded(0, 0, 0);
  CHECK((usual > 0 && usual < 1e-4));
  CHECK(bounded(100, 0, 0) > usual);
  CHECK(bounded(0, 100, 0) > usual);
  CHECK(bounded(0, 0, 0.1) > 1000 * usual);
  CHECK(bounded(100, 0, 0) < bounded(0, 100, 0));  // an exponential for each rescaling
  for (const double x : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const auto& [a, r, u] : {std::tuple{x, 0.0, 0.0}, {0.0, x, 0.0}, {0.0, 0.0, x}})
      CHECK(has(line(ta_error_bound(call.q, call.k, call.v, 0, nullptr, a, r, u, bound, 0)), "none is negative"));
  }

  const Handle handle(setup_of_call());
  REQUIRE(call.attend() == TA_OK);
  const Managed out({1, 4, 2, 6}), lse({1, 4, 2});
  for (const auto& [form, factor] :
       {std::pair{TA_NATURAL, 1.0}, {TA_BASE_TWO, std::log(2.0)}, {TA_NATURAL_OR_INF_EMPTY, 1.0}}) {
    REQUIRE(ta_combine(handle, call.out, call.lse, form, 0, out, lse) == TA_OK);
    for (std::size_t i = 0; i < 8; ++i) CHECK(lse.at(i) == doctest::Approx(factor * call.lse.at(i)).epsilon(1e-6));
  }
  CHECK(line(ta_combine(handle, call.out, call.lse, 3, 0, out, lse)) == "form is 3; 0, 1 or 2");
}

TEST_CASE("fields: outputs of moments overlap no input, and memory of the host may be pinned") {
  Managed one({8}, 5, kF64), keys({30, 8}, 6, kF64), values({30, 3}, 7, kF64), zeta({3}, 8, kF64);
  Managed mean({3}, kF64), covariance({3, 3}, kF64);
  const auto moments = [&] { return ta_moments(one, keys, values, zeta, mean, covariance); };
  CHECK(moments() == TA_OK);
  for (const auto& [input, name] : {std::pair{&one, "q"}, {&keys, "k"}, {&values, "v"}, {&zeta, "zeta"}}) {
    void* const own = mean.dl().data;
    mean.dl().data = input->bytes.data();
    CHECK(line(moments()) == std::string("mean is written and overlaps ") + name);
    mean.dl().data = own;
  }
  Call call;
  REQUIRE(call.attend() == TA_OK);
  Call pinned;
  for (Managed* each : {&pinned.q, &pinned.k, &pinned.v, &pinned.out, &pinned.lse})
    each->dl().device.device_type = kDLCUDAHost;
  REQUIRE(pinned.attend() == TA_OK);
  CHECK(pinned.out.bytes == call.out.bytes);
}

}  // namespace tree_attn::test
