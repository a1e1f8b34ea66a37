// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The KV cache in device memory: what a step uploads and allocates, and that growth changes no bit.
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/values_in_keys.hpp"

#include <random>
#include <stdexcept>

namespace tree_attn::test {
namespace {

const Backend& kernels() { return device::backend(); }

/// What an array takes of the block that a step uploads.
std::int64_t aligned(std::int64_t n_bytes) { return (n_bytes + 15) / 16 * 16; }

void append(KvCache& cache, TensorWorkload& workload, std::int64_t entry, std::int64_t begin, std::int64_t end) {
  const Shard part = workload.keys_and_values(entry, {begin, end});
  cache.append(entry, part.k, part.v);
}

/// The states of a shard that is uploaded at once.
Forest<float> at_once(TensorWorkload& workload, KeyRange capacity, const std::vector<std::int64_t>& lengths) {
  const auto cache = kernels().make_cache(workload.shape(), capacity);
  for (std::int64_t i = 0; i < workload.shape().batch; ++i) {
    const std::int64_t end = std::clamp(lengths[static_cast<std::size_t>(i)], capacity.begin, capacity.end);
    append(*cache, workload, i, capacity.begin, end);
  }
  return cache->open(workload.scale)->decode({workload.query(0), lengths}).host();
}

/// Sub-warps and tensor cores, aligned rows and others.
const Axes kAxes[] = {
    {.batch = 3, .heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 150, .dtype = DType::BF16},
    {.batch = 3, .heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 150, .dtype = DType::F16},
    {.batch = 3,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 40,
     .value_dim = 24,
     .n_queries = 2,
     .n_keys = 150,
     .dtype = DType::F32},
};

}  // namespace

TEST_CASE("device cache: a step is one upload of one position, queries and lengths, no allocation, and one graph") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    const auto workload = normal_workload(6200, axes);
    const AttentionShape& shape = workload->shape();
    const auto cache = kernels().make_cache(shape, {0, 150});
    const auto session = cache->open(workload->scale);
    for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, 0, 100);
    const TensorView q = workload->query(0);
    const auto q_bytes = shape.n_rows() * shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.dtype));
    for (std::int64_t step = 100; step < 106; ++step) {
      CAPTURE(step);
      const std::int64_t allocated = device::traffic().n_allocations, uploaded = device::traffic().bytes_uploaded,
                         uploads = device::traffic().n_uploads;
      for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, step, step + 1);
      CHECK(device::traffic().n_uploads == uploads);

      const std::int64_t downloaded = device::traffic().bytes_downloaded, launches = device::traffic().n_launches,
                         replays = device::traffic().n_replays, launched = n_launches_of_thread;
      States& states = session->decode({q, std::vector<std::int64_t>(3, step + 1)});
      CHECK(device::traffic().n_uploads - uploads == 1);
      CHECK(device::traffic().bytes_uploaded - uploaded ==
            aligned(shape.bytes_per_position()) + aligned(q_bytes) + 2 * aligned(3 * 8));
      CHECK(device::traffic().bytes_downloaded == downloaded);
      // The first step launches two kernels, the second records them.
      const bool is_first = step == 100;
      CHECK(device::traffic().n_launches - launches == (is_first ? 2 : 0));
      CHECK(device::traffic().n_replays - replays == (is_first ? 0 : 1));
      CHECK(n_launches_of_thread - launched == (is_first ? 2 : 1));
      CHECK(states.device() != nullptr);

      const auto state_bytes = static_cast<std::int64_t>(states.host().states().size_bytes());
      states.host();
      CHECK(device::traffic().bytes_downloaded - downloaded == state_bytes);
      CHECK(state_bytes > 0);
      CHECK(device::traffic().n_allocations == allocated);
    }
    // The counter counts.
    const std::int64_t allocated = device::traffic().n_allocations;
    const device::DeviceBuffer<float> some(10);
    CHECK(device::traffic().n_allocations == allocated + 1);
  }
}

