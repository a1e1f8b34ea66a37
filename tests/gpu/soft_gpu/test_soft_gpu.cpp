// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU in software: instructions of every kind against known values, and faults that it has to find.
#include "tree_attn/tests/gpu/soft_gpu/machine.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
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
    std::memcpy(bytes.data(), arguments.data(), bytes.size());
    Grid(kernel, shape, bytes, 1, seed).run(4);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}
bool says(const std::string& what, const std::string& part) { return what.find(part) != std::string::npos; }

/// An instruction of a, b, c, all of 64 bits of which it takes what it needs, gives d.
std::uint64_t result(const std::string& instruction, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
  Array<std::uint64_t> in({a, b, c}), out({0});
  const std::string body =
      "ld.param.u64 %d10, [p0];\nld.global.u64 %d1, [%d10];\nld.global.u64 %d2, [%d10+8];\nld.global.u64 %d3, [%d10+16];\n"
      "cvt.u32.u64 %r1, %d1;\ncvt.u32.u64 %r2, %d2;\ncvt.u32.u64 %r3, %d3;\ncvt.u16.u32 %h1, %r1;\n"
      "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\nmov.b64 %g1, %d1;\nmov.b64 %g2, %d2;\nmov.b64 %d0, 0;\n" +
      instruction + "\nld.param.u64 %d11, [p1];\nst.global.u64 [%d11], %d0;";
  const std::string wrong = run(body, {in.address(), out.address()}, {{1, 1, 1}, {1, 1, 1}});
  REQUIRE_MESSAGE(wrong.empty(), wrong);
  return out.values()[0];
}
std::uint64_t word(const std::string& instruction, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
  return result(instruction + "\ncvt.u64.u32 %d0, %r0;", a, b, c);
}
float number(const std::string& instruction, float a, float b = 0, float c = 0) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  return std::bit_cast<float>(
      static_cast<std::uint32_t>(word(instruction + "\nmov.b32 %r0, %f0;", bits(a), bits(b), bits(c))));
}
bool holds(const std::string& comparison, float a, float b) {
  return number(comparison + "\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", a, b) == 1;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kMinusOne = 0xFFFFFFFF;

}  // namespace

TEST_CASE("soft GPU: whole numbers") {
  CHECK(word("add.s32 %r0, %r1, %r2;", 0x7FFFFFFF, 1) == 0x80000000);
  CHECK(word("sub.s32 %r0, %r1, %r2;", 3, 5) == 0xFFFFFFFE);
  CHECK(word("mul.lo.s32 %r0, %r1, %r2;", kMinusOne, 7) == 0xFFFFFFF9);
  CHECK(word("mul.hi.s32 %r0, %r1, %r2;", kMinusOne, 7) == kMinusOne);
  CHECK(result("mul.wide.s32 %d0, %r1, %r2;", kMinusOne, 7) == ~std::uint64_t{6});
  CHECK(result("mul.wide.u32 %d0, %r1, %r2;", kMinusOne, 7) == 7 * std::uint64_t{kMinusOne});
  CHECK(word("mad.lo.s32 %r0, %r1, %r2, %r3;", 5, 6, 7) == 37);
  CHECK(word("div.s32 %r0, %r1, %r2;", 0 - std::uint64_t{7}, 2) == 0xFFFFFFFD);
  CHECK(word("rem.s32 %r0, %r1, %r2;", 0 - std::uint64_t{7}, 2) == kMinusOne);
  CHECK(result("div.u64 %d0, %d1, %d2;", std::uint64_t{1} << 40, 3) == (std::uint64_t{1} << 40) / 3);
  CHECK(word("shr.s32 %r0, %r1, %r2;", 0x80000000, 40) == kMinusOne);
  CHECK(word("shr.u32 %r0, %r1, 31;", 0x80000000) == 1);
  CHECK(result("shl.b64 %d0, %d1, 40;", 3) == std::uint64_t{3} << 40);
  CHECK(result("shl.b64 %d0, %d1, %r2;", 3, 64) == 0);
  CHECK(word("bfi.b32 %r0, %r1, %r2, 4, 8;", 0xABC, kMinusOne) == 0xFFFFFBCF);
  CHECK(word("prmt.b32 %r0, %r1, %r2, 29736;", 0x33221180, 0x77665544) == 0x774422FF);
  CHECK(word("clz.b64 %r0, %d1;", 1) == 63);
  CHECK(word("popc.b32 %r0, %r1;", 0xF0F0) == 8);
  CHECK(word("max.s32 %r0, %r1, -2;", 0 - std::uint64_t{5}) == 0xFFFFFFFE);
  CHECK(word("min.u32 %r0, %r1, %r2;", kMinusOne, 4) == 4);
  CHECK(result("cvt.s64.s32 %d0, %r1;", 0x80000000) == 0xFFFFFFFF80000000);
  CHECK(result("cvt.s64.s32 %d0, %d1;", 0x180000000) == 0xFFFFFFFF80000000);
  CHECK(result("mov.b64 %d0, {%r1, %r2};", 1, 2) == 0x200000001);
  CHECK(word("mov.b64 {%r5, %r0}, %d1;", 0x700000001) == 7);
}

