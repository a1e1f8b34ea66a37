// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The C interface: DLPack tensors as views, errors as codes with a line.
#include "distributed/interface/tree_attn.h"

#include "distributed/exchange/host_blocks.hpp"
#include "distributed/interface/attention.hpp"
#include "distributed/interface/c_callbacks.hpp"
#include "distributed/interface/dlpack_view.hpp"
#include "reference/data/input_error.hpp"
#include "reference/decode/backend.hpp"
#include "reference/energy/moments.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/error_bound.hpp"
#include "reference/state/require_seen.hpp"
#include "reference/tensor/float_environment.hpp"
#if defined(TREE_ATTN_INTERFACE_HAS_MPI)
#include "distributed/interface/mpi_attention.hpp"
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
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

thread_local std::string last_error;

int failed(ta_status status, const char* what) {
  try {
    last_error = what;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status;
}

/// Calls the body in the default floating-point environment, and turns what it throws into a status.
template <class Body>
int guarded(const Body& body) {
  const FloatEnvironment environment;
  try {
    body();
    return TA_OK;
  } catch (const TransportError& error) {
    return failed(error.kind == TransportError::Kind::kCallback ? TA_CALLBACK : TA_TRANSPORT, error.what());
  } catch (const InputError& error) {
    return failed(TA_INVALID, error.what());
  } catch (const std::invalid_argument& error) {
    return failed(TA_INVALID, error.what());
  } catch (const std::out_of_range& error) {
    return failed(TA_RANGE, error.what());
  } catch (const std::bad_alloc&) {
    return failed(TA_NO_MEMORY, "memory ran out");
  } catch (const std::length_error&) {  // more elements than any memory has
    return failed(TA_NO_MEMORY, "memory ran out");
  } catch (const std::logic_error& error) {  // a call out of its turn
    return failed(TA_INVALID, error.what());
  } catch (const std::exception& error) {
    return failed(TA_INTERNAL, error.what());
  } catch (...) {
    return failed(TA_INTERNAL, "an exception of an unknown type");
  }
}

/// Calls the body, as above, for an object that is open.
template <class Body>
int guarded(const ta_attention* attention, const Body& body) {
  return guarded([&] {
    require(attention != nullptr, "attention is null");
    body();
  });
}

/// Rule of the keys that a query sees, the learned sinks, and what becomes of scores.
struct Asked {
  SeenRule rule;
  std::vector<float> sink;
  Mask mask;
  double softcap = 0;
};

/// A mask of booleans, or of F32.
Mask mask_of(const DLManagedTensor* managed, const Outputs& outputs) {
  require(managed != nullptr, "mask is null");
  DLManagedTensor tensor = *managed;
  DLDataType& type = tensor.dl_tensor.dtype;
  const bool is_boolean = (type.code == kDLBool || type.code == kDLUInt) && type.bits == 8 && type.lanes == 1;
  if (is_boolean) type.code = kDLFloat8_e4m3fn;  // of as many bytes
  const TensorView view = view_of(&tensor, "mask", 4);
  require(is_boolean || view.dtype == DType::F32, "mask is ", name_of(view.dtype), "; booleans and F32 are taken");
  outputs.require_apart(view, "mask");
  return {view.data, is_boolean, view.shape, {view.stride[0], view.stride[1], view.stride[2]}};
}

/// @param heads n_h
Asked asked(const ta_seen* seen, std::int64_t heads, const Outputs& outputs) {
  if (seen == nullptr) return {};
  require(seen->sinks <= 0 || seen->window != 0, "seen has ", seen->sinks, " sinks but no window: every key is seen");
  Asked all{{.causal = seen->causal != 0, .window = seen->window, .sinks = seen->sinks}, {}, {}, seen->softcap};
  if (seen->mask != nullptr) all.mask = mask_of(seen->mask, outputs);
  if (seen->sink == nullptr) return all;
  const TensorView sink = view_of(seen->sink, "sink", 1);
  require(sink.shape[3] == heads, "sink has ", sink.shape[3], " elements, but there are ", heads, " heads");
  outputs.require_apart(sink, "sink");
  all.sink.resize(static_cast<std::size_t>(heads));
  load_row(sink, 0, 0, 0, all.sink.data());
  return all;
}

LseForm form_of(int form) {
  require(form >= TA_NATURAL && form <= TA_NATURAL_OR_INF_EMPTY, "form is ", form, "; 0, 1 or 2");
  return form == TA_NATURAL ? LseForm::kNatural : form == TA_BASE_TWO ? LseForm::kBaseTwo : LseForm::kNaturalOrInfEmpty;
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

/// The factor of q.k, if it is given.
std::optional<double> scale_of(double scale, int has_scale) {
  require(std::isfinite(scale), "scale is ", scale, "; a finite number is needed");
  return scale == 0 && has_scale == 0 ? std::nullopt : std::optional(scale);
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

/// The last two axes, in double.
Matrix matrix_of(const TensorView& view) {
  Matrix matrix(view.shape[2], view.shape[3]);
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    load_row(view, 0, 0, i, row.data());
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) matrix(i, j) = row[static_cast<std::size_t>(j)];
  }
  return matrix;
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

const char* ta_error() { return last_error.c_str(); }

int ta_attend(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
              const ta_seen* seen, const DLManagedTensor* out, const DLManagedTensor* lse, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    const Outputs outputs = out_and_lse(out, lse, {qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]});
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(qs.shape[0]), ks.shape[2]);
    const double factor = scale_of(scale, has_scale).value_or(1 / std::sqrt(static_cast<double>(qs.shape[3])));
    const Asked all = asked(seen, qs.shape[1], outputs);
    require_seen("ta_attend", all.rule, all.sink.size(), all.mask, all.softcap, {qs.shape[0], qs.shape[1], qs.shape[2]},
                 ks.shape[2]);
    const Step step{qs, lengths, all.rule, all.sink, all.mask, all.softcap};
    const OpenShard shard = open_shard(cpu_backend(), qs, {.k = ks, .v = vs}, lengths, factor);
    const std::span<float> states = shard.session->decode(step).host().fold();
    const std::int64_t n_rows = qs.shape[0] * qs.shape[1] * qs.shape[2], size = state_size(vs.shape[3]);
    for (std::int64_t row = 0; !all.sink.empty() && row < n_rows; ++row)
      add_sink(states.data() + row * size, step.sink_of(row), vs.shape[3]);
    const DecodeOutput output = finish_rows(states, n_rows, vs.shape[3]);
    write(outputs, output.out, output.lse);
  });
}

