// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streams: nothing runs before the host waits, events order, and what nothing orders is a race.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <cmath>

namespace tree_attn::emulated::streams_test {
namespace {

void store(float* to, float x) { store_fresh(to, x); }
void copy(const float* from, float* to) { store_fresh(to, load_fresh(from)); }
void add(const float* from, float* to) { store_fresh(to, load_fresh(to) + load_fresh(from)); }
void count(unsigned* counter) { atomicAdd(counter, 1u); }
void set(unsigned* counter) {
  atomicAdd(counter + 1, 1u);
  runtime::check_global(counter, 4, runtime::Reach::kWrite, "set", Line::current());
}
void nothing() {}

TEST_CASE("emulator: a stream runs when the host waits for it, and not before") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    const DeviceBuffer<float> a(1), b(1);
    const OwnedStream stream;
    launch(store, {}, stream, a.data(), 3.0f);
    launch(copy, {}, stream, a.data(), b.data());
    CHECK(std::isnan(*a.data()));
    synchronise(stream);
    CHECK(*a.data() == 3);
    CHECK(*b.data() == 3);
  }
  // A copy to the host waits for every stream, and so does the end of a buffer or of a stream.
  const DeviceBuffer<float> a(1);
  {
    const OwnedStream first, second;
    launch(store, {}, first, a.data(), 4.0f);
    CHECK(a.download()[0] == 4);
    {
      const DeviceBuffer<float> gone(1);
      launch(store, {}, second, gone.data(), 1.0f);
      launch(store, {}, first, a.data(), 5.0f);
      CHECK(*a.data() == 4);
      synchronise(second);
    }
    CHECK(*a.data() == 5);
    launch(store, {}, first, a.data(), 6.0f);
  }
  CHECK(*a.data() == 6);
}

TEST_CASE("emulator: a stream that has been waited for without an exception goes on") {
  const DeviceBuffer<float> a(1);
  OwnedStream stream;
  launch(store, {}, stream, a.data(), 3.0f);
  stream.finish();
  CHECK(*a.data() == 3);
  launch(store, {}, stream, a.data(), 4.0f);
  CHECK(a.download() == std::vector<float>{4});
  // Its number is not that of another stream: two streams that write the same memory are still a race.
  const OwnedStream other;
  launch(store, {}, stream, a.data(), 5.0f);
  launch(store, {}, other, a.data(), 6.0f);
  CHECK(has(error_in([&] { a.download(); }), "race"));
}

TEST_CASE("emulator: a queued copy takes the memory of the host as it is when the stream gets there") {
  std::vector<float> in{1}, out{0};
  DeviceBuffer<float> a(1);
  const OwnedStream stream;
  const std::int64_t uploaded = traffic().bytes_uploaded, downloaded = traffic().bytes_downloaded;
  a.queue_upload(stream, in);
  a.queue_download(stream, out);
  in[0] = 2;
  CHECK(out[0] == 0);
  CHECK(traffic().bytes_uploaded == uploaded);
  synchronise(stream);
  CHECK(out[0] == 2);
  CHECK(traffic().bytes_uploaded - uploaded == 4);
  CHECK(traffic().bytes_downloaded - downloaded == 4);
  CHECK(has(error_in([&] { a.queue_upload(stream, in, 1); }), "upload: past the end"));

  // Rows, on the device.
  const DeviceBuffer<float> from = ascending(12);
  DeviceBuffer<float> to(12);
  to.fill(0, stream);
  to.queue_copy(stream, from, 1, 4, 2, 3, 2, 3);
  synchronise(stream);
  CHECK(to.download() == std::vector<float>{0, 0, 1, 2, 0, 5, 6, 0, 9, 10, 0, 0});
}

