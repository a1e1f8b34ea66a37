// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention that a C caller holds open.
#include "distributed/interface/tree_attn.h"

#include "distributed/interface/attention.hpp"
#include "distributed/interface/c_arguments.hpp"
#include "distributed/interface/c_callbacks.hpp"
#if defined(TREE_ATTN_INTERFACE_HAS_MPI)
#include "distributed/interface/mpi_attention.hpp"
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

/// Handle that ta_open() opens.
struct ta_attention {
  tree_attn::Attention attention;
  tree_attn::AttentionShape shape;
  tree_attn::dlpack::OfBackend device{attention.platform()};
  tree_attn::TensorView started{};  ///< q of a step that was begun, whose data may be gone
};

namespace tree_attn {
namespace {

using namespace dlpack;  // NOLINT: arguments are such tensors

/// Calls the body, as guarded() does, for an object that is open.
template <class Body>
int guarded(const ta_attention* attention, const Body& body) {
  return tree_attn::guarded([&] {
    require(attention != nullptr, "attention is null");
    body();
  });
}

/// Scales [b, n_kv]; null: none.
std::vector<float> scales_of(const DLManagedTensor* managed, const char* name, const AttentionShape& shape) {
  if (managed == nullptr) return {};
  const TensorView view = view_of(managed, name, 2);
  require(view.shape == std::array<std::int64_t, 4>{1, 1, shape.batch, shape.kv_heads}, name, " is [", view.shape[2], ", ",
          view.shape[3], "]; expected [", shape.batch, ", ", shape.kv_heads, "]");
  std::vector<float> scales(static_cast<std::size_t>(shape.batch * shape.kv_heads));
  for (std::int64_t i = 0; i < shape.batch; ++i) load_row(view, 0, 0, i, scales.data() + i * shape.kv_heads);
  return scales;
}

AttentionShape shape_of(const ta_setup& setup) {
  const auto dtype = [](const char* name, DLDataType type) { return type.bits == 0 ? DType::F32 : dtype_of(name, type); };
  return {.dtype = dtype("key_type", setup.key_type),
          .value_dtype = dtype("value_type", setup.value_type.bits == 0 ? setup.key_type : setup.value_type),
          .batch = setup.batch,
          .heads = setup.heads,
          .kv_heads = setup.kv_heads,
          .head_dim = setup.head_dim,
          .value_dim = setup.value_dim,
          .values_in_keys = setup.values_in_keys != 0,
          .portable = setup.portable != 0};
}

/// Ranges of n ranks that end where a list says; none without one.
std::vector<KeyRange> ranges_of(const std::int64_t* ends, int n_ranks) {
  std::vector<KeyRange> ranges;
  for (int rank = 0; ends != nullptr && rank < n_ranks; ++rank)
    ranges.push_back({ranges.empty() ? 0 : ranges.back().end, std::min(ends[rank], kOpenEnd)});
  return ranges;
}

AttentionSetup setup_of(const ta_setup& setup, const AttentionShape& shape, int n_ranks) {
  require(setup.timeout >= 0, "timeout is ", setup.timeout, "; a positive number of seconds, or 0 for 60");
  AttentionSetup all{.scale = scale_of(setup.scale, setup.has_scale),
                     .ranks_per_node = setup.ranks_per_node,
                     .capacity = setup.capacity,
                     .pages = {setup.n_pages, setup.page_window, setup.page_sinks},
                     .most_queries = setup.most_queries};
  all.ranges = ranges_of(setup.range_ends, n_ranks);
  all.compares_lengths = setup.skips_comparison == 0;
  if (setup.no_shared_memory != 0) all.shares_memory = false;
  all.scales = {scales_of(setup.k_scale, "k_scale", shape), scales_of(setup.v_scale, "v_scale", shape)};
  if (setup.algorithm != nullptr) all.algorithm = setup.algorithm;
  if (setup.backend != nullptr) all.backend = setup.backend;
  if (setup.transport != nullptr) all.transport = setup.transport;
  if (setup.n_threads != 0) all.n_threads = setup.n_threads;
  return all;
}

/// Ranks of a setup that may be refused; 1 where no call says how many.
int n_ranks_of(const ta_setup& setup) {
  int n = setup.callbacks != nullptr ? setup.callbacks->size : 1;
#if defined(TREE_ATTN_INTERFACE_HAS_MPI)
  if (setup.comm != nullptr && MpiRanks::is_running() && *static_cast<const MPI_Comm*>(setup.comm) != MPI_COMM_NULL)
    MPI_Comm_size(*static_cast<const MPI_Comm*>(setup.comm), &n);
#endif
  return n;
}

Attention open(const ta_setup& setup, const AttentionShape& shape, const AttentionSetup& all) {
  const double seconds = setup.timeout > 0 ? setup.timeout : 60;
  if (setup.callbacks != nullptr) {
    Attention attention(messages_of(*setup.callbacks, seconds), shape, all);
    attention.transport().ranks().deadline().set_seconds(seconds);
    return attention;
  }
  if (setup.comm == nullptr) return Attention(shape, all);
#if defined(TREE_ATTN_INTERFACE_HAS_MPI)
  const MPI_Comm comm = *static_cast<const MPI_Comm*>(setup.comm);
  return open_attention(comm, shape, all, seconds);
#else
  throw std::invalid_argument("comm: this library was built without MPI");
#endif
}

/// The arguments of a call that all ranks make, checked. If this rank refuses them, it takes part by refuse().
template <class Check>
auto checked(Attention& attention, Refused call, const Check& check) {
  try {
    return check();
  } catch (const std::invalid_argument& error) {
    attention.refuse(error.what(), call);
  }
}

}  // namespace
}  // namespace tree_attn