int ta_oracle(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, const DLManagedTensor* zeta,
              double scale, const ta_seen* seen, const DLManagedTensor* out, const DLManagedTensor* lse,
              const DLManagedTensor* energy, const DLManagedTensor* gradient, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    AttentionOptions options{.scale = scale_of(scale, has_scale)};
    if (zeta != nullptr) options.zeta = view_of(zeta, "zeta", 4);
    require(zeta != nullptr || (energy == nullptr && gradient == nullptr), "zeta is null, but energy or gradient is wanted");
    const std::array<std::int64_t, 4> shape{qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]},
        rows{shape[0], shape[1], shape[2], 1};
    Outputs outputs;
    std::vector<const std::vector<double>*> results;
    AttentionResult result;
    const auto add = [&](const DLManagedTensor* managed, const char* name, bool scalars, const std::vector<double>& from) {
      if (managed == nullptr) return;
      outputs.add(managed, name, scalars ? 3 : 4, scalars ? rows : shape, scalars ? Rows::kScalars : Rows::kVectors);
      outputs[outputs.size() - 1].require_double();
      results.push_back(&from);
    };
    add(out, "out", false, result.out), add(lse, "lse", true, result.lse);
    add(energy, "energy", true, result.energy), add(gradient, "gradient", false, result.gradient);
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    if (options.zeta) outputs.require_apart(*options.zeta, "zeta");
    const Asked all = asked(seen, shape[1], outputs);
    options.rule = all.rule, options.sink.assign(all.sink.begin(), all.sink.end());
    options.mask = all.mask, options.softcap = all.softcap;
    result = attention(qs, ks, vs, options);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].write(results[i]->data());
  });
}

int ta_error_bound(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
                   const ta_seen* seen, double n_additions, double n_rescalings, double output_roundoff,
                   const DLManagedTensor* bound, int has_scale) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 4), ks = view_of(k, "k", 4), vs = view_of(v, "v", 4);
    check_shapes(qs, ks, vs);
    Outputs outputs;
    outputs.add(bound, "bound", 4, {qs.shape[0], qs.shape[1], qs.shape[2], vs.shape[3]});
    outputs[0].require_double();
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    for (const double x : {n_additions, n_rescalings, output_roundoff})
      require(std::isfinite(x) && x >= 0, "n_additions is ", n_additions, ", n_rescalings ", n_rescalings,
              " and output_roundoff ", output_roundoff, "; none is negative");
    ErrorModel model = tree_decode_model(ks.shape[2]);
    if (n_additions > 0) model.n_additions = n_additions;
    model.n_rescalings = n_rescalings, model.output_roundoff = output_roundoff;
    const Asked all = asked(seen, qs.shape[1], outputs);
    const AttentionOptions options{.scale = scale_of(scale, has_scale),
                                   .rule = all.rule,
                                   .sink = std::vector<double>(all.sink.begin(), all.sink.end()),
                                   .mask = all.mask,
                                   .softcap = all.softcap};
    outputs[0].write(error_bound(qs, ks, vs, options, model).out.data());
  });
}