TEST_CASE("emulator: the host does not write memory of a copy that it has not waited for") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const SettingsScope scope({.seed = seed});
    HostBuffer<float> in(2), out(1), other(2);
    DeviceBuffer<float> a(2);
    const OwnedStream stream, idle;
    launch(nothing, {}, idle);  // it does not know what follows, so that is remembered
    const auto refused = [&](HostBuffer<float>& buffer) { return error_in([&] { buffer.to_write(); }); };
    const auto uploads = [&] { a.queue_upload(stream, in.elements().first(1)); };
    in.to_write()[0] = 1;
    uploads();
    CHECK(has(refused(in), "the host writes memory of upload at test_streams.cpp:"));
    CHECK(refused(other) == "");
    synchronise(stream);
    CHECK(refused(in) == "");
    CHECK(*a.data() == 1);

    a.queue_download(stream, {out.data(), 1});
    CHECK(has(refused(out), "the host writes memory of download at test_streams.cpp:"));
    CHECK(refused(in) == "");
    synchronise(stream);
    CHECK(refused(out) == "");

    // It has run, but only the default stream has waited for it.
    in.to_write()[0] = 2;
    uploads();
    Event event;
    event.record(stream);
    event.hold(Stream{});
    CHECK(*a.data() == 2);
    CHECK(has(refused(in), "and has not waited for it"));
    synchronise(Stream{});
    CHECK(refused(in) == "");

    // What is recorded copies in every replay.
    Graph graph(stream, uploads);
    CHECK(refused(in) == "");
    graph.replay(stream);
    CHECK(has(refused(in), ", replayed at test_streams.cpp:"));
    synchronise(stream);
    CHECK(refused(in) == "");

    // The end of a stream waits.
    {
      const OwnedStream gone;
      a.queue_upload(gone, in.elements());
      CHECK(has(refused(in), "upload at"));
    }
    CHECK(refused(in) == "");
  }
}

TEST_CASE("emulator: an event makes a stream wait for another, whatever else runs") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const SettingsScope scope({.seed = seed});
    const DeviceBuffer<float> a(1), b(1), c(1);
    const OwnedStream first, second, third;
    Event event, other;
    event.hold(second);  // never recorded: orders nothing
    launch(store, {}, first, a.data(), 3.0f);
    event.record(first);
    launch(store, {}, first, c.data(), 1.0f);
    event.hold(second);
    launch(copy, {}, second, a.data(), b.data());
    other.record(second);
    other.hold(third);
    launch(add, {}, third, a.data(), b.data());
    synchronise(third);
    CHECK(*b.data() == 6);
    if (seed == 0) CHECK(std::isnan(*c.data()));  // no one waited for it
    synchronise(first);
    CHECK(*c.data() == 1);
  }
}

/// Message that refuses a second stream which does `second` without waiting for a stream that does `first`.
template <class First, class Second>
std::string race(const First& first, const Second& second, bool orders = false) {
  std::string found;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    const OwnedStream one, two;
    first(one);
    Event event;
    event.record(one);
    if (orders) event.hold(two);
    second(two);
    const std::string error = error_in([&] {
      synchronise(one);
      synchronise(two);
    });
    if (seed == 0) found = error;
    CHECK((error == "") == (found == ""));
  }
  return found;
}

