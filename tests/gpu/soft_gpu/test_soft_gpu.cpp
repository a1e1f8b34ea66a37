// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU in software: faults that it has to find. What its instructions compute, ./run test --compiled compares.
#include "tree_attn/tests/gpu/soft_gpu/machine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::soft_gpu;

namespace {

/// Memory of device 0 that begins with these values.
template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& values) : n_(values.size()), at_(*memory::allocate(0, n_ * sizeof(T))) {
    std::memcpy(memory::find(at_)->host(at_), values.data(), n_ * sizeof(T));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { memory::release(at_); }
  std::uint64_t address() const { return at_; }
  std::vector<T> values() const {
    std::vector<T> all(n_);
    std::memcpy(all.data(), memory::find(at_)->host(at_), n_ * sizeof(T));
    return all;
  }

 private:
  std::size_t n_;
  std::uint64_t at_;
};

/// Runs a kernel whose parameters are addresses. @returns what it does wrong
std::string run(const std::string& body, const std::vector<std::uint64_t>& arguments,
                LaunchShape shape = {{1, 1, 1}, {32, 1, 1}}, unsigned seed = 1) {
  std::string parameters;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    parameters += (i > 0 ? ",\n" : "") + std::string(".param .u64 p") + std::to_string(i);
  const std::string text =
      ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 dynamic[];\n.entry f(" + parameters +
      ")\n{\n.reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .b64 %d<20>;\n.reg .f32 %f<20>;\n.reg .f64 "
      "%g<9>;\n" +
      body + "\nret;\n}\n";
  try {
    const Kernel kernel = Module(text).kernel("f");
    std::vector<std::byte> bytes(kernel.parameter_bytes);
    std::copy_n(reinterpret_cast<const std::byte*>(arguments.data()), bytes.size(), bytes.begin());
    Grid(kernel, shape, bytes, 1, seed).run(4);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}
bool says(const std::string& what, const std::string& part) { return what.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("soft GPU: lanes part and meet, shuffles and votes") {
  // Lane i adds i times one, then all lanes sum their values by halves.
  Array<std::uint32_t> out(std::vector<std::uint32_t>(32));
  const std::string body =
      "mov.u32 %r1, %tid.x;\nmov.u32 %r2, 0;\nmov.u32 %r3, 0;\n"
      "again:\nsetp.ge.u32 %p1, %r3, %r1;\n@%p1 bra done;\nadd.s32 %r2, %r2, 1;\nadd.s32 %r3, %r3, 1;\nbra again;\ndone:\n"
      "shfl.sync.bfly.b32 %r4|%p2, %r2, 16, 31, -1;\nadd.s32 %r2, %r2, %r4;\nshfl.sync.bfly.b32 %r4|%p2, %r2, 8, 31, "
      "-1;\nadd.s32 %r2, %r2, %r4;\n"
      "shfl.sync.bfly.b32 %r4|%p2, %r2, 4, 31, -1;\nadd.s32 %r2, %r2, %r4;\nshfl.sync.bfly.b32 %r4|%p2, %r2, 2, 31, "
      "-1;\nadd.s32 %r2, %r2, %r4;\n"
      "shfl.sync.bfly.b32 %r4|%p2, %r2, 1, 31, -1;\nadd.s32 %r2, %r2, %r4;\n"
      "setp.lt.u32 %p3, %r1, 5;\nvote.sync.ballot.b32 %r5, %p3, -1;\nadd.s32 %r2, %r2, %r5;\n"
      "ld.param.u64 %d1, [p0];\nmul.wide.u32 %d2, %r1, 4;\nadd.s64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r2;";
  for (unsigned seed = 0; seed < 8; ++seed) {
    CHECK(run(body, {out.address()}, {{1, 1, 1}, {32, 1, 1}}, seed) == "");
    CHECK(out.values() == std::vector<std::uint32_t>(32, 31 * 16 + 31));
  }
  CHECK(says(run("mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 3;\n@%p1 ret;\nbar.warp.sync -1;", {}), "have ended"));
}

TEST_CASE("soft GPU: a store out of bounds, a misaligned one, an unknown instruction: with the line") {
  Array<float> out(std::vector<float>(32));
  const std::string body =
      "mov.u32 %r1, %tid.x;\nld.param.u64 %d1, [p0];\nmul.wide.u32 %d2, %r1, 4;\nadd.s64 %d3, %d1, %d2;\nst.global.f32 "
      "[%d3+4], %f1;";
  const std::string wrong = run(body, {out.address()});
  CHECK_MESSAGE((says(wrong, "0 bytes after the end of 128 bytes") &&
                 says(wrong, "thread 31, line 17 of the PTX: st.global.f32 [%d3+4], %f1;")),
                wrong);
  CHECK(says(run("ld.param.u64 %d1, [p0];\nst.global.f32 [%d1+2], %f1;", {out.address()}), "is no multiple of 4"));
  CHECK(says(run("ld.param.u64 %d1, [p0];\nwgmma.fence.sync.aligned;", {out.address()}),
             "line 14, 'wgmma.fence.sync.aligned;': an instruction that is not known"));
  CHECK(says(run("add.sat.s32 %r1, %r2, %r3;", {out.address()}), "'sat' is not known"));
  CHECK(says(run("mov.u32 %r1, dynamic;\nst.shared.f32 [%r1+60], %f1;\nst.shared.f32 [%r1+64], %f1;", {},
                 {{1, 1, 1}, {32, 1, 1}, 1, 64}),
             "4 bytes at 64 of 64 bytes of shared memory"));
}

namespace {

/// Thread i of n stores i in shared memory and loads what thread n - 1 - i stored.
std::string reversal(const std::string& barrier, int n = 128) {
  return "mov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nshl.b32 %r3, %r1, 2;\nadd.s32 %r4, %r2, %r3;\nst.shared.u32 [%r4], "
         "%r1;\n" +
         barrier + "\nsub.s32 %r5, " + std::to_string(4 * (n - 1)) +
         ", %r3;\nadd.s32 %r6, %r2, %r5;\nld.shared.u32 %r7, [%r6];\nld.param.u64 %d1, [p0];\ncvt.u64.u32 "
         "%d2, %r3;\nadd.s64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r7;";
}

}  // namespace

TEST_CASE("soft GPU: threads of a block meet, a barrier that is missing, and one that some threads miss") {
  std::vector<std::uint32_t> reversed;
  for (std::uint32_t i = 0; i < 128; ++i) reversed.push_back(127 - i);
  const LaunchShape shape{{1, 1, 1}, {128, 1, 1}, 1, 512};
  int n_wrong = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    Array<std::uint32_t> out(std::vector<std::uint32_t>(128));
    CHECK(run(reversal("bar.sync 0;"), {out.address()}, shape, seed) == "");
    CHECK(out.values() == reversed);
    CHECK(run(reversal(""), {out.address()}, shape, seed) == "");
    n_wrong += out.values() != reversed;
  }
  CHECK(n_wrong == 8);
  // So do as many as the instruction says.
  Array<std::uint32_t> some(std::vector<std::uint32_t>(128));
  CHECK(run(reversal("bar.sync 3, 128;"), {some.address()}, shape) == "");
  CHECK(some.values() == reversed);
  CHECK(run(reversal("shr.u32 %r8, %r1, 6;\nbar.sync %r8, 64;"), {some.address()}, shape) == "");
  CHECK(some.values() != reversed);
  CHECK(says(run(reversal("bar.sync 3, 48;"), {some.address()}, shape), "a barrier of 48 threads of 128"));
  // Lanes of a warp are not bound to each other either.
  reversed.erase(reversed.begin(), reversed.begin() + 96);
  n_wrong = 0;
  for (unsigned seed = 0; seed < 32; ++seed) {
    Array<std::uint32_t> out(std::vector<std::uint32_t>(32));
    CHECK(run(reversal("bar.warp.sync -1;", 32), {out.address()}, {{1, 1, 1}, {32, 1, 1}, 1, 128}, seed) == "");
    CHECK(out.values() == reversed);
    CHECK(run(reversal("", 32), {out.address()}, {{1, 1, 1}, {32, 1, 1}, 1, 128}, seed) == "");
    n_wrong += out.values() != reversed;
  }
  CHECK(n_wrong > 0);
  Array<std::uint32_t> out(std::vector<std::uint32_t>(128));
  const std::string wrong =
      run(reversal("setp.lt.u32 %p1, %r1, 96;\n@!%p1 bra past;\nbar.sync 0;\npast:"), {out.address()}, shape);
  CHECK_MESSAGE((says(wrong, "no thread can go on") && says(wrong, "96 threads at line 20 of the PTX: bar.sync 0;")), wrong);
}

namespace {

/// Thread 0 copies 128 bytes to shared memory, all wait for them, thread i gives the i-th word back.
std::string bulk_copy(const std::string& before, const std::string& wait) {
  return "mov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nadd.s32 %r3, %r2, 128;\nld.param.u64 %d1, [p0];\nld.param.u64 %d2, "
         "[p1];\nshl.b32 %r4, %r1, 2;\nadd.s32 %r5, %r2, %r4;\nst.shared.u32 [%r5], %r1;\n"
         "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra wait;\nmbarrier.init.shared::cta.b64 [%r3], 1;\n" +
         before +
         "\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], "
         "128;\ncp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, "
         "[%r3];\nwait:\nbar.sync 0;\n" +
         wait + "\nld.shared.u32 %r7, [%r5];\ncvt.u64.u32 %d3, %r4;\nadd.s64 %d4, %d2, %d3;\nst.global.u32 [%d4], %r7;";
}

}  // namespace

TEST_CASE("soft GPU: bulk copies arrive when their mbarrier says so, and take a fence before") {
  const std::string fence = "fence.mbarrier_init.release.cluster;\n", proxy = "fence.proxy.async.shared::cta;\n";
  const std::string wait =
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@%p2 bra ready;\nbra again;\nready:";
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < 32; ++i) words.push_back(1000 + i);
  const LaunchShape shape{{1, 1, 1}, {32, 1, 1}, 1, 256};
  Array<std::uint32_t> in(words), out(std::vector<std::uint32_t>(32));
  int n_early = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    // The words that other lanes have stored are fenced by them: here by all lanes, before the branch.
    const auto fenced = [&](std::string text) { return text.replace(text.find("setp.ne.u32"), 0, proxy); };
    CHECK(run(fenced(bulk_copy(fence + proxy, wait)), {in.address(), out.address()}, shape, seed) == "");
    CHECK(out.values() == words);
    const std::string early = run(fenced(bulk_copy(fence + proxy, "")), {in.address(), out.address()}, shape, seed);
    n_early += !early.empty() || out.values() != words;
    CHECK(says(run(bulk_copy(fence + proxy, wait), {in.address(), out.address()}, shape, seed),
               "without a fence of the async proxy"));
    CHECK(says(run(fenced(bulk_copy(fence, wait)), {in.address(), out.address()}, shape, seed),
               "without a fence of the async proxy"));
  }
  CHECK(n_early > 4);
  const std::string never = run("mov.u32 %r3, dynamic;\nmbarrier.init.shared::cta.b64 [%r3], 32;\n" + wait, {}, shape);
  CHECK_MESSAGE((says(never, "no thread can go on") && says(never, "mbarrier.try_wait")), never);
  CHECK(says(run("mov.u32 %r3, dynamic;\n" + wait, {}, shape), "no mbarrier has been initialised there"));
}

