// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The KV cache in device memory: what a step uploads and allocates, and that growth changes no bit.
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/seen_cases.hpp"
#include "tests/support/values_in_keys.hpp"

#include <random>
#include <stdexcept>

namespace tree_attn::test {
namespace {

/// Bytes of an array in the block that a step uploads.
std::int64_t aligned(std::int64_t n_bytes) { return (n_bytes + 15) / 16 * 16; }

/// The states of a shard that is uploaded at once.
Forest<float> at_once(TensorWorkload& workload, KeyRange range, const std::vector<std::int64_t>& lengths) {
  return decode_range(device::backend(), workload, range, {workload.query(0), lengths});
}

/// A workload, and a cache that it is appended to part by part.
struct Growing {
  std::unique_ptr<TensorWorkload> workload;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<DecodeSession> session;

  Growing(unsigned seed, const Axes& axes, std::int64_t capacity)
      : workload(normal_workload(seed, axes)),
        cache(device::backend().make_cache(workload->shape(), KeyRange{0, axes.n_keys}, capacity)),
        session(cache->open(workload->scale, workload->shape().n_queries)) {}

  void append(std::int64_t entry, std::int64_t begin, std::int64_t end) {
    const Shard part = workload->keys_and_values(entry, {begin, end});
    cache->append(entry, part.k, part.v);
  }
  /// To all entries.
  void append(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < cache->shape().batch; ++i) append(i, begin, end);
  }
  States& decode(const std::vector<std::int64_t>& lengths) { return session->decode({workload->query(0), lengths}); }
  bool is_right(DecodeSession& with, const std::vector<std::int64_t>& lengths) {
    return same_bits(with.decode({workload->query(0), lengths}).host(),
                     at_once(*workload, {0, workload->n_keys()}, lengths));
  }
};

/// The rows of a cache on the host. @param[out] memory of them
Shard read(const KvCache& cache, std::int64_t n, std::vector<std::byte>& memory) {
  return cache.shard(n, [&](std::size_t n_bytes) { return (memory.resize(n_bytes), memory.data()); });
}

/// Scalar cores and tensor cores; of the last rows of 26 and 14 bytes, which have padding.
const Axes kAxes[] = {
    {.batch = 3, .heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 150, .dtype = DType::BF16},
    {.batch = 3, .heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 150, .dtype = DType::F16},
    {.batch = 3, .heads = 4, .kv_heads = 1, .head_dim = 40, .value_dim = 24, .n_queries = 2, .n_keys = 150},
    {.batch = 3, .heads = 4, .kv_heads = 2, .head_dim = 13, .value_dim = 7, .n_keys = 150, .dtype = DType::BF16},
};

}  // namespace

TEST_CASE("device cache: a step is one upload of one position, queries and lengths, no allocation, and one graph") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    Growing of(6200, axes, 150);
    const WorkloadShape& shape = of.workload->shape();
    of.append(0, 100);
    const auto q_bytes = shape.n_rows() * shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.dtype));
    for (std::int64_t step = 100; step < 106; ++step) {
      CAPTURE(step);
      CHECK(counts_of([&] { of.append(step, step + 1); }) == Counts{});
      // The first step launches three kernels, the second records them.
      const bool is_first = step == 100;
      States* states = nullptr;
      CHECK(counts_of([&] { states = &of.decode(std::vector<std::int64_t>(3, step + 1)); }) ==
            Counts{.uploads = 1,
                   .uploaded = aligned(shape.bytes_per_position()) + q_bytes + 2 * aligned(3 * 8),
                   .launches = is_first ? 3 : 0,
                   .replays = is_first ? 0 : 1,
                   .of_thread = is_first ? 3 : 1});
      CHECK(states->device() != nullptr);
      const Counts of_host = counts_of([&] { states->host(), states->host(); });
      const auto state_bytes = static_cast<std::int64_t>(states->host().states().size_bytes());
      CHECK(of_host == Counts{.downloaded = state_bytes});
      CHECK(state_bytes > 0);
    }
    // The counter counts.
    CHECK(counts_of([] { const device::DeviceBuffer<float> some(10); }) == Counts{.allocations = 1});
  }
}

