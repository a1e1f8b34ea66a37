// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU in software: faults that it has to find. What its instructions compute, ./run test --compiled compares.
#include "tests/gpu/soft_gpu/machine.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using namespace tree_attn::soft_gpu;

namespace {

using Words = std::vector<std::uint32_t>;

/// Memory of the device, and where the host reaches it.
struct Array {
  explicit Array(const Words& words) : n(words.size()), address(*memory::allocate(4 * n)) {
    std::memcpy(memory::find(address)->host(address), words.data(), 4 * n);
  }
  Words words() const {
    Words all(n);
    std::memcpy(all.data(), memory::find(address)->host(address), 4 * n);
    return all;
  }
  std::size_t n;
  std::uint64_t address;
};

/// Head of a kernel, with its registers: %r1 its thread, %r2 where dynamic shared memory begins, %r3 four times the thread,
/// %r4 its word of shared memory, %d1 and %d2 the parameters, %d3 its word of the first one.
constexpr const char* kHead = R"(.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 dynamic[];
.entry f(.param .u64 p0, .param .u64 p1)
{
.reg .pred %p<9>;
.reg .b32 %r<40>;
.reg .b64 %d<20>;
.reg .f32 %f<20>;
mov.u32 %r1, %tid.x;
mov.u32 %r2, dynamic;
shl.b32 %r3, %r1, 2;
add.s32 %r4, %r2, %r3;
ld.param.u64 %d1, [p0];
ld.param.u64 %d2, [p1];
mul.wide.u32 %d3, %r1, 4;
add.s64 %d3, %d1, %d3;
)";

/// Runs a kernel on two addresses. @returns what it does wrong
std::string run(const std::string& body, const LaunchShape& shape, unsigned seed = 1, std::uint64_t p0 = 0,
                std::uint64_t p1 = 0) {
  const std::string text = kHead + body + "\nret;\n}\n";
  try {
    const Kernel kernel = Module(text).kernel("f");
    std::vector<std::byte> bytes(16);
    std::memcpy(&bytes[0], &p0, 8), std::memcpy(&bytes[8], &p1, 8);
    Grid(kernel, shape, bytes, seed).run(4);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}
LaunchShape block_of(std::uint32_t n_threads) { return {{1, 1, 1}, {n_threads, 1, 1}, 1, 512}; }
bool says(const std::string& what, const std::string& part) { return what.find(part) != std::string::npos; }

/// Waits for the first phase of the mbarrier at %r5.
constexpr const char* kWait =
    "again: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;\n@%p2 bra ready;\nbra again;\nready:\n";

}  // namespace

TEST_CASE("soft GPU: what a thread does wrong is said, with its line") {
  const std::string init = "mov.u32 %r5, %r2;\nmbarrier.init.shared::cta.b64 [%r5], 32;\n";
  const std::pair<std::string, std::string> faults[] = {
      {"st.global.f32 [%d3+4], %f1;", "0 bytes after the end of 128 bytes"},
      {"st.global.f32 [%d3+4], %f1;", "thread 31, line 19 of the PTX: st.global.f32 [%d3+4], %f1;"},
      {"st.global.f32 [%d1+2], %f1;", "is no multiple of 4"},
      {"isspacep.global %p1, %d1;", "line 19, 'isspacep.global %p1, %d1;': an instruction that is not known"},
      {"add.sat.s32 %r5, %r6, %r7;", "'sat' is not known"},
      {"st.shared.f32 [%r2+508], %f1;\nst.shared.f32 [%r2+512], %f1;", "4 bytes at 512 of 512 bytes of shared memory"},
      {"setp.eq.u32 %p1, %r1, 3;\n@%p1 ret;\nbar.warp.sync -1;", "have ended"},
      {"bar.sync 3, 48;", "a barrier of 48 threads of 32"},
      {"mov.u32 %r5, %r2;\n" + std::string(kWait), "no mbarrier has been initialised there"},
      {init + kWait, "no thread can go on"},
      {init + kWait, "32 threads at line 21 of the PTX: mbarrier.try_wait"},
  };
  for (const auto& [body, part] : faults) {
    const Array out(Words(32));
    const std::string wrong = run(body, block_of(32), 1, out.address);
    CHECK_MESSAGE(says(wrong, part), wrong);
  }
}

namespace {

/// Thread i of n stores i in shared memory and, after a barrier, gives what thread n - 1 - i stored.
/// @returns of so many seeds, those with which this does not reverse the numbers
int n_not_reversed(const std::string& barrier, int n, unsigned n_seeds) {
  const std::string body = "st.shared.u32 [%r4], %r1;\n" + barrier + "\nsub.s32 %r5, " + std::to_string(4 * (n - 1)) +
                           ", %r3;\nadd.s32 %r6, %r2, %r5;\nld.shared.u32 %r7, [%r6];\nst.global.u32 [%d3], %r7;";
  Words reversed;
  for (int i = n; i-- > 0;) reversed.push_back(static_cast<std::uint32_t>(i));
  int n_wrong = 0;
  for (unsigned seed = 0; seed < n_seeds; ++seed) {
    const Array out(Words(reversed.size()));
    CHECK(run(body, block_of(static_cast<std::uint32_t>(n)), seed, out.address) == "");
    n_wrong += out.words() != reversed;
  }
  return n_wrong;
}

}  // namespace

TEST_CASE("soft GPU: threads of a block meet, a barrier that is missing, and one that some threads miss") {
  CHECK(n_not_reversed("bar.sync 0;", 128, 8) == 0);
  CHECK(n_not_reversed("", 128, 8) == 8);
  // So do as many as the instruction says.
  CHECK(n_not_reversed("bar.sync 3, 128;", 128, 1) == 0);
  CHECK(n_not_reversed("shr.u32 %r8, %r1, 6;\nbar.sync %r8, 64;", 128, 1) == 1);
  // Lanes of a warp are not bound to each other either.
  CHECK(n_not_reversed("bar.warp.sync -1;", 32, 32) == 0);
  CHECK(n_not_reversed("", 32, 32) > 0);
  const std::string wrong = run("setp.lt.u32 %p1, %r1, 96;\n@!%p1 bra past;\nbar.sync 0;\npast:", block_of(128));
  CHECK_MESSAGE((says(wrong, "no thread can go on") && says(wrong, "96 threads at line 21 of the PTX: bar.sync 0;")), wrong);
}

TEST_CASE("soft GPU: bulk copies arrive when their mbarrier says so, and take a fence before") {
  const std::string init_fence = "fence.mbarrier_init.release.cluster;\n", proxy = "fence.proxy.async.shared::cta;\n";
  // Thread 0 copies 128 bytes to shared memory, where all have stored; all wait for them, and thread i gives the i-th word.
  const auto bulk_copy = [&](const std::string& of_all, const std::string& of_one, const std::string& wait) {
    return "add.s32 %r5, %r2, 128;\nst.shared.u32 [%r4], %r1;\n" + of_all +
           "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra wait;\nmbarrier.init.shared::cta.b64 [%r5], 1;\n" + init_fence + of_one +
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;\ncp.async.bulk.shared::cluster.global.mbarrier::"
           "complete_tx::bytes [%r2], [%d2], 128, [%r5];\nwait:\nbar.sync 0;\n" +
           wait + "ld.shared.u32 %r7, [%r4];\nst.global.u32 [%d3], %r7;";
  };
  Words words;
  for (std::uint32_t i = 0; i < 32; ++i) words.push_back(1000 + i);
  const Array in(words), out(Words(32));
  int n_early = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    const auto error = [&](const std::string& body) { return run(body, block_of(32), seed, out.address, in.address); };
    CHECK(error(bulk_copy(proxy, proxy, kWait)) == "");
    CHECK(out.words() == words);
    const std::string early = error(bulk_copy(proxy, proxy, ""));
    n_early += !early.empty() || out.words() != words;
    CHECK(says(error(bulk_copy("", proxy, kWait)), "without a fence of the async proxy"));
    CHECK(says(error(bulk_copy(proxy, "", kWait)), "without a fence of the async proxy"));
  }
  CHECK(n_early > 4);
}