TEST_CASE("emulator: two streams that touch the same memory without an event are a race, in any order that they ran in") {
  DeviceBuffer<float> a(64), b(64);
  a.fill(0), b.fill(0);
  DeviceBuffer<unsigned> counters(2);
  counters.fill(0);
  const std::vector<float> host(64);
  const auto writes = [&](Stream stream) { launch(store, {}, stream, a.data(), 3.0f); };
  const auto reads = [&](Stream stream) { launch(copy, {}, stream, a.data(), b.data()); };
  const auto also_reads = [&](Stream stream) { launch(copy, {}, stream, a.data(), b.data() + 1); };
  const auto writes_next = [&](Stream stream) { launch(store, {}, stream, a.data() + 1, 3.0f); };
  const auto uploads = [&](Stream stream) { a.queue_upload(stream, host); };
  const auto fills = [&](Stream stream) { a.fill(0, stream); };
  const auto counts = [&](Stream stream) { launch(count, {}, stream, counters.data()); };
  const auto sets = [&](Stream stream) { launch(set, {}, stream, counters.data()); };

  const std::string error = race(writes, reads);
  CAPTURE(error);
  CHECK(has(error, "race between streams: launch at test_streams.cpp:"));
  CHECK(has(error, "reads bytes 0 to 4 of a buffer (load_fresh at test_streams.cpp:12) that launch at test_streams.cpp:"));
  CHECK(has(error, "writes (store_fresh at test_streams.cpp:11), and no event orders the two"));
  CHECK(has(race(reads, writes), "that launch at"));
  CHECK(has(race(writes, writes), "writes bytes 0 to 4"));
  CHECK(has(race(reads, uploads), "upload at test_streams.cpp:"));
  CHECK(has(race(fills, also_reads), "fill at test_streams.cpp:"));
  CHECK(has(race(counts, sets), "by an atomic"));
  CHECK(race(reads, also_reads) == "");
  CHECK(race(writes, writes_next) == "");
  CHECK(race(counts, counts) == "");
  CHECK(race(writes, reads, true) == "");
  CHECK(race(uploads, also_reads, true) == "");
}

TEST_CASE("emulator: streams made after one that was finished and has ended are two") {
  {
    OwnedStream gone;
    gone.finish();
  }
  const DeviceBuffer<float> a(1);
  const auto writes = [&](Stream stream) { launch(store, {}, stream, a.data(), 3.0f); };
  CHECK(has(race(writes, writes), "race between streams"));
}

TEST_CASE("emulator: what the host has waited for comes before what it queues then, and before nothing else") {
  DeviceBuffer<float> a(1), b(1);
  const OwnedStream one, two, idle;
  launch(nothing, {}, idle);  // it does not know what follows, so that is remembered
  launch(store, {}, one, a.data(), 3.0f);
  synchronise(one);
  launch(copy, {}, two, a.data(), b.data());
  synchronise(two);
  CHECK(*b.data() == 3);
  // Queued before the host waited: the wait says nothing of it.
  launch(store, {}, one, a.data(), 4.0f);
  launch(copy, {}, two, a.data(), b.data());
  synchronise(one);
  CHECK(has(error_in([&] { synchronise(two); }), "race between streams"));
  // The default stream does not wait for others, nor they for it.
  launch(store, {}, Stream{}, a.data(), 5.0f);
  launch(copy, {}, two, a.data(), b.data());
  CHECK(has(error_in([&] { synchronise(two); }), "race between streams"));
  launch(store, {}, Stream{}, a.data(), 6.0f);
  synchronise(Stream{});
  launch(copy, {}, two, a.data(), b.data());
  CHECK(b.download()[0] == 6);
}

TEST_CASE("emulator: an event is asked without waiting, and says when a library that queues on the stream is done") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    const DeviceBuffer<float> a(2);
    const OwnedStream stream, other;
    LibraryStream for_library(stream);
    OutsideStream& queue = *static_cast<OutsideStream*>(for_library.handle());
    Event never, before, after;
    CHECK(never.has_passed());
    launch(store, {}, stream, a.data(), 3.0f);
    before.record(stream);
    int n_calls = 0;
    bool is_done = false;
    queue.queue("a library", {{a.data(), 4, false}, {a.data() + 1, 4, true}}, [&] {
      return [&] {
        ++n_calls;
        if (is_done) a.data()[1] = 2 * a.data()[0];
        return is_done;
      };
    });
    launch(add, {}, stream, a.data(), a.data() + 1);
    after.record(stream);
    CHECK(n_calls == 0);
    CHECK(before.has_passed());
    CHECK_FALSE(after.has_passed());
    CHECK(n_calls > 0);
    // Another stream goes on meanwhile.
    const DeviceBuffer<float> b(1);
    launch(store, {}, other, b.data(), 1.0f);
    synchronise(other);
    CHECK(*b.data() == 1);
    is_done = true;
    CHECK(after.has_passed());
    CHECK(a.data()[1] == 9);
    // The host has waited for it, so what it queues now comes after.
    launch(copy, {}, other, a.data() + 1, b.data());
    synchronise(other);
    CHECK(*b.data() == 9);
  }
}