using namespace tree_attn;  // NOLINT: what follows is C

const char* ta_version() { return TREE_ATTN_VERSION; }

const char* ta_mpi() {
#if defined(TREE_ATTN_INTERFACE_HAS_MPI)
  static const std::string version = [] {
    std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    MPI_Get_library_version(text.data(), &length);  // also before MPI_Init
    return text.substr(0, text.find('\0'));
  }();
  return version.c_str();
#else
  return "";
#endif
}

int ta_open(const ta_setup* setup, ta_attention** attention) {
  if (attention != nullptr) *attention = nullptr;
  return guarded([&] {
    require(setup != nullptr && attention != nullptr, "setup or attention is null");
    constexpr std::int64_t kSize = sizeof(ta_setup);
    require(setup->size == kSize, "setup has a size of ", setup->size, " bytes, but a ta_setup of this library has ", kSize);
    require(setup->comm == nullptr || setup->callbacks == nullptr, "comm and callbacks are both given");
    if (setup->callbacks != nullptr) require_comm(*setup->callbacks);
    AttentionShape shape;
    AttentionSetup all;
    const auto refusal = refusal_of(setup->comm != nullptr || setup->callbacks != nullptr, [&] {
      require(setup->refusal == nullptr, setup->refusal);
      shape = shape_of(*setup), all = setup_of(*setup, shape, n_ranks_of(*setup));
    });
    all.refusal = refusal.value_or("");
    *attention = new ta_attention{open(*setup, shape, all), shape};
  });
}

void ta_close(ta_attention* attention) { delete attention; }

int ta_abandon(ta_attention* attention) {
  return guarded(attention, [&] { attention->attention.abandon(); });
}

int ta_use_stream(ta_attention* attention, void* stream, int waits) {
  return guarded(attention, [&] { attention->attention.use_stream(waits != 0 ? std::nullopt : std::optional(stream)); });
}