TEST_CASE("device cache: the input of a step is not overwritten before it has been uploaded") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    Growing of(6230, axes, 150);
    of.append(0, 100);
    // The caller waits for none of these steps. Each appends a key, and a lost one would be missed at the end.
    for (std::int64_t n = 101; n < 106; ++n) of.append(n - 1, n), of.decode(std::vector<std::int64_t>(3, n));
    CHECK(of.is_right(*of.session, {90, 50, 105}));
  }
}

TEST_CASE("device cache: a single position waits on the host for a step, and whoever needs it earlier finds it") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype) << ", d " << axes.head_dim);
    Growing of(6270, axes, 150);
    KvCache& cache = *of.cache;
    DecodeSession& one = *of.session;
    const auto other = cache.open(of.workload->scale);
    of.append(0, 100);
    // Two of one entry, without a step between them; a step of another session, which takes nothing more.
    of.append(0, 100, 101), of.append(0, 101, 102), of.append(2, 100, 101);
    CHECK(of.is_right(one, {102, 100, 101}));
    CHECK(of.is_right(*other, {102, 100, 101}));
    // Another key in its place, which was removed before it was uploaded; one by one, and several at once.
    of.append(1, 120, 121), cache.truncate(1, 100), of.append(1, 100, 101);
    of.append(2, 120, 121), cache.truncate(2, 101), of.append(2, 101, 104);
    CHECK(of.is_right(*other, {102, 101, 104}));
    CHECK(of.is_right(one, {102, 101, 104}));
    // The shard on the host.
    of.append(0, 102, 103);
    std::vector<std::byte> memory;
    const Shard shard = read(cache, 103, memory);
    const auto copy = device::backend().make_cache(cache.shape(), {0, 150});
    copy->borrow(shard, std::vector<std::int64_t>{103, 101, 103});
    CHECK(of.is_right(*copy->open(of.workload->scale), {103, 101, 103}));
    // Nothing is left of it in a cache that begins anew.
    of.append(0, 103, 104);
    cache.reset(KeyRange{0, 150});
    of.append(0, 104), of.append(0, 104, 105);
    CHECK(of.is_right(one, {105, 104, 104}));
  }
}

/// Their launches run beside each other: only the appends that both read are ordered before them.
TEST_CASE("device cache: two sessions over one cache, neither of which waits for the other, have the bits of one") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype) << ", d " << axes.head_dim);
    Growing of(6290, axes, 150);
    const auto other = of.cache->open(of.workload->scale, of.workload->shape().n_queries);
    of.append(0, 100);
    for (std::int64_t n = 101; n < 106; ++n) {
      of.append(n - 1, n);
      const std::vector<std::int64_t> all(3, n), some{n, 0, n - 40};
      States &first = of.decode(all), &second = other->decode({of.workload->query(0), some});
      CHECK(same_bits(second.host(), at_once(*of.workload, {0, 150}, some)));
      CHECK(same_bits(first.host(), at_once(*of.workload, {0, 150}, all)));
    }
  }
}

TEST_CASE("device cache: growth is one copy of keys and of values on the device, and one new graph") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    Growing of(6250, axes, 64);
    const auto lengths = [](std::int64_t n) { return std::vector<std::int64_t>{n, n - 3, n - 20}; };
    for (std::size_t i = 0; i < 3; ++i) of.append(static_cast<std::int64_t>(i), 0, lengths(60)[i]);
    int n_grown = 0;
    for (std::int64_t n = 61; n < 70; ++n) {
      CAPTURE(n);
      const std::int64_t capacity = of.cache->capacity();
      const Counts of_append = counts_of([&] {
        for (std::size_t i = 0; i < 3; ++i) of.append(static_cast<std::int64_t>(i), lengths(n - 1)[i], lengths(n)[i]);
      });
      const bool has_grown = of.cache->capacity() != capacity;
      CHECK(of_append == Counts{.allocations = has_grown ? 2 : 0});
      n_grown += has_grown ? 1 : 0;
      CHECK(counts_of([&] { of.decode(lengths(n)); }).launches == (n == 61 || has_grown ? 3 : 0));
      CHECK(of.is_right(*of.session, lengths(n)));
    }
    CHECK(n_grown == 1);
  }
}