TEST_CASE("device cache: the input of a step is not overwritten before it has been uploaded") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    const auto workload = normal_workload(6230, axes);
    const auto cache = kernels().make_cache(workload->shape(), {0, 150});
    const auto session = cache->open(workload->scale);
    for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, 0, 100);
    // The caller waits for none of these steps. Each appends a key, and a lost one would be missed at the end.
    for (std::int64_t n = 101; n < 106; ++n) {
      for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, n - 1, n);
      session->decode({workload->query(0), std::vector<std::int64_t>(3, n)});
    }
    const std::vector<std::int64_t> lengths{90, 50, 105};
    CHECK(same_bits(session->decode({workload->query(0), lengths}).host(), at_once(*workload, {0, 150}, lengths)));
  }
}

TEST_CASE("device cache: a single position waits on the host for a step, and whoever needs it earlier finds it") {
  std::vector<Axes> all(std::begin(kAxes), std::end(kAxes));
  // Rows of 26 and 14 bytes.
  all.push_back(
      {.batch = 3, .heads = 4, .kv_heads = 2, .head_dim = 13, .value_dim = 7, .n_keys = 150, .dtype = DType::BF16});
  for (const Axes& axes : all) {
    INFO(name_of(axes.dtype) << ", d " << axes.head_dim);
    const auto workload = normal_workload(6270, axes);
    const auto cache = kernels().make_cache(workload->shape(), {0, 150});
    const auto one = cache->open(workload->scale), other = cache->open(workload->scale);
    const auto is_right = [&](DecodeSession& session, const std::vector<std::int64_t>& lengths) {
      return same_bits(session.decode({workload->query(0), lengths}).host(), at_once(*workload, {0, 150}, lengths));
    };
    for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, 0, 100);
    // Two of one entry, without a step between them; a step of another session, which takes nothing more.
    append(*cache, *workload, 0, 100, 101), append(*cache, *workload, 0, 101, 102);
    append(*cache, *workload, 2, 100, 101);
    CHECK(is_right(*one, {102, 100, 101}));
    CHECK(is_right(*other, {102, 100, 101}));
    // Another key in its place, which was removed before it was uploaded; one by one, and several at once.
    append(*cache, *workload, 1, 120, 121), cache->truncate(1, 100), append(*cache, *workload, 1, 100, 101);
    append(*cache, *workload, 2, 120, 121), cache->truncate(2, 101), append(*cache, *workload, 2, 101, 104);
    CHECK(is_right(*other, {102, 101, 104}));
    CHECK(is_right(*one, {102, 101, 104}));
    // The shard on the host.
    append(*cache, *workload, 0, 102, 103);
    std::vector<std::byte> memory;
    const Shard shard = cache->shard(103, [&memory](std::size_t n) {
      memory.resize(n);
      return memory.data();
    });
    const auto copy = kernels().make_cache(cache->shape(), {0, 150});
    copy->borrow(shard, std::vector<std::int64_t>{103, 101, 103});
    CHECK(is_right(*copy->open(workload->scale), {103, 101, 103}));
    // Nothing is left of it in a cache that begins anew.
    append(*cache, *workload, 0, 103, 104);
    cache->reset(KeyRange{0, 150});
    for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, 0, 104);
    append(*cache, *workload, 0, 104, 105);
    CHECK(is_right(*one, {105, 104, 104}));
  }
}

