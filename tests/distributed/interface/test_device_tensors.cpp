// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensors in device memory, in C++ and in C: the bits of tensors on the host, and what is copied between the two.
#include "distributed/interface/attention.hpp"
#include "distributed/interface/tree_attn.h"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "gpu/emulator/streams.hpp"
#include "gpu/engine/listed_params.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test::device_tensors_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kBatch = 2, kKeys = 200, kPrefill = 190, kDim = 16, kValueDim = 8;
constexpr float kInf = std::numeric_limits<float>::infinity();

AttentionShape shape_of_type(DType dtype) {
  return {.dtype = dtype,
          .value_dtype = dtype,
          .batch = kBatch,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = kDim,
          .value_dim = kValueDim};
}

/// Rows that a program appends, and its queries.
template <class T>
struct Inputs {
  T q, k, v;
};
Inputs<Tensor> inputs(DType dtype) {
  std::mt19937 random(5);
  Tensor q = normal_tensor(random, {kBatch, 4, 2, kDim}, dtype), k = normal_tensor(random, {kBatch, 2, kKeys, kDim}, dtype);
  return {std::move(q), std::move(k), normal_tensor(random, {kBatch, 2, kKeys, kValueDim}, dtype)};
}

template <class T>
void append(Attention& attention, const Inputs<T>& in, std::int64_t begin, std::int64_t end) {
  const TensorView k = in.k.view(), v = in.v.view();
  for (std::int64_t entry = 0; entry < kBatch; ++entry)
    attention.append(entry, k.entry(entry).positions(begin, end), v.entry(entry).positions(begin, end));
}

/// Counts the copies of all ranks while each of them calls `steps`. @returns on rank 0; nothing on others
Copied copied_by_all(const ThreadRanks& ranks, const std::function<void()>& steps) {
  Copied copied;
  const auto together = [&] {
    ranks.barrier();
    steps();
    ranks.barrier();
  };
  ranks.barrier();
  ranks.rank() == 0 ? void(copied = copied_by(together)) : together();
  ranks.barrier();
  return copied;
}

}  // namespace

TEST_CASE("device tensors: a step has the bits of the host, and nothing but lengths and lists is copied") {
  for (const DType dtype : kDTypes) {
    for (const bool is_dealt : {false, true}) {
      INFO(name_of(dtype) << (is_dealt ? ", dealt" : ", contiguous"));
      AttentionSetup setup{.backend = "emulated"};
      const bool is_quantised = dtype == DType::F8_E4M3;
      if (is_quantised) setup.scales = {{0.3f, 1e-3f, 0x1p-100f, 7}, {1.1f, 0.01f, 2, 1}};
      if (!is_dealt) setup.ranges = {{0, kOpenEnd}};
      Attention host(shape_of_type(dtype), setup), device(shape_of_type(dtype), setup);
      Inputs<Tensor> in = inputs(is_quantised ? DType::BF16 : dtype);
      if (is_quantised) in.k.set(1, 0, 5, 2, 1e30f);  // too large for F32, divided by 2^-100
      const Inputs<DeviceTensor> there{DeviceTensor(in.q), DeviceTensor(in.k), DeviceTensor(in.v)};
      append(host, in, 0, kPrefill);
      Copied copied = copied_by([&] { append(device, there, 0, kPrefill); });
      CHECK((copied.up == 0 && copied.down == 0));
      const std::int64_t stored_bytes =
          kernel_cores_of(dtype) == KernelCores::None ? 4 : static_cast<std::int64_t>(bytes_of(dtype));
      const auto row_of = [stored_bytes](std::int64_t d) { return (d * stored_bytes + 15) / 16 * 16; };
      // From the third step on graphs are launched; before the last, one position of each entry comes from the host.
      for (std::int64_t n = kPrefill; n < kKeys; ++n) {
        OutputView output;
        copied = copied_by([&] { output = device.step(there.q.view(), {.window = n == 195 ? 70 : 0}); });
        // A list of leaves is new in the first steps, with a new leaf and with a window: a few integers.
        const std::int64_t appended = n == kKeys - 1 ? kBatch * 2 * (row_of(kDim) + row_of(kValueDim)) : 0,
                           scales = is_quantised && n == kPrefill ? kBatch * 4 * 2 * kValueDim * 4 : 0,
                           lists = copied.up - appended - scales - kBatch * (8 + 8);
        CHECK(lists >= 0);
        CHECK(lists <= (is_dealt || n == 195 ? 7 * kBatch * static_cast<std::int64_t>(sizeof(LeafList)) / 2 : 0));
        CHECK(copied.down == 0);
        CHECK(output.on_device);
        CHECK(same_bits(output.copy(), host.step(in.q, {.window = n == 195 ? 70 : 0}).copy()));
        append(host, in, n, n + 1);
        copied = copied_by([&] { n == kKeys - 2 ? append(device, in, n, n + 1) : append(device, there, n, n + 1); });
        CHECK((copied.up == 0 && copied.down == 0));
      }
      // Learned sinks, which are copied once, and others; and none again.
      for (const std::vector<float>& sink : {std::vector<float>{0.5f, -3, 40, -INFINITY}, {}, {2, 2, 2, 2}, {2, 2, 2, 2}}) {
        CHECK(same_bits(device.step(there.q.view(), {}, sink).copy(), host.step(in.q, {}, sink).copy()));
        const auto list = static_cast<std::int64_t>(sizeof(LeafList));
        CHECK(copied_by([&] { device.step(there.q.view(), {}, sink); }).up == kBatch * (8 + 8 + (is_dealt ? list : 0)));
      }
      // And back, from step to step.
      CHECK(same_bits(device.step(in.q).copy(), host.step(in.q).copy()));
      device.truncate(0, 100), host.truncate(0, 100);
      CHECK(same_bits(device.step(there.q.view()).copy(), host.step(in.q).copy()));
    }
  }
}