TEST_CASE("device cache: F64, and values of another type, are stored as F32, and strides and alignment change no bit") {
  const Axes axes{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = 24, .n_keys = 140};
  const std::vector<std::int64_t> lengths{140, 33};
  const auto exact = normal_workload(6300, axes, lengths);
  const Forest<float> want = at_once(*exact, {0, 140}, lengths);
  const auto wide = [](const TensorView& view) {
    const Tensor dense = copy_of(view);
    const auto* const first = reinterpret_cast<const float*>(dense.bytes.data());
    return Tensor({first, first + n_elements(view.shape)}, view.shape, DType::F64);
  };
  const auto f64 = workload_of(wide(exact->query(0)), wide(exact->k()), wide(exact->v()), lengths);
  CHECK(device::backend().stored(f64->shape()).dtype == DType::F32);
  CHECK(same_bits(at_once(*f64, {0, 140}, lengths), want));
  const auto mixed = workload_of(copy_of(exact->query(0)), copy_of(exact->k()), wide(exact->v()), lengths);
  CHECK(device::backend().stored(mixed->shape()).value_dtype == DType::F32);
  CHECK(same_bits(at_once(*mixed, {0, 140}, lengths), want));
  // A cache like another is of what that one stores: the keys were BF16, of which neighbours share a lane.
  const AttentionShape once = device::backend().stored({.dtype = DType::BF16, .value_dtype = DType::F32});
  CHECK((once.dtype == DType::F32 && once.in_pairs));
  CHECK(device::backend().stored(once) == once);
  CHECK(same_bits(at_once(*packed(*exact), {0, 140}, lengths), want));
  CHECK(same_bits(at_once(*misaligned(*exact, 4), {0, 140}, lengths), want));
}

TEST_CASE("device cache: a shard comes back as it was appended, and goes into a cache for another range") {
  for (const std::int64_t d : {64, 13}) {
    const Axes axes{
        .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = d, .value_dim = d / 2, .n_keys = 256, .dtype = DType::BF16};
    const auto workload = normal_workload(6400, axes);
    const auto hop = device::backend().make_cache(workload->shape(), {0, 128});
    const auto session = hop->open(workload->scale);
    for (const KeyRange range : {KeyRange{128, 256}, {64, 128}, {0, 128}, {64, 64}}) {
      INFO("d " << d << ", from " << range.begin);
      const auto own = device::backend().make_cache(workload->shape(), range);
      fill(*own, *workload, workload->lengths());
      // A row of 13 elements has 26 bytes of 32, one of 6 has 12 of 16.
      CHECK(own->bytes() == range.size() * 2 * 2 * (d == 64 ? 128 + 64 : 32 + 16));
      std::vector<std::byte> memory;
      const Shard shard = read(*own, range.size(), memory);
      CHECK(copy_of(shard.k).bytes == copy_of(workload->shard(range).k).bytes);
      CHECK(copy_of(shard.v).bytes == copy_of(workload->shard(range).v).bytes);
      hop->reset(range);
      hop->borrow(shard, std::vector<std::int64_t>(2, range.size()));
      const Forest<float> want = at_once(*workload, range, workload->lengths());
      CHECK(same_bits(session->decode({workload->query(0), workload->lengths()}).host(), want));
      // The same in device memory.
      const std::int64_t n_bytes = range.size() * own->shape().bytes_per_position();
      const device::DeviceBuffer<std::byte> there(n_bytes);
      const Shard on_device = own->shard_on_device(range.size(), there.data());
      CHECK(there.download() == memory);
      hop->reset(range);
      hop->borrow(on_device, std::vector<std::int64_t>(2, range.size()));
      CHECK(same_bits(session->decode({workload->query(0), workload->lengths()}).host(), want));
    }
  }
}