int ta_moments(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, const DLManagedTensor* zeta,
               const DLManagedTensor* mean, const DLManagedTensor* covariance) {
  return guarded([&] {
    const TensorView qs = view_of(q, "q", 1), ks = view_of(k, "k", 2), vs = view_of(v, "v", 2);
    const std::int64_t d_v = vs.shape[3];
    require(ks.shape[2] == vs.shape[2] && ks.shape[3] == qs.shape[3], "q has ", qs.shape[3], " elements, k is [",
            ks.shape[2], ", ", ks.shape[3], "] and v [", vs.shape[2], ", ", d_v, "]");
    Vector source = Vector::Zero(d_v);
    Outputs outputs;
    outputs.add(mean, "mean", 1, {1, 1, 1, d_v});
    outputs.add(covariance, "covariance", 2, {1, 1, d_v, d_v});
    for (std::size_t i = 0; i < 2; ++i) outputs[i].require_double();
    outputs.require_apart(qs, "q"), outputs.require_apart(ks, "k"), outputs.require_apart(vs, "v");
    if (zeta != nullptr) {
      const TensorView zetas = view_of(zeta, "zeta", 1);
      require(zetas.shape[3] == d_v, "zeta has ", zetas.shape[3], " elements; expected ", d_v);
      outputs.require_apart(zetas, "zeta");
      source = matrix_of(zetas).row(0);
    }
    const Vector query = matrix_of(qs).row(0);
    const Matrix K = matrix_of(ks), V = matrix_of(vs);
    const SeenValues seen = seen_values(query, K, V, source);
    const Vector first = seen.V.transpose() * seen.P;
    const Matrix second = tree_attn::covariance(query, K, V, source);  // symmetric, so its layout does not matter
    outputs[0].write(first.data());
    outputs[1].write(second.data());
  });
}

int ta_merge(const DLManagedTensor* o1, const DLManagedTensor* lse1, const DLManagedTensor* o2, const DLManagedTensor* lse2,
             int form, const DLManagedTensor* out, const DLManagedTensor* lse) {
  return guarded([&] {
    const std::array o{view_of(o1, "o1", 4), view_of(o2, "o2", 4)};
    const std::array l{view_of(lse1, "lse1", 3, Rows::kScalars), view_of(lse2, "lse2", 3, Rows::kScalars)};
    const auto [b, n_h, n, d_v] = o[0].shape;
    const std::array<std::int64_t, 4> rows{b, n_h, n, 1};
    require(o[1].shape == o[0].shape && l[0].shape == rows && l[1].shape == rows, "o1 is [", b, ", ", n_h, ", ", n, ", ",
            d_v, "], and o2 has other axes, or lse1 or lse2 is not [", b, ", ", n_h, ", ", n, "]");
    require(lse != nullptr, "lse is null");
    const LseForm of = form_of(form);
    const Outputs outputs = out_and_lse(out, lse, o[0].shape);
    constexpr std::array kNames{"o1", "o2", "lse1", "lse2"};
    for (std::size_t i = 0; i < 2; ++i) outputs.require_apart(o[i], kNames[i]), outputs.require_apart(l[i], kNames[2 + i]);
    std::array<std::vector<float>, 2> states;
    for (std::size_t i = 0; i < 2; ++i) {
      states[i].resize(static_cast<std::size_t>(b * n_h * n * state_size(d_v)));
      float* at = states[i].data();
      for (std::int64_t row = 0; row < b * n_h; ++row, at += n * state_size(d_v))
        set_head(at, o[i], l[i], row / n_h, row % n_h, of);
    }
    const std::int64_t n_rows = b * n_h * n, size = state_size(d_v);
    std::vector<std::array<bool, 2>> empty(static_cast<std::size_t>(n_rows));
    for (std::int64_t row = 0; row < n_rows; ++row) {
      float *const left = states[0].data() + row * size, *const right = states[1].data() + row * size;
      empty[static_cast<std::size_t>(row)] = {is_empty(left), is_empty(right)};
      merge(left, right, d_v);
    }
    DecodeOutput output = finish_rows(states[0], n_rows, d_v);
    // The other part of an empty one is returned as it was: its weight, and the quotient by it, would round.
    for (std::int64_t row = 0; row < n_rows; ++row) {
      const auto [left, right] = empty[static_cast<std::size_t>(row)];
      if (left == right) continue;
      const std::size_t from = left ? 1 : 0;
      load_row(o[from], row / (n_h * n), row / n % n_h, row % n, output.out.data() + row * d_v);
      if (of != LseForm::kBaseTwo) load_row(l[from], row / (n_h * n), row / n % n_h, row % n, output.lse.data() + row);
    }
    write(outputs, output.out, output.lse);
  });
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