TEST_CASE("device tensors: over ranks the states of the messages are copied too, and no more") {
  const emulated::SettingsScope defaults({});
  const Inputs<Tensor> in = inputs(DType::F32);
  constexpr int kSteps = 3;
  constexpr std::int64_t kLists = kBatch * (8 + 8 + static_cast<std::int64_t>(sizeof(LeafList)));
  for (const char* const algorithm : {"two-level", "paper", "ring-state"}) {
    for (const int p : {1, 3}) {
      INFO(algorithm << " on " << p << " ranks");
      std::vector<DecodeOutput> host(static_cast<std::size_t>(p)), device(host);
      std::atomic<std::int64_t> n_sent = 0;
      Copied copied;
      const ThreadBody body = [&](const ThreadRanks& ranks, ThreadTransport&) {
        const auto rank = static_cast<std::size_t>(ranks.rank());
        Attention attention(ranks, shape_of_type(DType::F32), {.algorithm = algorithm, .backend = "emulated"});
        const Inputs<DeviceTensor> there{DeviceTensor(in.q), DeviceTensor(in.k), DeviceTensor(in.v)};
        append(attention, there, 0, kKeys);
        host[rank] = attention.step(in.q).copy();
        attention.transport().clear_traffic();
        const Copied mine = copied_by_all(ranks, [&] {
          for (int i = 0; i + 1 < kSteps; ++i) attention.step(there.q.view());
          attention.start(there.q.view());
          CHECK(attention.progress());
          device[rank] = attention.finish().copy();
          n_sent += attention.transport().traffic().bytes;
        });
        if (rank == 0) copied = mine;
      };
      run_threads(Topology::pretend(p, p), kTimeout, body);
      for (std::size_t rank = 0; rank < host.size(); ++rank) CHECK(same_bits(device[rank], host[rank]));
      CHECK((p == 1) == (n_sent == 0));
      CHECK(copied.down == n_sent);
      CHECK(copied.up == n_sent + kSteps * p * kLists);
    }
  }
}