TEST_CASE("soft GPU: products of a warpgroup end at their wait, and what is wrong with them is said") {
  // Of a [64, 16] and b [16, 16] all elements are 1 and 2 in BF16, in c 1; each thread gives its first and its last sum.
  const auto multiply = [](const std::string& proxy, const std::string& first, const std::string& high,
                           const std::string& fence, const std::string& after, const std::string& wait) {
    std::string body = "add.s32 %r5, %r2, 8192;\nmov.b32 %r6, 0x3F803F80;\nmov.b32 %r7, 0x40004000;\n";
    for (int i = 0; i < 16; ++i) body += "st.shared.u32 [%r4+" + std::to_string(512 * i) + "], %r6;\n";
    for (int i = 16; i < 20; ++i) body += "st.shared.u32 [%r4+" + std::to_string(512 * i) + "], %r7;\n";
    for (int i = 1; i < 9; ++i) body += "mov.f32 %f" + std::to_string(i) + ", 0f3F800000;\n";
    return body + proxy + "bar.sync 0;\nadd.s32 %r8, %r2, " + first + ";\nshr.u32 %r8, %r8, 4;\nshr.u32 %r9, %r5, 4;\n" +
           "mov.b32 %r10, " + high + ";\nmov.b64 %d4, {%r8, %r10};\nmov.b64 %d5, {%r9, %r10};\n" + fence +
           "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, %d4, %d5, 1, 1, "
           "1, "
           "0, 0;\nwgmma.commit_group.sync.aligned;\n" +
           after + wait + "add.f32 %f9, %f1, %f8;\nst.global.f32 [%d3], %f9;";
  };
  const std::string proxy = "fence.proxy.async.shared::cta;\n", fence = "wgmma.fence.sync.aligned;\n", high = "0x40000040",
                    wait = "wgmma.wait_group.sync.aligned 0;\n";
  const LaunchShape shape{{1, 1, 1}, {128, 1, 1}, 1, 10240};
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Array out(Words(128));
    const auto error = [&](const std::string& body) { return run(body, shape, seed, out.address); };
    CHECK(error(multiply(proxy, "32", high, fence, "", wait)) == "");
    CHECK(out.words() == Words(128, 0x42840000));  // 66
    CHECK(error(multiply(proxy, "0", high, fence, "add.f32 %f9, %f1, 0f00000000;\nst.global.f32 [%d3], %f9;\n",
                         wait + "ret;\n")) == "");
    CHECK(out.words() != Words(128, 0x42040000));  // 33, read too early
    const auto says_of = [&](const std::string& body, const std::string& part) {
      const std::string wrong = error(body);
      CHECK_MESSAGE(says(wrong, part), wrong);
    };
    says_of(multiply("", "0", high, fence, "", wait), "without a fence of the async proxy");
    says_of(multiply(proxy, "0", high, "", "", wait), "wgmma without a wgmma.fence");
    says_of(multiply(proxy, "128", high, fence, "", wait), "a matrix at 0x480, 128 bytes past a multiple of 1024");
    says_of(multiply(proxy, "0", "0x80000040", fence, "", wait), "a matrix at 0x400 with swizzle 2");
    says_of(multiply(proxy, "0", high, fence, "mov.f32 %f2, 0f00000000;\n", wait), "written before the wait");
    says_of(multiply(proxy, "0", high, fence, "", "wgmma.wait_group.sync.aligned 1;\n"), "ends before a wait");
  }
}