TEST_CASE("device cache: values without components have the shifts and sums of others") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const auto states_of = [dtype](std::int64_t d_v) {
      const Axes axes{.heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = d_v, .n_keys = 200, .dtype = dtype};
      const auto workload = normal_workload(6410, axes);
      const Forest<float> forest = at_once(*workload, {0, 200}, workload->lengths());
      std::vector<float> shifts_and_sums;
      for (std::size_t at = 0; at < forest.states().size(); at += static_cast<std::size_t>(state_size(d_v)))
        shifts_and_sums.insert(shifts_and_sums.end(), {forest.states()[at + kShift], forest.states()[at + kSum]});
      return shifts_and_sums;
    };
    CHECK(same_bits(states_of(0), states_of(9)));
  }
}

TEST_CASE("device cache: shapes that no kernel takes are refused") {
  const AttentionShape large{.head_dim = 577, .value_dim = 16};
  CHECK(device::backend().refusal(large) == "d_h 577, d_v 16: more than 576");
  const auto refused = device::backend().make_cache(large, {0, 5});
  CHECK_THROWS_WITH_AS(refused->open(1), "the kernels do not take d_h 577, d_v 16: more than 576", DeviceError);
}

TEST_CASE("device cache: keys, values and queries in device memory give the states of those on the host") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    Growing of(6280, axes, 150);
    std::vector<device::DeviceBuffer<std::byte>> memory;
    const auto copied = [&memory](const TensorView& view) {
      TensorView copy = view;
      const std::int64_t n_bytes = n_elements(view.shape) * static_cast<std::int64_t>(bytes_of(view.dtype));
      memory.emplace_back(n_bytes).upload({view.data, static_cast<std::size_t>(n_bytes)});
      copy.data = memory.back().data(), copy.on_device = true;
      return copy;
    };
    const TensorView k = copied(of.workload->k()), v = copied(of.workload->v()), q = copied(of.workload->query(0));
    for (std::int64_t i = 0; i < 3; ++i)
      for (const auto& [begin, end] : {KeyRange{0, 149}, KeyRange{149, 150}})
        of.cache->append(i, k.entry(i).positions(begin, end), v.entry(i).positions(begin, end));
    const std::vector<std::int64_t> lengths(3, 150);
    const Counts counts = counts_of([&] {
      for (int step = 0; step < 3; ++step) of.session->decode({q, lengths});
    });
    CHECK(counts.uploaded == 3 * 2 * aligned(3 * 8));
    CHECK(counts.downloaded == 0);
    CHECK(same_bits(of.session->decode({q, lengths}).host(), at_once(*of.workload, {0, 150}, lengths)));
  }
}

/// Rows of scalar cores and of tensor cores, latent rows, rows that bulk copies do not take, and rows that become F32.
TEST_CASE("device cache: values that are components of the keys are stored once, with the bits of values apart") {
  for (const AttentionShape& shape : {AttentionShape{DType::F32, DType::F32, 2, 2, 2, 24, 13},
                                      {DType::BF16, DType::BF16, 2, 8, 2, 128, 64},
                                      {DType::F16, DType::F16, 1, 16, 1, 576, 512},
                                      {DType::BF16, DType::BF16, 2, 4, 1, 13, 7},
                                      {DType::F64, DType::F64, 1, 2, 1, 16, 16}}) {
    INFO(name_of(shape.dtype) << ", d " << shape.head_dim);
    check_values_in_keys(device::backend(), shape, KeyRange{0, kOpenEnd}, 6298);
    check_values_in_keys(device::backend(), shape, KeyRange{64, 1000}, 6299);
  }
}

}  // namespace tree_attn::test