TEST_CASE("device tensors: over ranks with contiguous ranges every step has the bits of the host, also after a new plan") {
  const emulated::SettingsScope defaults({});
  const Inputs<Tensor> in = inputs(DType::F32);
  // The plan is another one whenever the closed end of the open range has moved.
  const std::vector<KeyRange> ranges[] = {{{0, 64}, {64, kOpenEnd}}, {{0, 64}, {64, 64}, {64, 128}, {128, kOpenEnd}}};
  for (const char* const algorithm : {"two-level", "leaders", "gather", "ring-state", "paper", "packed", "fused"}) {
    for (const std::vector<KeyRange>& cut : ranges) {
      INFO(algorithm << " on " << cut.size() << " ranks");
      std::atomic<int> n_wrong = 0;
      run_threads(Topology::pretend(static_cast<int>(cut.size()), 2), kTimeout,
                  ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                    const AttentionSetup setup{.algorithm = algorithm, .backend = "emulated", .ranges = cut};
                    Attention attention(ranks, shape_of_type(DType::F32), setup);
                    const DeviceTensor q(in.q);
                    for (std::int64_t n = 0; n < kKeys; n += 25) {
                      append(attention, in, n, n + 25);
                      // Learned sinks in two steps of four, others in each.
                      const auto logit = static_cast<float>(n) / 50 - 2;
                      std::vector<float> sink{logit, 3, -INFINITY, 50};
                      if (n % 100 < 50) sink.clear();
                      const DecodeOutput device = attention.step(q.view(), {}, sink).copy();
                      n_wrong += !same_bits(device, attention.step(in.q, {}, sink).copy());
                    }
                  }));
      CHECK(n_wrong == 0);
    }
  }
}

TEST_CASE("device tensors: o and lse of every type are merged on the device, with the bits of the host") {
  const emulated::SettingsScope defaults({});
  std::mt19937 random(3);
  for (const DType dtype : kDTypes) {
    for (const int p : {1, 2, 4}) {
      for (const OutputPart part : {OutputPart::kAll, OutputPart::kHeads}) {
        INFO(name_of(dtype) << " on " << p << " ranks" << (part == OutputPart::kAll ? "" : ", by heads"));
        const Shape shape{2, 4, 3, 5};
        std::vector<Tensor> o, lse;
        for (int rank = 0; rank < p; ++rank) {
          o.push_back(normal_tensor(random, shape, dtype)),
              lse.push_back(normal_tensor(random, {2, 4, 3, 1}, DType::F32, 30));
          // A row of no keys is not read.
          lse.back().set(0, 1, 2, 0, -kInf), o.back().set(0, 1, 2, 4, std::numeric_limits<float>::quiet_NaN());
          lse.back().set(1, 3, 0, 0, rank == 1 ? kInf : -kInf);
        }
        std::atomic<std::int64_t> n_sent = 0;
        Copied copied;
        // With two nodes of two ranks the owners of heads are permuted.
        const Topology topology = Topology::pretend(p, p == 4 ? 2 : p);
        const ThreadBody body = [&](const ThreadRanks& ranks, ThreadTransport& transport) {
          const auto rank = static_cast<std::size_t>(ranks.rank());
          Combiner combiner(transport, shape, part, {}, emulated::make_blocks);
          // The same elements with the heads last but one, as other libraries have them.
          Tensor turned(std::vector<float>(static_cast<std::size_t>(n_elements(shape))), {2, 3, 4, 5}, dtype);
          const auto width = 5 * bytes_of(dtype);
          for (std::int64_t i = 0; i < 24; ++i)
            std::memcpy(turned.bytes.data() + static_cast<std::size_t>((i / 12 * 3 + i % 3) * 4 + i / 3 % 4) * width,
                        o[rank].bytes.data() + static_cast<std::size_t>(i) * width, width);
          const DeviceTensor there(turned), lse_there(lse[rank]);
          TensorView view = there.view();
          view.shape = shape, view.stride = {60, 5, 20};
          for (const LseForm form : {LseForm::kNaturalOrInfEmpty, LseForm::kBaseTwo}) {
            const DecodeOutput expected = combiner.combine(o[rank], lse[rank], form).copy();
            transport.clear_traffic();
            const Copied each = copied_by_all(ranks, [&] {
              for (int i = 0; i < 3; ++i) {
                const OutputView output = combiner.combine(view, lse_there.view(), form);
                CHECK(output.on_device);
                CHECK(same_bits(output.copy(), expected));
              }
              n_sent += transport.traffic().bytes;
            });
            if (rank == 0) copied.up += each.up, copied.down += each.down;
          }
        };
        run_threads(topology, kTimeout, body);
        CHECK((p == 1) == (n_sent == 0));
        CHECK((copied.up == n_sent && copied.down == n_sent));
      }
    }
  }
}