int ta_append(ta_attention* attention, int64_t entry, int64_t n, const DLManagedTensor* k, const DLManagedTensor* v) {
  return guarded(attention, [&] {
    const Attention::OnDevice on_device(attention->attention);
    const AttentionShape& shape = attention->shape;
    const auto view = [&](const DLManagedTensor* managed, const char* name, DType dtype, std::int64_t d) {
      if (managed == nullptr) return TensorView{nullptr, dtype, {1, shape.kv_heads, n, d}, {}};
      const bool has_batch = managed->dl_tensor.ndim == 4;
      const TensorView given = view_of(managed, name, has_batch ? 4 : 3, Rows::kVectors, &attention->device);
      require(given.shape[0] == 1, name, " has ", given.shape[0], " batch entries; one is appended to");
      require(given.shape[2] == n, name, " has ", given.shape[2], " positions, but n is ", n);
      return given;
    };
    const auto [keys, values] = checked(attention->attention, Refused::kAppend, [&] {
      require(n >= 0, "n is ", n);
      require(!shape.values_in_keys || v == nullptr, "v is not null, but values are the first components of the keys");
      const TensorView of_keys = view(k, "k", shape.dtype, shape.head_dim);
      return std::pair(of_keys, shape.values_in_keys ? of_keys.components(shape.value_dim)
                                                     : view(v, "v", shape.value_dtype, shape.value_dim));
    });
    attention->attention.append(entry, keys, values);
    if ((!keys.on_device && !values.on_device) || attention->attention.stream()) return;
    // The caller may write to its tensors, or drop them, in another stream.
    attention->device.blocks->stream().follow_default();
    attention->device.blocks->stream().wait();
  });
}

int ta_truncate(ta_attention* attention, int64_t entry, int64_t n) {
  return guarded(attention, [&] { attention->attention.truncate(entry, n); });
}

int ta_share(ta_attention* attention, int64_t from, int64_t to, int64_t n) {
  return guarded(attention, [&] { attention->attention.share(from, to, n); });
}

int ta_reshard(ta_attention* attention, int32_t n, const int64_t* range_ends) {
  return guarded(attention, [&] {
    const std::vector<KeyRange> ranges = checked(attention->attention, Refused::kMove, [&] {
      const int size = attention->attention.transport().size();
      require(n >= 1 && n <= size, "n is ", n, "; from 1 to the ", size, " ranks");
      const bool is_dealt = attention->attention.cache().leaves().order() == LeafOrder::kDealt;
      require(is_dealt == (range_ends == nullptr), "the leaves are ", is_dealt ? "dealt" : "those of ranges",
              ", and range_ends is ", range_ends == nullptr ? "null" : "given");
      return is_dealt ? dealt_ranges(n) : ranges_of(range_ends, n);
    });
    attention->attention.reshard(ranges);
  });
}

int ta_length(const ta_attention* attention, int64_t entry, int64_t* length) {
  return guarded([&] {
    require(attention != nullptr && length != nullptr, "attention or length is null");
    const auto lengths = attention->attention.lengths();
    require<std::out_of_range>(entry >= 0 && entry < std::ssize(lengths), "batch entry ", entry, " of ", lengths.size());
    *length = lengths[static_cast<std::size_t>(entry)];
  });
}

int ta_holds(const ta_attention* attention, int64_t position, int* holds) {
  return guarded([&] {
    require(attention != nullptr && holds != nullptr, "attention or holds is null");
    *holds = attention->attention.holds(position) ? 1 : 0;
  });
}