TEST_CASE("device cache: growth is one copy of keys and of values on the device, and one new graph") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    const auto workload = normal_workload(6250, axes);
    const AttentionShape& shape = workload->shape();
    const auto cache = kernels().make_cache(shape, KeyRange{0, 150}, 64);
    const auto session = cache->open(workload->scale);
    const std::vector<std::int64_t> behind{0, 3, 20};
    const auto lengths = [&](std::int64_t n) { return std::vector<std::int64_t>{n, n - behind[1], n - behind[2]}; };
    const auto grow = [&](std::int64_t n) {
      for (std::int64_t i = 0; i < 3; ++i)
        append(*cache, *workload, i, lengths(n - 1)[static_cast<std::size_t>(i)], lengths(n)[static_cast<std::size_t>(i)]);
    };
    for (std::int64_t i = 0; i < 3; ++i) append(*cache, *workload, i, 0, lengths(60)[static_cast<std::size_t>(i)]);
    int n_grown = 0;
    for (std::int64_t n = 61; n < 70; ++n) {
      CAPTURE(n);
      const std::int64_t allocated = device::traffic().n_allocations, uploaded = device::traffic().bytes_uploaded,
                         downloaded = device::traffic().bytes_downloaded, capacity = cache->capacity();
      grow(n);
      CHECK(device::traffic().bytes_uploaded == uploaded);
      CHECK(device::traffic().bytes_downloaded == downloaded);
      const bool has_grown = cache->capacity() != capacity;
      CHECK(device::traffic().n_allocations - allocated == (has_grown ? 2 : 0));
      n_grown += has_grown ? 1 : 0;
      const std::int64_t launches = device::traffic().n_launches;
      Forest<float>& states = session->decode({workload->query(0), lengths(n)}).host();
      CHECK(device::traffic().n_launches - launches == (n == 61 || has_grown ? 2 : 0));
      CHECK(same_bits(states, at_once(*workload, {0, 150}, lengths(n))));
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
    Tensor tensor({}, view.shape, DType::F64);
    std::vector<double> elements(static_cast<std::size_t>(n_elements(view.shape)));
    double* to = elements.data();
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
      for (std::int64_t h = 0; h < view.shape[1]; ++h) {
        for (std::int64_t a = 0; a < view.shape[2]; ++a, to += view.shape[3]) load_row(view, i, h, a, to);
      }
    }
    const auto bytes = std::as_bytes(std::span(elements));
    tensor.bytes.assign(bytes.begin(), bytes.end());
    return tensor;
  };
  const auto f64 = workload_of(wide(exact->query(0)), wide(exact->k()), wide(exact->v()), lengths);
  CHECK(kernels().stored(f64->shape()).dtype == DType::F32);
  CHECK(same_bits(at_once(*f64, {0, 140}, lengths), want));
  const auto mixed = workload_of(copy_of(exact->query(0)), copy_of(exact->k()), wide(exact->v()), lengths);
  CHECK(kernels().stored(mixed->shape()).value_dtype == DType::F32);
  CHECK(same_bits(at_once(*mixed, {0, 140}, lengths), want));
  CHECK(same_bits(at_once(*packed(*exact), {0, 140}, lengths), want));
  CHECK(same_bits(at_once(*misaligned(*exact, 4), {0, 140}, lengths), want));
}

TEST_CASE("device cache: a shard comes back as it was appended, and goes into a cache for another range") {
  const Axes axes{
      .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 32, .n_keys = 256, .dtype = DType::BF16};
  const auto workload = normal_workload(6400, axes);
  const auto hop = kernels().make_cache(workload->shape(), {0, 128});
  const auto session = hop->open(workload->scale);
  for (const KeyRange capacity : {KeyRange{128, 256}, {64, 128}, {0, 128}, {64, 64}}) {
    CAPTURE(capacity.begin);
    const auto own = kernels().make_cache(workload->shape(), capacity);
    for (std::int64_t i = 0; i < 2; ++i) append(*own, *workload, i, capacity.begin, capacity.end);
    std::vector<std::byte> memory;
    const Shard shard = own->shard(capacity.size(), [&memory](std::size_t n) {
      memory.resize(n);
      return memory.data();
    });
    CHECK(copy_of(shard.k).bytes == copy_of(workload->shard(capacity).k).bytes);
    CHECK(copy_of(shard.v).bytes == copy_of(workload->shard(capacity).v).bytes);
    hop->reset(capacity);
    hop->borrow(shard, std::vector<std::int64_t>(2, capacity.size()));
    CHECK(same_bits(session->decode({workload->query(0), workload->lengths()}).host(),
                    at_once(*workload, capacity, workload->lengths())));
  }
}