TEST_CASE("device tensors: queries that one rank alone has on a device are refused on all") {
  const Inputs<Tensor> in = inputs(DType::F32);
  for (const bool compares : {false, true}) {
    run_threads(Topology::pretend(2, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
      Attention attention(ranks, shape_of_type(DType::F32), {.backend = "emulated", .compares_lengths = compares});
      const DeviceTensor q(in.q);
      const std::string refusal =
          message([&] { attention.step(ranks.rank() == 1 ? q.view() : in.q.view(), {.window = 8}); });
      CHECK(refusal == "Decoder::step: ranks 0 and 1 differ in the memory of queries (host and device)");
    });
  }
}

TEST_CASE("device tensors: what lies where it cannot be used is refused in one line") {
  const Inputs<Tensor> in = inputs(DType::F32);
  const DeviceTensor q(in.q), k(in.k), v(in.v);
  const TensorView key = k.view().entry(0).positions(0, 9), value = v.view().entry(0).positions(0, 9);
  Attention cpu(shape_of_type(DType::F32));
  CHECK(message([&] { cpu.append(0, key, value); }) == "KvCache::append: k is in memory of a device");
  CHECK(message([&] { cpu.step(q.view()); }) == "DecodeSession::decode: q is in memory of a device");
  CHECK(message([&] { cpu.combine(q.view(), in.q); }).starts_with("Combiner::combine: o is ["));
  const Tensor lse(std::vector<float>(16), {kBatch, 4, 2, 1});
  CHECK(message([&] { cpu.combine(q.view(), lse); }) == "Combiner::combine: o is in memory of a device");
  CHECK(cpu.lengths()[0] == 0);

  Attention emulated(shape_of_type(DType::F32), {.backend = "emulated"});
  emulated.append(0, key, in.v.view().entry(0).positions(0, 9));
  CHECK(
      message([&] { emulated.combine(q.view(), lse); }) ==
      "Combiner::combine: o and lse have to be in the same memory, and for the transport threads in that of the host or its "
      "device");
  TensorView foreign = in.q.view();
  foreign.on_device = true;
  CHECK(message([&] { emulated.step(foreign); }).find("memory that lies in no buffer of the device") != std::string::npos);
  CHECK(message([&] { emulated.start(foreign); }).find("memory that lies in no buffer of the device") != std::string::npos);
  CHECK(message([&] { emulated.finish(); }) == "Decoder::finish: no step has been started");
  Attention ring(shape_of_type(DType::F32), {.algorithm = "ring", .backend = "emulated", .ranges = {{0, 256}}});
  CHECK(message([&] { ring.step(q.view()); }) ==
        "Decoder::step: q is in memory of a device; ring and one-shot take it in memory of the host alone");
}