TEST_CASE("soft GPU: blocks of a cluster reach each other's shared memory, and count in global memory") {
  // Each block of 4 stores its rank, and reads that of the next one.
  Array<std::uint32_t> out(std::vector<std::uint32_t>(8)), counter({0});
  const auto body = [](const std::string& last) {
    return "mov.u32 %r1, %cluster_ctarank;\nmov.u32 %r2, dynamic;\nst.shared.u32 [%r2], "
           "%r1;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
           "add.s32 %r3, %r1, 1;\nand.b32 %r3, %r3, 3;\ncvt.u64.u32 %d1, %r2;\ncvta.shared.u64 %d2, %d1;\nmapa.u64 %d3, "
           "%d2, %r3;\nld.u32 %r4, [%d3];\n" +
           last +
           "ld.param.u64 %d4, [p0];\nmov.u32 %r5, %ctaid.x;\nmul.wide.u32 %d5, %r5, 4;\nadd.s64 %d6, %d4, "
           "%d5;\nst.global.u32 [%d6], %r4;\nld.param.u64 %d7, [p1];\natom.acq_rel.gpu.global.inc.u32 %r6, [%d7], 1000;";
  };
  const LaunchShape shape{{8, 1, 1}, {1, 1, 1}, 4, 16};
  const std::string end = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
  bool has_ended = false;
  for (unsigned seed = 0; seed < 16; ++seed) {
    CHECK(run(body(end), {out.address(), counter.address()}, shape, seed) == "");
    CHECK(out.values() == std::vector<std::uint32_t>{1, 2, 3, 0, 1, 2, 3, 0});
    // Without the last barrier a block may end before another one has read.
    has_ended =
        has_ended || says(run(body(""), {out.address(), counter.address()}, shape, seed), "of the cluster, which has ended");
  }
  CHECK(counter.values()[0] >= 128);
  CHECK(has_ended);
}