TEST_CASE("emulator: a graph of kernels, a library and marks does all of it anew in every replay") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    const DeviceBuffer<float> a(2);
    const OwnedStream stream;
    LibraryStream for_library(stream);
    OutsideStream& queue = *static_cast<OutsideStream*>(for_library.handle());
    Event before, after;
    int n_begun = 0;
    bool is_done = false;
    CHECK_FALSE(queue.is_captured());
    CHECK_THROWS_AS(before.record_in_graph(stream), DeviceError);
    Graph graph(stream, [&] {
      CHECK(queue.is_captured());
      launch(store, {}, stream, a.data(), 3.0f);
      before.record_in_graph(stream);
      queue.queue("a library", {{a.data(), 4, false}, {a.data() + 1, 4, true}}, [&] {
        ++n_begun;
        return [&, number = n_begun] {
          if (is_done) a.data()[1] = static_cast<float>(number) * a.data()[0];
          return is_done;
        };
      });
      after.record_in_graph(stream);
    });
    CHECK(n_begun == 0);
    CHECK(after.has_passed());
    for (int replay = 1; replay <= 3; ++replay) {
      is_done = false;
      graph.replay(stream);
      CHECK(n_begun == replay);
      CHECK(before.has_passed());
      CHECK_FALSE(after.has_passed());
      is_done = true;
      CHECK(after.has_passed());
      CHECK(a.data()[1] == 3.0f * static_cast<float>(replay));
    }
  }
}

TEST_CASE("emulator: what a library reads and writes is checked, and races with other streams") {
  const DeviceBuffer<float> a(2);
  const OwnedStream stream, other;
  LibraryStream for_library(stream);
  OutsideStream& queue = *static_cast<OutsideStream*>(for_library.handle());
  launch(store, {}, other, a.data(), 3.0f);
  const auto at_once = [] { return [] { return true; }; };
  queue.queue("a library", {{a.data(), 4, false}}, at_once);
  synchronise(other);
  CHECK(has(error_in([&] { synchronise(stream); }), "no event orders the two"));
  queue.queue("a library", {{a.data(), 4096, true}}, at_once);
  CHECK(has(error_in([&] { synchronise(stream); }), "a library"));
}

TEST_CASE("emulator: launches of two streams overlap by their own streams alone") {
  const DeviceBuffer<float> a(1), b(1);
  const OwnedStream one, two;
  launch(store, {}, one, a.data(), 1.0f);
  launch(store, {}, two, b.data(), 1.0f);
  launch(nothing, {.overlaps = true}, two);
  launch(copy, {.overlaps = true}, one, a.data(), a.data());
  synchronise(two);
  CHECK(has(error_in([&] { synchronise(one); }), "no wait_for_previous_launch()"));
}

TEST_CASE("emulator: a launch continues with the scratch memory of its own stream") {
  const DeviceBuffer<float> scratch(1, MemoryUse::Scratch), other(1, MemoryUse::Scratch), out(1);
  const OwnedStream one, two;
  launch(store, {}, one, scratch.data(), 1.0f);
  synchronise(one);
  launch(store, {}, two, other.data(), 2.0f);
  synchronise(two);
  launch(copy, {.continues = true}, one, scratch.data(), out.data());
  CHECK(out.download()[0] == 1);
}

void reads_past_the_end(const float* from) { load_fresh(from + 1); }

