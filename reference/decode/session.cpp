// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The checks that all sessions share.
#include "reference/decode/session.hpp"

#include "reference/decode/kv_cache.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/state/require_seen.hpp"
#include "reference/tensor/float_environment.hpp"

#include <cmath>
#include <iterator>
#include <stdexcept>

namespace tree_attn {

DecodeSession::DecodeSession(const KvCache& cache, double scale, std::int64_t most_queries) : cache_(cache), scale_(scale) {
  require(std::isfinite(scale), "DecodeSession: a scale of ", scale, "; a finite number is needed");
  require(most_queries >= 0, "DecodeSession: steps of at most ", most_queries, " queries");
  const double rows = static_cast<double>(cache.shape().n_rows(1)) * static_cast<double>(most_queries);
  require<std::length_error>(rows <= 0x1p62, "DecodeSession: ", rows, " rows of queries; at most 2^62");
}

void DecodeSession::check(const Step& step) const {
  const FloatEnvironment environment;
  const TensorView& q = step.q;
  const auto lengths = step.lengths;
  constexpr const char* kHere = "DecodeSession::decode";
  const KvCache& cache = cache_;
  const AttentionShape& shape = cache.shape();
  const auto& [b, n_h, l, d_h] = q.shape;
  require(q.shape == std::array{shape.batch, shape.heads, l, shape.head_dim} && std::ssize(lengths) == shape.batch, kHere,
          ": q is [", b, ", ", n_h, ", ", l, ", ", d_h, "] with ", lengths.size(), " lengths, but the cache takes [",
          shape.batch, ", ", shape.heads, ", l, ", shape.head_dim, "]");
  require_view(kHere, q, "q", cache.is_on_device());
  require_seen(kHere, step.rule, step.sink.size(), step.mask, step.softcap, {shape.batch, shape.heads, l}, step.longest());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    require<std::out_of_range>(lengths[i] >= 0, kHere, ": batch entry ", i, " has ", lengths[i], " keys");
    if (cache.pages() != nullptr) {
      const KeyRange gone = cache.pages()->given_back(static_cast<std::int64_t>(i));
      require(!step.seen_by_any(static_cast<std::int64_t>(i)).touches(gone.begin, gone.end), kHere, ": batch entry ", i,
              " sees keys of the positions [", gone.begin, ", ", gone.end,
              "), whose pages have been given back: the cache is for a window of ", cache.pages()->rule().window,
              " keys and ", cache.pages()->rule().sinks, " sinks");
    }
    const std::int64_t needed = cache.leaves().n_keys(lengths[i]);
    require<std::out_of_range>(needed <= cache.lengths()[i], kHere, ": batch entry ", i, " has ", lengths[i], " keys, ",
                               needed, " of them in the range of the cache, which holds ", cache.lengths()[i]);
  }
}

States& DecodeSession::decode(const Step& step, const std::function<void()>& progress) {
  check(step);
  return decode_checked(step, progress);
}

States& DecodeSession::decode_checked(const Step& step, const std::function<void()>& progress) {
  FloatEnvironment environment;
  if (!progress) return run(step, progress);
  return run(step, [&] { environment.call_back(progress); });
}

}  // namespace tree_attn