TEST_CASE("soft GPU: floating point") {
  CHECK(number("fma.rn.f32 %f0, %f1, %f2, %f3;", 1 + 0x1p-12F, 1 - 0x1p-12F, -1) == -0x1p-24F);
  CHECK(std::signbit(number("min.f32 %f0, %f1, %f2;", 0.0F, -0.0F)));
  CHECK_FALSE(std::signbit(number("max.f32 %f0, %f1, %f2;", -0.0F, 0.0F)));
  CHECK(number("max.f32 %f0, %f1, %f2;", kNaN, -3) == -3);
  CHECK(number("ex2.approx.ftz.f32 %f0, %f1;", -3) == 0.125F);
  CHECK(number("ex2.approx.ftz.f32 %f0, %f1;", -127) == 0);
  CHECK(number("ex2.approx.f32 %f0, %f1;", -127) == 0x1p-127F);
  CHECK(number("copysign.f32 %f0, %f1, %f2;", -1, 5) == -5);
  CHECK(number("cvt.rpi.f32.f32 %f0, %f1;", -1.5F) == -1);
  CHECK(word("cvt.rzi.s32.f32 %r0, %f1;", std::bit_cast<std::uint32_t>(-3e9F)) == 0x80000000);
  CHECK(word("cvt.rzi.s32.f32 %r0, %f1;", std::bit_cast<std::uint32_t>(kNaN)) == 0);
  CHECK(word("cvt.rn.bf16.f32 %h0, %f1;\ncvt.u32.u16 %r0, %h0;", 0x3F808000) == 0x3F80);  // halfway: to even
  CHECK(word("cvt.rn.bf16.f32 %h0, %f1;\ncvt.u32.u16 %r0, %h0;", 0x3F818000) == 0x3F82);
  CHECK(word("cvt.rn.f16.f32 %h0, %f1;\ncvt.u32.u16 %r0, %h0;", std::bit_cast<std::uint32_t>(1e6F)) == 0x7C00);
  CHECK(number("cvt.u16.u32 %h2, %r1;\ncvt.f32.f16 %f0, %h2;", std::bit_cast<float>(0x3C01U)) == 1 + 0x1p-10F);
  CHECK(holds("setp.gtu.f32 %p1, %f1, %f2;", kNaN, 1));
  CHECK_FALSE(holds("setp.gt.f32 %p1, %f1, %f2;", kNaN, 1));
  CHECK(holds("setp.leu.f32 %p1, %f1, %f2;", 1, 1));
  CHECK(holds("setp.neu.f32 %p1, %f1, %f2;", kNaN, kNaN));
  CHECK(holds("setp.ge.f32 %p1, %f1, %f2;", kInf, 1));
  CHECK(holds("setp.nan.f32 %p1, %f1, %f2;", 1, kNaN));
}

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
  const std::string all_fence = "wait_all:\n";
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