TEST_CASE("device tensors: in the order of a stream of the program calls do not wait, and the bits are those of the host") {
  const emulated::SettingsScope defaults({});
  const Inputs<Tensor> in = inputs(DType::F32);
  const std::array<std::int64_t, 4> axes{kBatch, 4, 2, kValueDim};
  const Tensor none(std::vector<float>(kBatch * 4 * 2 * kValueDim, NAN), axes),
      no_q(std::vector<float>(256, NAN), in.q.shape), lse(std::vector<float>(kBatch * 4 * 2, 1), {kBatch, 4, 2, 1});
  run_threads(Topology::pretend(1, 1), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    const Inputs<DeviceTensor> there{DeviceTensor(in.q), DeviceTensor(in.k), DeviceTensor(in.v)};
    Attention host(ranks, shape_of_type(DType::F32), {.backend = "emulated"}),
        device(ranks, shape_of_type(DType::F32), {.backend = "emulated"});
    append(host, in, 0, kPrefill), append(device, there, 0, kPrefill);
    const auto program = emulated::make_blocks(0, 1);
    DeviceStream& stream = program->stream();
    device.use_stream(stream.handle());
    std::vector<std::int64_t> waits;
    // Queues the copy of an input on the stream of the program, a call that reads it, and a copy of its output.
    const auto check = [&](const Tensor& nothing, const DeviceTensor& input, const auto& call, const DecodeOutput& want) {
      const DeviceTensor read(nothing), result(none);
      program->convert(input.view(), read.view());
      const std::int64_t n_waits = emulated::runtime::waits_of_thread();
      const OutputView output = call(read.view());
      waits.push_back(emulated::runtime::waits_of_thread() - n_waits);
      CHECK(output.on_device);
      TensorView from = TensorView::dense(output.out.data(), DType::F32, axes);
      from.on_device = true;
      program->convert(from, result.view());
      CHECK(
          std::isnan(reinterpret_cast<const float*>(result.view().data)[0]));  // in the emulator nothing runs before a wait
      stream.wait();
      CHECK(result.bytes() == Tensor(want.out, axes).bytes);
    };
    const DeviceTensor o(Tensor(std::vector<float>(none.bytes.size() / sizeof(float), 3), axes)), of_o(lse);
    for (std::int64_t n = kPrefill; n < kPrefill + 6; ++n) {
      const DecodeOutput want = host.step(in.q).copy();
      check(
          no_q, there.q, [&](const TensorView& q) { return device.step(q); }, want);
      append(host, in, n, n + 1), append(device, there, n, n + 1);
      check(
          none, o, [&](const TensorView& of) { return device.combine(of, of_o.view()); },
          host.combine(Tensor(std::vector<float>(none.bytes.size() / sizeof(float), 3), axes), lse).copy());
    }
    CHECK(waits[0] <= 1);  // the first step takes memory
    waits[0] = 0;
    CHECK(waits == std::vector<std::int64_t>(12, 0));
    // Calls are refused while the stream is captured, also the first in its order: the second repeat() of a graph captures.
    std::vector<std::string> lines;
    device.start(there.q.view());
    stream.choose(1);
    for (int i = 0; i < 2; ++i)
      stream.repeat([&, i] {
        if (i == 0) return;
        lines = {message([&] { device.step(there.q.view()); }), message([&] { device.finish(); }),
                 message([&] { device.use_stream({}); }), message([&] { host.use_stream(stream.handle()); })};
      });
    const std::string why =
        ": the stream is being captured, and a graph would not read the lengths of later calls: call it outside of the "
        "graph";
    CHECK(lines == std::vector<std::string>{"Attention::step" + why, "Attention::finish" + why,
                                            "Attention::use_stream" + why, "Attention::use_stream" + why});
    CHECK((device.stream() == stream.handle() && !host.stream()));
    const OutputView finished = device.finish();
    stream.wait();
    CHECK(same_bits(finished.copy(), host.step(in.q).copy()));
    // And back.
    device.use_stream({});
    CHECK(same_bits(device.step(there.q.view()).copy(), host.step(in.q).copy()));
    Attention cpu(shape_of_type(DType::F32));
    CHECK(message([&] { cpu.use_stream(nullptr); }) == "Attention::use_stream: the backend cpu has no streams");
    cpu.use_stream({});
  });
}

TEST_CASE("device tensors: a stream of another device is refused at once, and the object goes on") {
  emulated::Settings settings;
  settings.n_devices = 2;
  const emulated::SettingsScope devices(settings);
  const Inputs<Tensor> in = inputs(DType::F32);
  Attention attention(shape_of_type(DType::F32), {.backend = "emulated"});
  append(attention, in, 0, kPrefill);
  const DecodeOutput want = attention.step(in.q).copy();
  const Backend& backend = find_backend("emulated");
  backend.use_gpu(1);
  const auto other = emulated::make_blocks(0, 1);
  CHECK(message<DeviceError>([&] {
          attention.use_stream(other->stream().handle());
        }).find("an event of device 0 on a stream of device 1") != std::string::npos);
  backend.use_gpu(0);
  CHECK(!attention.stream());
  CHECK(same_bits(attention.step(in.q).copy(), want));
}