TEST_CASE("emulator: an error is thrown by the wait that finds it, what was queued is lost, the next launch is well") {
  const DeviceBuffer<float> a(1), b(1);
  const OwnedStream one, two;
  launch(reads_past_the_end, {}, one, a.data());
  launch(store, {}, one, b.data(), 1.0f);
  Event event;
  event.record(one);
  event.hold(two);
  launch(store, {}, two, a.data(), 1.0f);
  CHECK(has(error_in([&] { synchronise(two); }), "load_fresh reads bytes 4 to 8 of a buffer of 4"));
  synchronise(one);
  CHECK(std::isnan(*b.data()));
  launch(store, {}, one, b.data(), 2.0f);
  synchronise(one);
  CHECK(*b.data() == 2);
  // A destructor keeps it for the next word.
  {
    const OwnedStream ends;
    launch(reads_past_the_end, {}, ends, a.data());
  }
  CHECK(has(error_in([&] { launch(store, {}, one, b.data(), 3.0f); }), "load_fresh reads bytes 4 to 8"));
  CHECK(error_in([&] { synchronise(one); }) == "");
  CHECK(has(error_in([&] { launch(nothing, {.block = {1025}}, one); }), "1 to 1024 threads"));
}

TEST_CASE("emulator: a graph records and does not run, every replay runs, copies and counts") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const SettingsScope scope({.seed = seed});
    std::vector<float> in{1}, out{0};
    DeviceBuffer<float> a(1), sum(1);
    sum.fill(0);
    const OwnedStream stream, other;
    synchronise(Stream{});
    const std::int64_t uploaded = traffic().bytes_uploaded, launches = traffic().n_launches, replays = traffic().n_replays;
    Graph graph(stream, [&] {
      a.queue_upload(stream, in);
      launch(add, {}, stream, a.data(), sum.data());
      sum.queue_download(stream, out);
    });
    synchronise(stream);
    CHECK(*sum.data() == 0);
    CHECK(traffic().bytes_uploaded == uploaded);
    CHECK(traffic().n_launches == launches);
    for (const float x : {1.0f, 2.0f, 5.0f}) {
      in[0] = x;
      graph.replay(stream);
      CHECK(std::isnan(*a.data()) == (x == 1));
      synchronise(stream);
    }
    CHECK(out[0] == 8);
    CHECK(traffic().bytes_uploaded - uploaded == 3 * 4);
    CHECK(traffic().n_launches == launches);
    CHECK(traffic().n_replays - replays == 3);
    // On another stream its operations are those of that stream.
    graph.replay(stream);
    graph.replay(other);
    CHECK(has(error_in([&] { synchronise(stream), synchronise(other); }), "replayed at test_streams.cpp:"));
  }
}

TEST_CASE("emulator: what a capture cannot record is refused, and the stream is well again") {
  DeviceBuffer<float> a(1);
  const std::vector<float> host{1};
  const OwnedStream stream;
  Event event;
  const auto capture = [&](const auto& queue) { return error_in([&] { Graph(stream, [&] { queue(); }); }); };
  CHECK(has(capture([&] { DeviceBuffer<float>{1}; }), "an allocation while this host thread captures a stream"));
  CHECK(has(capture([&] { a.upload(host); }), "a copy that blocks while"));
  CHECK(has(capture([&] { a.download(); }), "a copy that blocks while"));
  CHECK(has(capture([&] { synchronise(stream); }), "the stream is being captured"));
  CHECK(has(capture([&] { event.record(stream); }), "captures one stream"));
  CHECK(has(error_in([&] { Graph(Stream{}, [] {}); }), "the default stream cannot be captured"));
  CHECK(capture([&] { a.queue_upload(stream, host); }) == "");
  a.queue_upload(stream, host);
  synchronise(stream);
  CHECK(*a.data() == 1);
}

}  // namespace
}  // namespace tree_attn::emulated::streams_test
