// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fibers, on x86-64 by instructions of its own and elsewhere on Boost.Context, with what the sanitizers must be told
/// of a switch.
#include "gpu/emulator/fiber.hpp"

#include "gpu/emulator/sanitizer.hpp"

#include <boost/context/detail/fcontext.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

namespace tree_attn::emulated::runtime {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::transfer_t;

constexpr std::size_t kPage = 4096;
[[maybe_unused]] constexpr unsigned kNoSynchronisation = 1;
[[maybe_unused]] std::mutex pool_mutex;
[[maybe_unused]] std::vector<std::byte*> pool;

#if defined(__x86_64__) && !defined(__CET__)

/// Boost's functions, but a switch ends in a return where theirs ends in a jump. All fibers of a block stand at the same
/// call, so the processor predicts this return and those that follow; after a jump it predicts each of them wrongly. The
/// stack of a suspended fiber holds six registers and its return address. A caller may not know this function
/// (noipa): it would take the registers that it does not name for registers that it leaves alone.
fcontext_t new_context(std::byte* stack_end, void (*entry)(transfer_t)) {
  // 8 words, so that entry() finds the stack as after a call.
  void** const words = reinterpret_cast<void**>(stack_end) - 8;
  std::fill_n(words, 8, nullptr);
  words[6] = reinterpret_cast<void*>(entry);
  return words;
}
[[gnu::naked, gnu::noipa]] transfer_t switch_context(fcontext_t /*to*/, void* /*data*/) {
  asm("push %rbp\n push %rbx\n push %r15\n push %r14\n push %r13\n push %r12\n"
      "mov %rsp, %rax\n mov %rdi, %rsp\n"
      "pop %r12\n pop %r13\n pop %r14\n pop %r15\n pop %rbx\n pop %rbp\n"
      // The same as the result of this call, or as the argument of entry().
      "mov %rsi, %rdx\n mov %rax, %rdi\n"
      "ret");
}

#else

fcontext_t new_context(std::byte* stack_end, void (*entry)(transfer_t)) {
  return boost::context::detail::make_fcontext(stack_end, kStackBytes, entry);
}
transfer_t switch_context(fcontext_t to, void* data) { return boost::context::detail::jump_fcontext(to, data); }

#endif

/// A new fiber starts here; what it runs waits in the fiber that switched to it first.
thread_local void (*next_entry)() = nullptr;

/// Runs after every switch: stores where the previous fiber will resume.
void arrive(const transfer_t& from, [[maybe_unused]] void* own_fake_stack) {
  Fiber& left = *static_cast<Fiber*>(from.data);
  left.context = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t n_bytes = 0;
  __sanitizer_finish_switch_fiber(own_fake_stack, &bottom, &n_bytes);
  if (left.stack == nullptr) left.stack = static_cast<std::byte*>(const_cast<void*>(bottom)), left.stack_bytes = n_bytes;
#endif
}

void enter(transfer_t from) {
  arrive(from, nullptr);
  next_entry();
}

}  // namespace

#if defined(TREE_ATTN_EMULATOR_THREAD)

namespace {

/// The fibers that a host thread has ended last. TSan gives the number of a destroyed fiber to a new one, and takes what the
/// first did for what the second has done: a barrier of a later block would order the threads of an earlier one. So the last
/// kStay fibers stay, and races between blocks that are further apart may be missed.
class EndedFibers {
 public:
  EndedFibers() = default;
  EndedFibers(const EndedFibers&) = delete;
  EndedFibers& operator=(const EndedFibers&) = delete;
  ~EndedFibers() {
    for (void* fiber : fibers_) __tsan_destroy_fiber(fiber);
  }
  void add(void* fiber) {
    fibers_.push_back(fiber);
    if (fibers_.size() > kStay) __tsan_destroy_fiber(fibers_.front()), fibers_.pop_front();
  }

 private:
  static constexpr std::size_t kStay = 1024;
  std::deque<void*> fibers_;
};
EndedFibers& ended_fibers() {
  static thread_local EndedFibers own;
  return own;
}

}  // namespace

// TSan forgets the users of memory when it is allocated, and only then: with a stack that other fibers had before, those
// of unordered blocks would seem to race.
std::byte* take_stack() { return static_cast<std::byte*>(::operator new (kStackBytes, std::align_val_t{kPage})); }
void give_back(std::byte* stack) { ::operator delete (stack, std::align_val_t{kPage}); }

#else

std::byte* take_stack() {
  {
    const std::lock_guard lock(pool_mutex);
    if (!pool.empty()) {
      std::byte* const stack = pool.back();
      pool.pop_back();
      return stack;
    }
  }
  // The page below a stack may not be touched: overflow is a fault, never a neighbour's locals.
  void* const mapped =
      mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED || mprotect(mapped, kPage, PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(mapped) + kPage;
}

void give_back(std::byte* stack) {
  const std::lock_guard lock(pool_mutex);
  // Called by destructors.
  try {
    pool.push_back(stack);
  } catch (const std::bad_alloc&) {
    munmap(stack - kPage, kPage + kStackBytes);
  }
}

#endif

void start_fiber(Fiber& fiber, void (*entry)()) {
  if (fiber.stack == nullptr) fiber.stack = take_stack(), fiber.stack_bytes = kStackBytes;
  // An abandoned fiber leaves its locals fenced in.
  allow(fiber.stack, fiber.stack_bytes);
  next_entry = entry;
  fiber.fake_stack = nullptr;
  fiber.context = new_context(fiber.stack + kStackBytes, enter);
#if defined(TREE_ATTN_EMULATOR_THREAD)
  const Watched watched;
  fiber.watched = __tsan_create_fiber(0);
#endif
}

void adopt_host_thread([[maybe_unused]] Fiber& fiber) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  fiber.watched = __tsan_get_current_fiber();
  ended_fibers();  // so that they outlive what has adopted the thread
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(TREE_ATTN_EMULATOR_THREAD)
  // A fiber is watched while it is parked, so that it may be ended there.
  end_unwatched();
  __tsan_switch_to_fiber(to.watched, kNoSynchronisation);
#endif
  const transfer_t back = switch_context(to.context, &from);
  begin_unwatched();
  arrive(back, from.fake_stack);
}

void end_fiber(Fiber& fiber, [[maybe_unused]] const Fiber& host) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  if (fiber.watched == nullptr) return;
  // All that it did, also where it was abandoned, happened before what the host does from here on.
  {
    const Watched watched;
    __tsan_switch_to_fiber(fiber.watched, kNoSynchronisation);
    __tsan_release(const_cast<Fiber*>(&host));
    __tsan_switch_to_fiber(host.watched, kNoSynchronisation);
    ended_fibers().add(fiber.watched);
  }
  give_back(fiber.stack);
  fiber.stack = nullptr;
#endif
  fiber.watched = nullptr;
}

}  // namespace tree_attn::emulated::runtime