TEST_CASE("soft GPU: an asynchronous store completes on an mbarrier beside it, and on no other") {
  // Each block of 2 sends its rank to the other one.
  const std::string barrier = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
  const auto send = [&](const std::string& to) {
    return "add.s32 %r5, %r2, 8;\nmbarrier.init.shared::cta.b64 [%r5], 1;\nfence.mbarrier_init.release.cluster;\n"
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 8;\n" +
           barrier +
           "mov.u32 %r6, %cluster_ctarank;\nxor.b32 %r7, %r6, 1;\nmapa.shared::cluster.u32 %r8, %r2, %r7;\n"
           "mapa.shared::cluster.u32 %r9, %r5, " +
           to +
           ";\ncvt.u64.u32 %d4, %r6;\n"
           "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r8], %d4, [%r9];\n" +
           kWait +
           "ld.shared.u32 %r10, [%r2];\nmul.wide.u32 %d7, %r6, 4;\nadd.s64 %d8, %d1, %d7;\nst.global.u32 [%d8], %r10;\n" +
           barrier;
  };
  const Array out(Words(2));
  const LaunchShape shape{{2, 1, 1}, {1, 1, 1}, 2, 16};
  for (unsigned seed = 0; seed < 8; ++seed) {
    CHECK(run(send("%r7"), shape, seed, out.address) == "");
    CHECK(out.words() == Words{1, 0});
    CHECK(says(run(send("%r6"), shape, seed, out.address), "completes on another"));
  }
}