TEST_CASE("soft GPU: cp.async arrives with its group") {
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < 256; ++i) words.push_back(i * i);
  Array<std::uint32_t> in(words), out(std::vector<std::uint32_t>(32));
  // Two groups of 16 bytes each; the second, which only has 4 of its bytes, may be under way when the first is read.
  const auto body = [](const std::string& pending) {
    return "mov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nshl.b32 %r3, %r1, 4;\nadd.s32 %r4, %r2, %r3;\nadd.s32 %r5, %r4, "
           "512;\nld.param.u64 %d1, [p0];\nld.param.u64 %d2, [p1];\ncvt.u64.u32 %d3, %r3;\n"
           "add.s64 %d4, %d1, %d3;\nadd.s64 %d5, %d4, 512;\ncp.async.cg.shared.global [%r4], [%d4], "
           "16;\ncp.async.commit_group;\ncp.async.cg.shared.global [%r5], [%d5], 16, 4;\ncp.async.commit_group;\n"
           "cp.async.wait_group " +
           pending +
           ";\nld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r4];\nld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5];\nadd.s32 "
           "%r14, %r9, %r10;\nadd.s32 %r14, %r14, %r13;\n"
           "shl.b32 %r15, %r1, 2;\ncvt.u64.u32 %d6, %r15;\nadd.s64 %d7, %d2, %d6;\nst.global.u32 [%d7], %r14;";
  };
  const LaunchShape shape{{1, 1, 1}, {32, 1, 1}, 1, 1024};
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = 0; i < 32; ++i) sums.push_back((4 * i + 3) * (4 * i + 3) + (4 * i + 128) * (4 * i + 128));
  CHECK(run(body("0"), {in.address(), out.address()}, shape) == "");
  CHECK(out.values() == sums);
  CHECK(run(body("1"), {in.address(), out.address()}, shape) == "");
  CHECK(out.values() != sums);
}

TEST_CASE("soft GPU: a tensor copy fills what is outside with zeros, and swizzles") {
  // 5 rows of 64 elements of 2 bytes, of which the box takes 8 from row 2 on.
  std::vector<std::uint16_t> elements;
  for (std::uint16_t i = 0; i < 5 * 64; ++i) elements.push_back(static_cast<std::uint16_t>(i + 1));
  Array<std::uint16_t> in(elements);
  Array<std::uint32_t> out(std::vector<std::uint32_t>(8 * 32));
  TensorMap map{TensorMap::kMark, 2, 2, 128, in.address(), {64, 5}, {128}, {64, 8}};
  std::vector<std::uint64_t> arguments(16);
  std::memcpy(arguments.data(), &map, sizeof map);
  arguments.push_back(out.address());
  const std::string body =
      "mov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nadd.s32 %r3, %r2, 1024;\nmov.b64 %d1, p0;\nld.param.u64 %d2, "
      "[p16];\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra wait;\n"
      "mbarrier.init.shared::cta.b64 [%r3], "
      "1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\nmbarrier.arrive.expect_tx.shared::cta.b64 "
      "_, [%r3], 1024;\nmov.u32 %r4, 0;\nmov.u32 %r5, 2;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {%r4, %r5}], "
      "[%r3];\nwait:\nbar.sync 0;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra again;\nshl.b32 %r6, %r1, 2;\nadd.s32 %r7, "
      "%r2, %r6;\nld.shared.u32 %r8, [%r7];\ncvt.u64.u32 %d3, %r6;\nadd.s64 %d4, %d2, %d3;\nst.global.u32 [%d4], %r8;";
  const std::string wrong = run(body, arguments, {{1, 1, 1}, {256, 1, 1}, 1, 1040});
  REQUIRE_MESSAGE(wrong.empty(), wrong);
  // Shared memory begins at a multiple of 1024: the unit j of row i lies at j ^ i.
  for (std::uint32_t row = 0; row < 8; ++row) {
    for (std::uint32_t unit = 0; unit < 8; ++unit) {
      const std::uint32_t found = out.values()[32 * row + 4 * (unit ^ row)] & 0xFFFF;
      CHECK(found == (row < 3 ? 64 * (row + 2) + 8 * unit + 1 : 0));
    }
  }
}

