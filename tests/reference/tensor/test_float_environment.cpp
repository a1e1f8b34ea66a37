// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The floating-point environment: the default inside, the caller's outside and in its callbacks.
#include "reference/cpu/thread_pool.hpp"
#include "reference/tensor/dtype.hpp"
#include "reference/tensor/float_environment.hpp"
#include "tests/support/float_modes.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>

namespace tree_attn::test {
namespace {

/// Tests whether arithmetic rounds to nearest and has subnormal numbers; read through volatile, for compilers compute
/// constants.
bool is_plain() {
  volatile float third = 3, tiny = 0x1p-130f, one = 1;
  volatile double wide = 3;
  const bool rounds = one / third == 0x1.555556p-2f && -one / third == -0x1.555556p-2f && 1 / wide == 0x1.5555555555555p-2;
  return rounds && tiny * one != 0 && tiny + tiny == 0x1p-129f;
}

}  // namespace

TEST_CASE("float environment: the default inside, and the caller's afterwards and in its callbacks") {
  REQUIRE(is_plain());
  REQUIRE(FloatEnvironment::is_default());
  for (const FloatMode::Kind kind : FloatMode::kAll) {
    CAPTURE(kind);
    const FloatMode mode(kind);
    const auto before = FloatMode::now();
    CHECK_FALSE(is_plain());
    CHECK_FALSE(FloatEnvironment::is_default());
    {
      FloatEnvironment outer;
      CHECK(is_plain());
      CHECK(FloatEnvironment::is_default());
      for (int bits = 0; bits < 256; ++bits) {
        const Float8 element{static_cast<std::uint8_t>(bits)};
        if ((bits & 127) != 127) CHECK(Float8::narrow(element.widen()).bits == bits);
      }
      FloatEnvironment inner;
      inner.call_back([] { CHECK(FloatEnvironment::is_default()); });  // its caller is the function above
      bool is_called = false;
      outer.call_back([&] {
        is_called = true;
        CHECK(FloatMode::now() == before);
        CHECK_FALSE(is_plain());
      });
      CHECK(is_called);
      CHECK(is_plain());
      CHECK_THROWS_AS(outer.call_back([] { throw std::runtime_error("of the caller"); }), std::runtime_error);
      CHECK(is_plain());
    }
    CHECK(FloatMode::now() == before);
  }
  CHECK(is_plain());

  // A callback that changes the environment changes it for its caller.
  std::fenv_t saved;
  std::fegetenv(&saved);
  {
    FloatEnvironment ours;
    ours.call_back([] { std::fesetround(FE_UPWARD); });
    CHECK(is_plain());
  }
  CHECK(std::fegetround() == FE_UPWARD);
  std::fesetenv(&saved);
}

TEST_CASE("float environment: threads of a pool have the default, whatever the thread had that made them") {
  for (const FloatMode::Kind kind : FloatMode::kAll) {
    CAPTURE(kind);
    const FloatMode mode(kind);
    ThreadPool pool(3);
    struct Seen {
      std::atomic<int> others{0}, plain{0};
    } seen;
    // The caller waits in its own items until another thread has taken one.
    const ThreadPool::Work work = [](void* context, int thread, std::int64_t) {
      Seen& all = *static_cast<Seen*>(context);
      if (thread > 0) all.plain += is_plain(), ++all.others;
      while (thread == 0 && all.others == 0) std::this_thread::yield();
    };
    pool.run(64, false, work, &seen, {});
    CHECK(seen.others > 0);
    CHECK(seen.plain == seen.others);
  }
}

}  // namespace tree_attn::test