namespace {

/// A step of all heads on every rank, or of those of this rank.
int step(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen, const DLManagedTensor* out,
         const DLManagedTensor* lse, OutputPart part) {
  return guarded(attention, [&] {
    const Attention::OnDevice on_device(attention->attention);
    const AttentionShape& shape = attention->shape;
    const OfBackend& device = attention->device;
    const bool by_heads = part == OutputPart::kHeads;
    const auto [qs, outputs, all] = checked(attention->attention, Refused::kStep, [&] {
      const TensorView queries = view_of(q, "q", 4, Rows::kVectors, &device);
      const std::int64_t n_h = shape.heads / (by_heads ? attention->attention.transport().size() : 1);
      Outputs written = out_and_lse(out, lse, {shape.batch, n_h, queries.shape[2], shape.value_dim}, &device);
      written.require_apart(queries, "q"), written.require_beside(queries, "q");
      Asked rule = asked(seen, shape.heads, written);
      return std::tuple(queries, std::move(written), std::move(rule));
    });
    Attention& of = attention->attention;
    const OutputView output = by_heads ? of.step_by_heads(qs, all.rule, all.sink, all.mask, all.softcap)
                                       : of.step(qs, all.rule, all.sink, all.mask, all.softcap);
    write(outputs, output, device, of.stream());
  });
}

}  // namespace

int ta_step(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen, const DLManagedTensor* out,
            const DLManagedTensor* lse) {
  return step(attention, q, seen, out, lse, OutputPart::kAll);
}

int ta_step_by_heads(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen, const DLManagedTensor* out,
                     const DLManagedTensor* lse) {
  return step(attention, q, seen, out, lse, OutputPart::kHeads);
}

int ta_start(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen) {
  return guarded(attention, [&] {
    const auto [qs, all] = checked(attention->attention, Refused::kStep, [&] {
      const TensorView queries = view_of(q, "q", 4, Rows::kVectors, &attention->device);
      return std::pair(queries, asked(seen, attention->shape.heads, {}));
    });
    attention->attention.start(qs, all.rule, all.sink, all.mask, all.softcap);
    attention->started = qs;
  });
}

int ta_progress(ta_attention* attention, int* done) {
  return guarded(attention, [&] {
    const bool is_done = attention->attention.progress();
    if (done != nullptr) *done = is_done ? 1 : 0;
  });
}

int ta_finish(ta_attention* attention, const DLManagedTensor* out, const DLManagedTensor* lse) {
  return guarded(attention, [&] {
    const Attention::OnDevice on_device(attention->attention);
    const AttentionShape& shape = attention->shape;
    const TensorView& q = attention->started;
    const Outputs outputs =
        out_and_lse(out, lse, {shape.batch, shape.heads, q.shape[2], shape.value_dim}, &attention->device);
    outputs.require_beside(q, "q");
    write(outputs, attention->attention.finish(), attention->device, attention->attention.stream());
  });
}

int ta_combine(ta_attention* attention, const DLManagedTensor* o, const DLManagedTensor* lse, int form, int by_heads,
               const DLManagedTensor* out, const DLManagedTensor* out_lse) {
  return guarded(attention, [&] {
    const Attention::OnDevice on_device(attention->attention);
    const OfBackend& device = attention->device;
    const auto [os, lses, of, outputs] = checked(attention->attention, Refused::kStep, [&] {
      const TensorView values = view_of(o, "o", 4, Rows::kVectors, &device),
                       scalars = view_of(lse, "lse", 3, Rows::kScalars, &device);
      std::array<std::int64_t, 4> shape = values.shape;
      if (by_heads != 0) shape[1] /= attention->attention.transport().size();
      Outputs written = out_and_lse(out, out_lse, shape, &device);
      written.require_apart(values, "o"), written.require_apart(scalars, "lse");
      written.require_beside(values, "o"), written.require_beside(scalars, "lse");
      return std::tuple(values, scalars, form_of(form), std::move(written));
    });
    const OutputPart part = by_heads != 0 ? OutputPart::kHeads : OutputPart::kAll;
    write(outputs, attention->attention.combine(os, lses, part, of), device, attention->attention.stream());
  });
}

int ta_refuse(ta_attention* attention, const char* line, int call) {
  return guarded([&] {
    require(attention != nullptr && line != nullptr, "attention or line is null");
    require(call >= TA_OF_STEP && call <= TA_OF_RESHARD, "call is ", call, "; 0, 1 or 2");
    attention->attention.refuse(line, static_cast<Refused>(call));
  });
}