TEST_CASE("soft GPU: blocks of a cluster reach each other's shared memory, and may not end before") {
  // Each block of 4 stores its rank, and reads that of the next one.
  const std::string barrier = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
  const std::string body =
      "mov.u32 %r5, %cluster_ctarank;\nst.shared.u32 [%r2], %r5;\n" + barrier +
      "add.s32 %r6, %r5, 1;\nand.b32 %r6, %r6, 3;\nmapa.shared::cluster.u32 %r9, %r2, %r6;\nld.shared::cluster.u32 %r7, "
      "[%r9];\nmov.u32 %r8, %ctaid.x;\nmul.wide.u32 %d7, %r8, 4;\nadd.s64 %d8, %d1, %d7;\n"
      "st.global.u32 [%d8], %r7;\n";
  const Array out(Words(8));
  const LaunchShape shape{{8, 1, 1}, {1, 1, 1}, 4, 16};
  bool has_ended = false;
  for (unsigned seed = 0; seed < 16; ++seed) {
    CHECK(run(body + barrier, shape, seed, out.address) == "");
    CHECK(out.words() == Words{1, 2, 3, 0, 1, 2, 3, 0});
    has_ended = has_ended || says(run(body, shape, seed, out.address), "of the cluster, which has ended");
  }
  CHECK(has_ended);
}

TEST_CASE("soft GPU: a box goes to both blocks of a cluster, once they have arrived at the barrier of the first") {
  Words data;
  for (std::uint32_t i = 0; i < 64; ++i) data.push_back(500 + i);
  const Array in(data), out(Words(2));
  TensorMap map{TensorMap::kMark, 4, 2, 0, in.address, {64, 2, 1, 1}, {128, 256, 256}, {64, 2, 1, 1}};
  Words words(32);
  std::memcpy(words.data(), &map, sizeof map);
  const Array of_map(words);
  const std::string barrier = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
  const auto share = [&](const std::string& arrive, const std::string& ranks) {
    return ".reg .b16 %h<3>;\nadd.s32 %r5, %r2, 256;\nadd.s32 %r9, %r2, 264;\nmbarrier.init.shared::cta.b64 [%r5], 1;\n"
           "mbarrier.init.shared::cta.b64 [%r9], "
           "2;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" +
           barrier +
           "mov.u32 %r6, %cluster_ctarank;\nmov.u32 %r8, 0;\nsetp.ne.u32 %p1, %r6, 0;\n"
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 256;\nmapa.shared::cluster.u32 %r7, %r9, %r8;\n" +
           arrive + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];\n@%p1 bra wait;\n" +
           "one: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r9], 0;\n@%p3 bra all;\nbra one;\nall:\nmov.b16 %h1, " +
           ranks +
           ";\ncp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r2], "
           "[%d2, {%r8, %r8, %r8, %r8}], [%r5], %h1;\nwait:\n" +
           kWait +
           "ld.shared.u32 %r10, [%r2+132];\nmul.wide.u32 %d7, %r6, 4;\nadd.s64 %d8, %d1, %d7;\nst.global.u32 [%d8], "
           "%r10;\n" +
           barrier;
  };
  const LaunchShape shape{{2, 1, 1}, {1, 1, 1}, 2, 272};
  for (unsigned seed = 0; seed < 8; ++seed) {
    const auto error = [&](const std::string& body) { return run(body, shape, seed, out.address, of_map.address); };
    CHECK(error(share("", "3")) == "");
    CHECK(out.words() == Words{533, 533});
    CHECK(says(error(share("@%p1 bra wait;\n", "3")), "no thread can go on"));
    CHECK(says(error(share("", "7")), "a copy to block 2 of the cluster"));
  }
}