TEST_CASE("device tensors: over ranks too, in the order of a stream, on a device that is current in the calls alone") {
  emulated::Settings settings;
  settings.n_devices = 3;
  const emulated::SettingsScope devices(settings);
  const Inputs<Tensor> in = inputs(DType::F32);
  for (const char* const algorithm : {"two-level", "gather"}) {
    run_threads(Topology::pretend(2, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
      const Backend& backend = find_backend("emulated");
      backend.use_gpu(ranks.rank());
      Attention host(ranks, shape_of_type(DType::F32), {.algorithm = algorithm, .backend = "emulated"}),
          device(ranks, shape_of_type(DType::F32), {.algorithm = algorithm, .backend = "emulated"});
      const Inputs<DeviceTensor> there{DeviceTensor(in.q), DeviceTensor(in.k), DeviceTensor(in.v)};
      const auto program = emulated::make_blocks(0, 1);
      device.use_stream(program->stream().handle());
      backend.use_gpu(2);
      append(host, in, 0, kPrefill), append(device, there, 0, kPrefill);
      for (std::int64_t n = kPrefill; n < kPrefill + 4; ++n) {
        const DecodeOutput want = host.step(in.q).copy();
        const OutputView output = device.step(there.q.view());
        program->stream().wait();
        CHECK(same_bits(output.copy(), want));
        append(host, in, n, n + 1), append(device, there, n, n + 1);
        CHECK(emulated::current_device() == 2);
      }
      backend.use_gpu(ranks.rank());
    });
  }
}

namespace {

/// A DLPack tensor in memory of the emulator, or of whatever device it says.
struct Managed {
  DeviceTensor memory;
  std::vector<std::int64_t> shape;
  DLManagedTensor tensor{};

  Managed(const Tensor& from, std::vector<std::int64_t> axes, DLDevice device = {kDLExtDev, 0})
      : memory(from), shape(std::move(axes)) {
    const bool is_bf16 = from.dtype == DType::BF16;
    tensor.dl_tensor = {
        const_cast<std::byte*>(memory.view().data),
        device,
        static_cast<int>(shape.size()),
        {static_cast<std::uint8_t>(is_bf16 ? kDLBfloat : kDLFloat), static_cast<std::uint8_t>(is_bf16 ? 16 : 32), 1},
        shape.data(),
        nullptr,
        0};
  }
  operator const DLManagedTensor*() const { return &tensor; }
};

}  // namespace