TEST_CASE("soft GPU: a product of matrices, loaded by ldmatrix") {
  // a [16, 16] and b [8, 16] (a row for each column of the product), of F16: small whole numbers, whose sums are exact.
  std::vector<_Float16> a(256), b(128);
  for (int i = 0; i < 256; ++i) a[static_cast<std::size_t>(i)] = static_cast<_Float16>(i % 7 - 3);
  for (int i = 0; i < 128; ++i) b[static_cast<std::size_t>(i)] = static_cast<_Float16>(i % 5 - 2);
  Array<_Float16> in_a(a), in_b(b);
  Array<float> out(std::vector<float>(128));
  const std::string body =
      "mov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nld.param.u64 %d1, [p0];\nld.param.u64 %d2, [p1];\nld.param.u64 %d3, "
      "[p2];\nshl.b32 %r3, %r1, 4;\nadd.s32 %r4, %r2, %r3;\ncvt.u64.u32 %d4, %r3;\nadd.s64 %d5, %d1, %d4;\n"
      "cp.async.cg.shared.global [%r4], [%d5], 16;\nsetp.lt.u32 %p1, %r1, 16;\nadd.s64 %d6, %d2, %d4;\nadd.s32 %r5, %r4, "
      "512;\n@%p1 cp.async.cg.shared.global [%r5], [%d6], 16;\ncp.async.commit_group;\ncp.async.wait_group "
      "0;\nbar.warp.sync -1;\n"
      // Lane i gives row i % 16 of a, its first half or, from lane 16 on, its second.
      "and.b32 %r6, %r1, 15;\nshr.u32 %r7, %r1, 4;\nshl.b32 %r8, %r6, 5;\nshl.b32 %r9, %r7, 4;\nadd.s32 %r10, %r8, "
      "%r9;\nadd.s32 %r10, %r10, %r2;\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r11, %r12, %r13, %r14}, [%r10];\n"
      "and.b32 %r15, %r1, 7;\nshr.u32 %r16, %r1, 3;\nand.b32 %r16, %r16, 1;\nshl.b32 %r17, %r15, 5;\nshl.b32 %r18, %r16, "
      "4;\nadd.s32 %r19, %r17, %r18;\nadd.s32 %r19, %r19, %r2;\nadd.s32 %r19, %r19, 512;\n"
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r19];\nmov.f32 %f1, 0f3F800000;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r11, %r12, %r13, %r14}, {%r20, %r21}, "
      "{%f1, %f1, %f1, %f1};\n"
      "shl.b32 %r24, %r1, 4;\ncvt.u64.u32 %d7, %r24;\nadd.s64 %d8, %d3, %d7;\nst.global.v4.f32 [%d8], {%f2, %f3, %f4, %f5};";
  const std::string wrong = run(body, {in_a.address(), in_b.address(), out.address()}, {{1, 1, 1}, {32, 1, 1}, 1, 768});
  REQUIRE_MESSAGE(wrong.empty(), wrong);
  const auto d = out.values();
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t row = lane / 4 + 8 * (k / 2), column = 2 * (lane % 4) + k % 2;
      float sum = 1;
      for (std::size_t i = 0; i < 16; ++i)
        sum += static_cast<float>(a[16 * row + i]) * static_cast<float>(b[16 * column + i]);
      CHECK(d[4 * lane + k] == sum);
    }
  }
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
