// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Several devices: memory that is theirs, and windows that others store to.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <memory>
#include <optional>

namespace tree_attn::emulated {
namespace {

/// The current device until the end of a scope.
struct OnDevice {
  explicit OnDevice(int device) : before(current_device()) { set_device(device); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { set_device(before); }
  int before;
};

enum class Touch { kLoad, kLoadOnce, kStore, kPacket };
void touch(Touch what, float* at) {
  if (what == Touch::kLoad) load_fresh(at);
  if (what == Touch::kLoadOnce) load_once(at);
  if (what == Touch::kStore) store_fresh(at, 1);
  if (what == Touch::kPacket) store_packet(reinterpret_cast<Packet*>(at) + threadIdx.x, {{1, 2, 3}, 4});
}

TEST_CASE("emulator: a kernel reaches memory of its own device, and windows of others that it has been given") {
  const SettingsScope scope({.n_devices = 3});
  CHECK(n_devices() == 3);
  CHECK(has(error_in([] { set_device(3); }), "set_device: device 3; the emulator has 3"));
  const auto of = [](int device, MemoryUse use) {
    const OnDevice on(device);
    return DeviceBuffer<float>(64, use);
  };
  const DeviceBuffer<float> own = of(1, MemoryUse::Persistent), window = of(2, MemoryUse::Window),
                            near = of(1, MemoryUse::Window);
  const OnDevice on(1);
  CHECK(current_device() == 1);
  for (const MemoryUse use : {MemoryUse::Persistent, MemoryUse::Input, MemoryUse::Scratch}) {
    const DeviceBuffer<float> other = of(2, use);
    for (const Touch what : {Touch::kLoad, Touch::kLoadOnce, Touch::kStore, Touch::kPacket})
      CHECK(has(error_of(touch, {}, what, other.data()), "memory of device 2 from device 1, which is no window"));
  }
  CHECK(has(error_of(touch, {}, Touch::kPacket, window.data()), "which has not enabled it: enable_peer_access()"));
  enable_peer_access(2);

  // What goes to another device is counted, whatever word stores it.
  const auto bytes_of = [](Touch what, const DeviceBuffer<float>& buffer, unsigned n_threads) {
    const std::int64_t before = traffic().bytes_to_peers;
    CHECK(error_of(touch, {.block = {n_threads}}, what, buffer.data()) == "");
    return traffic().bytes_to_peers - before;
  };
  CHECK(bytes_of(Touch::kPacket, window, 8) == 8 * 16);
  CHECK(bytes_of(Touch::kStore, window, 1) == 4);
  CHECK(bytes_of(Touch::kLoad, window, 1) == 0);
  CHECK(bytes_of(Touch::kPacket, near, 8) == 0);
  CHECK(bytes_of(Touch::kStore, own, 1) == 0);
  CHECK(has(error_of(touch, {}, Touch::kPacket, near.data() + 1), "store_packet: the address is not a multiple of 16"));
}

TEST_CASE("emulator: the first use of a device is recorded, and to ask which there are is none") {
  const SettingsScope scope({.n_devices = 2});
  const auto uses = [](int device, const auto& act) {
    has_context(device) = false;
    act();
    return has_context(device).load();
  };
  CHECK(!uses(0, [] { CHECK(n_devices() + current_device() + static_cast<int>(gpu_names().size()) == 2); }));
  CHECK(uses(0, [] { set_device(0); }));
  CHECK(uses(0, [] { CHECK(device().n_multiprocessors > 0); }));
  CHECK(uses(0, [] { synchronise(Stream{}); }));
  std::optional<OwnedStream> stream;
  CHECK(uses(0, [&] { stream.emplace(); }));
  std::optional<HostBuffer<float>> on_host;
  CHECK(uses(0, [&] { on_host.emplace(4); }));
  std::optional<DeviceBuffer<float>> buffer;
  CHECK(uses(0, [&] { buffer.emplace(64, MemoryUse::Window); }));
  CHECK(uses(0, [&] { CHECK(error_of(touch, {}, Touch::kLoad, buffer->data()) == ""); }));
  // g++ 13 takes the window of an empty std::optional for one that is used.
  std::unique_ptr<OpenedWindow> opened;
  CHECK(uses(0, [&] { opened = std::make_unique<OpenedWindow>(buffer->handle(), 256); }));
  CHECK(uses(0, [&] { opened.reset(); }));
  CHECK(uses(0, [&] { buffer.reset(); }));

  // Memory of one device that a host thread frees on another is a use of that other one.
  const auto on_device_1 = [&] {
    const OnDevice on(1);
    has_context(0) = false;
    buffer.emplace(64);
    CHECK(error_of(touch, {}, Touch::kStore, buffer->data()) == "");
    CHECK(!has_context(0));
  };
  CHECK(uses(1, on_device_1));
  CHECK(uses(0, [&] { buffer.reset(); }));
}

/// A process may open its own window too: it sees the same memory at two addresses.
TEST_CASE("emulator: a window that was opened by its handle is the same memory, on a device elsewhere") {
  DeviceBuffer<float> window(64, MemoryUse::Window);
  window.fill(0);
  {
    const OpenedWindow opened(window.handle(), 256);
    auto* const at = static_cast<float*>(opened.data());
    CHECK(at != window.data());
    const std::int64_t before = traffic().bytes_to_peers;
    CHECK(error_of(touch, {}, Touch::kPacket, at + 60) == "");
    CHECK(traffic().bytes_to_peers - before == 16);
    CHECK(window.download()[62] == 3);
    CHECK(has(error_of(touch, {}, Touch::kPacket, at + 64), "store_packet writes bytes 256 to 272 of a buffer of 256"));
  }
  const DeviceBuffer<float> other(64);
  CHECK(has(error_in([&] { other.handle(); }), "not a window of this process"));
  const auto open_it = [](const WindowHandle& handle) { OpenedWindow(handle, 256); };
  CHECK(has(error_in([&] { open_it({}); }), "the window of process 0: No such file or directory"));
  CHECK(has(error_in([&] { OpenedWindow(window.handle(), 4096); }), " is another file"));
  // A handle that outlives its window names a file that is gone, or another one.
  WindowHandle late;
  {
    const DeviceBuffer<float> short_lived(64, MemoryUse::Window);
    late = short_lived.handle();
  }
  CHECK(has(error_in([&] { open_it(late); }), "the window of process "));
  const DeviceBuffer<float> larger(6400, MemoryUse::Window);
  CHECK(has(error_in([&] { open_it(late); }), " is another file"));
}

TEST_CASE("emulator: a library's memory is a window while it is in use, and not freed") {
  alignas(16) float memory[64] = {};
  CHECK(has(error_of(touch, {}, Touch::kPacket, &memory[0]), "memory that lies in no buffer"));
  {
    const DeviceBuffer<float> own(memory, 64);
    CHECK(own.data() == memory);
    CHECK(error_of(touch, {}, Touch::kPacket, own.data()) == "");
    CHECK(has(error_in([&] { own.handle(); }), "not a window of this process"));
  }
  CHECK(memory[2] == 3);
  CHECK(has(error_of(touch, {}, Touch::kPacket, &memory[0]), "memory that lies in no buffer"));
}

void wait_for_flag(const unsigned* flag) {
  wait_until([flag] { return load_acquire(flag) != 0; });
}

TEST_CASE("emulator: a word of the host is read by kernels of all devices, also of those that do not reach each other") {
  const SettingsScope scope({.n_devices = 2, .has_peer_access = false});
  CHECK(has(error_in([] { enable_peer_access(1); }), "the devices do not reach each other"));
  HostWord word;
  word.store(1);
  const OnDevice on(1);
  CHECK(error_of(wait_for_flag, {}, word.on_device()) == "");
}

TEST_CASE("emulator: while a window of another process is open, a wait is no deadlock and ends at the deadline") {
  DeviceBuffer<unsigned> flag(1, MemoryUse::Window);
  flag.fill(0);
  CHECK(has(error_of(wait_for_flag, {}, flag.data()), "deadlock"));
  const SettingsScope scope({.deadline = std::chrono::milliseconds(100)});
  const OpenedWindow opened(flag.handle(), sizeof(unsigned));
  const std::string error = error_of(wait_for_flag, {}, flag.data());
  CHECK(!has(error, "deadlock"));
  CHECK(has(error, "deadline"));
}

TEST_CASE("emulator: launches go to a stream of the current device") {
  const SettingsScope scope({.n_devices = 2});
  std::unique_ptr<OwnedStream> stream;
  {
    const OnDevice on(1);
    stream = std::make_unique<OwnedStream>();
  }
  const DeviceBuffer<float> own(64);
  CHECK(has(error_in([&] { launch(touch, {}, *stream, Touch::kLoad, own.data()); }),
            "on a stream of device 1 while device 0 is current"));
}

}  // namespace
}  // namespace tree_attn::emulated