TEST_CASE("device tensors: in C, of the device of the backend, and refused from any other") {
  const Inputs<Tensor> in = inputs(DType::F32);
  ta_setup setup{};
  setup.size = sizeof setup;
  setup.batch = kBatch, setup.heads = 4, setup.kv_heads = 2, setup.most_queries = 2, setup.head_dim = kDim;
  setup.value_dim = kValueDim, setup.backend = "emulated";
  ta_attention* attention = nullptr;
  REQUIRE(ta_open(&setup, &attention) == TA_OK);
  Attention expected(shape_of_type(DType::F32), {.backend = "emulated"});
  append(expected, in, 0, kKeys);
  std::mt19937 random(5);
  const Tensor zeros(std::vector<float>(kBatch * 4 * 2 * kValueDim), {kBatch, 4, 2, kValueDim}, DType::BF16),
      rows(std::vector<float>(kBatch * 4 * 2), {kBatch, 4, 2, 1});
  const Managed q(in.q, {kBatch, 4, 2, kDim}), out(zeros, {kBatch, 4, 2, kValueDim}), lse(rows, {kBatch, 4, 2});
  for (std::int64_t entry = 0; entry < kBatch; ++entry) {
    const Managed k(copy_of(in.k.view().entry(entry)), {2, kKeys, kDim}),
        v(copy_of(in.v.view().entry(entry)), {2, kKeys, kValueDim});
    const Copied copied = copied_by([&] { REQUIRE(ta_append(attention, entry, kKeys, k, v) == TA_OK); });
    CHECK((copied.up == 0 && copied.down == 0));
    // They have been read; a download would wait for that.
    for (const Managed* each : {&k, &v})
      std::memset(each->tensor.dl_tensor.data, 0xFF,
                  sizeof(float) * static_cast<std::size_t>(n_elements(each->memory.view().shape)));
  }
  CHECK(copied_by([&] { REQUIRE(ta_step(attention, q, nullptr, out, lse) == TA_OK); }).down == 0);
  const DecodeOutput whole = expected.step(in.q).copy();
  CHECK(out.memory.bytes() == Tensor(whole.out, zeros.shape, DType::BF16).bytes);
  CHECK(lse.memory.bytes() == Tensor(whole.lse, rows.shape).bytes);

  // In the order of a stream, which the program waits for.
  const auto program = emulated::make_blocks(0, 1);
  const Managed in_order(zeros, {kBatch, 4, 2, kValueDim});
  REQUIRE(ta_use_stream(attention, program->stream().handle(), 0) == TA_OK);
  REQUIRE(ta_step(attention, q, nullptr, in_order, nullptr) == TA_OK);
  program->stream().wait();
  CHECK(in_order.memory.bytes() == out.memory.bytes());
  REQUIRE(ta_use_stream(attention, nullptr, 1) == TA_OK);

  // The same rows, merged with nothing.
  const Managed o(Tensor(whole.out, zeros.shape), {kBatch, 4, 2, kValueDim}),
      of_o(Tensor(whole.lse, rows.shape), {kBatch, 4, 2}), merged(zeros, {kBatch, 4, 2, kValueDim}),
      of_merged(rows, {kBatch, 4, 2});
  const Copied copied =
      copied_by([&] { REQUIRE(ta_combine(attention, o, of_o, TA_NATURAL, 1, merged, of_merged) == TA_OK); });
  CHECK((copied.up == 0 && copied.down == 0));
  const DecodeOutput again = expected.combine(Tensor(whole.out, zeros.shape), Tensor(whole.lse, rows.shape)).copy();
  CHECK(merged.memory.bytes() == Tensor(again.out, zeros.shape, DType::BF16).bytes);
  CHECK(of_merged.memory.bytes() == Tensor(again.lse, rows.shape).bytes);

  const auto refused = [&](const DLManagedTensor* query, const DLManagedTensor* to) {
    CHECK(ta_step(attention, query, nullptr, to, nullptr) == TA_INVALID);
    return std::string(ta_error());
  };
  const Managed cuda(in.q, q.shape, {kDLCUDA, 0}), other(in.q, q.shape, {kDLExtDev, 1}), here(in.q, q.shape, {kDLCPU, 0}),
      out_here(zeros, out.shape, {kDLCPU, 0});
  CHECK(refused(cuda, out) ==
        "q is on device type 2, index 0; tensors in memory of the host or on device type 12, index 0 are taken");
  CHECK(refused(other, out).starts_with("q is on device type 12, index 1;"));
  CHECK(refused(here, out) == "q is in memory of the host, and out is not");
  // A step that was begun ends in the memory of its q, and goes on after a refusal.
  for (const auto& [query, to, other_to] : {std::tuple{&q, &out, &out_here}, {&here, &out_here, &out}}) {
    REQUIRE(ta_start(attention, *query, nullptr) == TA_OK);
    CHECK(ta_finish(attention, *other_to, nullptr) == TA_INVALID);
    CHECK(std::string(ta_error()).ends_with(query == &q ? "a device, and out is not" : "the host, and out is not"));
    REQUIRE(ta_finish(attention, *to, nullptr) == TA_OK);
    CHECK(to->memory.bytes() == out.memory.bytes());
  }
  Managed odd(in.q, q.shape);
  odd.tensor.dl_tensor.byte_offset = 2;
  CHECK(refused(odd, out) == "q is on a device and begins inside an element");
  CHECK(ta_attend(q, q, q, 0, nullptr, out, nullptr, 0) == TA_INVALID);
  CHECK(std::string(ta_error()) == "q is on device type 12, index 0; tensors in memory of the host are taken");
  ta_close(attention);
}

}  // namespace tree_attn::test::device_tensors_test