TEST_CASE("device cache: what does not fit, and shapes that no kernel takes, are refused") {
  const auto workload = normal_workload(6500, {.head_dim = 16, .value_dim = 16, .n_keys = 20});
  const auto cache = kernels().make_cache(workload->shape(), {0, 5});
  append(*cache, *workload, 0, 0, 3);
  CHECK_THROWS_WITH_AS(append(*cache, *workload, 0, 3, 6),
                       "KvCache::append: batch entry 0 holds 3 of 5 positions, 3 more do not fit", std::out_of_range);
  CHECK(cache->longest() == 3);
  AttentionShape large = workload->shape();
  large.head_dim = 577;
  CHECK(kernels().refusal(large) == "d_h 577, d_v 16: more than 576");
  const auto refused = kernels().make_cache(large, {0, 5});
  CHECK_THROWS_WITH_AS(refused->open(1), "the kernels do not take d_h 577, d_v 16: more than 576", DeviceError);
  CHECK(kernels().refusal(workload->shape()) == "");
}

TEST_CASE("device cache: keys, values and queries in device memory give the states of those on the host") {
  for (const Axes& axes : kAxes) {
    INFO(name_of(axes.dtype));
    const AttentionShape shape = normal_workload(1, axes)->shape();
    std::mt19937 random(8);
    const Tensor k = normal_tensor(random, {shape.batch, shape.kv_heads, 150, shape.head_dim}, axes.dtype),
                 v = normal_tensor(random, {shape.batch, shape.kv_heads, 150, shape.value_dim}, axes.dtype),
                 q = normal_tensor(random, {shape.batch, shape.heads, shape.n_queries, shape.head_dim}, DType::F32);
    std::vector<device::DeviceBuffer<std::byte>> memory;
    const auto copied = [&](const Tensor& tensor) {
      TensorView view = tensor.view();
      memory.emplace_back(static_cast<std::int64_t>(tensor.bytes.size())).upload(std::span<const std::byte>(tensor.bytes));
      view.data = memory.back().data(), view.on_device = true;
      return view;
    };
    const TensorView views[2][3] = {{k, v, q}, {copied(k), copied(v), copied(q)}};
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(shape.batch), 150);
    Forest<float> forests[2] = {Forest<float>(0, 1), Forest<float>(0, 1)};
    for (const int place : {0, 1}) {
      const auto& [keys, values, queries] = views[place];
      const auto cache = kernels().make_cache(shape, OwnedLeaves({0, 150}), 150);
      for (std::int64_t i = 0; i < shape.batch; ++i)
        for (const auto& [begin, end] : {KeyRange{0, 149}, KeyRange{149, 150}})
          cache->append(i, keys.entry(i).positions(begin, end), values.entry(i).positions(begin, end));
      const auto session = cache->open(0.25);
      const std::int64_t downloaded = device::traffic().bytes_downloaded, uploaded = device::traffic().bytes_uploaded;
      for (int step = 0; step < 3; ++step) session->decode({queries, lengths});
      if (place == 1) CHECK(device::traffic().bytes_uploaded - uploaded == 3 * 2 * aligned(8 * shape.batch));
      CHECK(device::traffic().bytes_downloaded == downloaded);
      forests[place] = session->decode({queries, lengths}).host();
    }
    CHECK(std::ranges::equal(std::as_bytes(forests[1].states()), std::as_bytes(forests[0].states())));
  }
}

/// Rows of sub-warps and of tensor cores, latent rows, rows that bulk copies do not take, and rows that become F32.
TEST_CASE("device cache: values that are components of the keys are stored once, with the bits of values apart") {
  for (const AttentionShape& shape : {AttentionShape{DType::F32, DType::F32, 2, 2, 2, 1, 24, 13},
                                      {DType::BF16, DType::BF16, 2, 8, 2, 1, 128, 64},
                                      {DType::F16, DType::F16, 1, 16, 1, 1, 576, 512},
                                      {DType::BF16, DType::BF16, 2, 4, 1, 2, 13, 7},
                                      {DType::F64, DType::F64, 1, 2, 1, 1, 16, 16}}) {
    INFO(name_of(shape.dtype) << ", d " << shape.head_dim);
    check_values_in_keys(kernels(), shape, KeyRange{0, kOpenEnd}, 6298);
    check_values_in_keys(kernels(), shape, KeyRange{64, 1000}, 6299);
  }
}

}  // namespace tree_attn::test
