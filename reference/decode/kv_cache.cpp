// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The checks that all caches share.
#include "reference/decode/kv_cache.hpp"

#include "reference/decode/page_table.hpp"
#include "reference/tensor/float_environment.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace tree_attn {
namespace {

const AttentionShape& checked(const AttentionShape& shape) {
  require_shape("KvCache", shape);
  const double rows = static_cast<double>(shape.batch) * static_cast<double>(shape.heads);
  require<std::length_error>(rows <= 0x1p62, "KvCache: ", rows, " rows of a query; at most 2^62");
  return shape;
}

}  // namespace

KvCache::KvCache(const AttentionShape& shape, const AttentionShape& stored, const OwnedLeaves& leaves, std::int64_t capacity)
    : given_(checked(shape)), stored_(stored), leaves_(leaves), lengths_(static_cast<std::size_t>(shape.batch), 0) {
  require<std::out_of_range>(capacity >= 0, "KvCache: a capacity of ", capacity, " rows");
  check_capacity("KvCache", capacity);
  capacity_ = capacity;
}

KvCache::~KvCache() = default;

std::int64_t KvCache::bytes() const {
  return pages_ == nullptr
             ? capacity_ * stored_.held_bytes_per_position()
             : pages_->n_rows() * (stored_.held_bytes_per_position() / std::max<std::int64_t>(1, stored_.batch));
}

std::int64_t KvCache::longest() const { return lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end()); }

void KvCache::check_entry(const char* function, std::int64_t entry, std::int64_t n_rows) const {
  require<std::out_of_range>(entry >= 0 && entry < stored_.batch, function, ": batch entry ", entry, " of a batch of ",
                             stored_.batch);
  const std::int64_t length = lengths_[static_cast<std::size_t>(entry)];
  require<std::out_of_range>(n_rows >= 0 && n_rows <= length, function, ": batch entry ", entry, " holds ", length,
                             " positions, not ", n_rows);
}

void KvCache::check_views(const char* function, const TensorView& k, const TensorView& v, bool converts) const {
  for (const bool is_key : {true, false}) {
    const char* const name = is_key ? "k" : "v";
    const TensorView& view = is_key ? k : v;
    const DType given = is_key ? given_.dtype : given_.value_dtype, stored = is_key ? stored_.dtype : stored_.value_dtype;
    const std::int64_t dim = is_key ? stored_.head_dim : stored_.value_dim;
    require(view.dtype == given || view.dtype == stored || (converts && stored == DType::F8_E4M3), function, ": ", name,
            " is ", name_of(view.dtype), ", but the cache takes ", name_of(given));
    require(view.shape[1] == stored_.kv_heads && view.shape[3] == dim, function, ": ", name, " has ", view.shape[1],
            " heads of ", view.shape[3], " elements, but the cache has ", stored_.kv_heads, " of ", dim);
    require_view(function, view, name, is_on_device());
  }
  require(!stored_.values_in_keys || (v.data == k.data && v.stride == k.stride), function,
          ": v is not a view of the first components of k, but the cache stores them once");
}

void KvCache::check_rows(const char* function, std::int64_t n) const {
  require<std::out_of_range>(n >= 0 && n <= longest(), function, ": ", n, " rows, but the longest batch entry holds ",
                             longest());
}

void KvCache::check_capacity(const char* function, std::int64_t capacity) const {
  // In double: axes may exceed 64 bits where another axis is 0.
  const double row = static_cast<double>(stored_.batch) * static_cast<double>(stored_.kv_heads) *
                     (static_cast<double>(stored_.head_dim) * static_cast<double>(bytes_of(stored_.dtype)) +
                      (stored_.values_in_keys ? 0.0 : static_cast<double>(stored_.value_dim)) *
                          static_cast<double>(bytes_of(stored_.value_dtype)));
  require<std::out_of_range>(capacity <= kOpenEnd && static_cast<double>(capacity) * row <= 0x1p62, function, ": ", capacity,
                             " rows of ", row, " bytes; at most 2^62 rows, and bytes");
}

void KvCache::append(std::int64_t entry, const TensorView& k, const TensorView& v) {
  constexpr const char* kHere = "KvCache::append";
  const FloatEnvironment environment;
  check_entry(kHere, entry);
  check_views(kHere, k, v, true);
  require(k.shape[0] == 1 && v.shape[0] == 1 && k.shape[2] == v.shape[2], kHere, ": k has ", k.shape[0],
          " batch entries and ", k.shape[2], " positions, v has ", v.shape[0], " and ", v.shape[2],
          "; expected one entry and equal positions");
  std::int64_t& length = lengths_[static_cast<std::size_t>(entry)];
  require<std::out_of_range>(k.shape[2] <= leaves_.most_keys() - length, kHere, ": batch entry ", entry, " holds ", length,
                             " of ", leaves_.most_keys(), " positions, ", k.shape[2], " more do not fit");
  const std::int64_t needed = length + k.shape[2];
  reserve(needed <= capacity_ ? 0 : leaves_.end_of_leaf(std::max(needed, 2 * capacity_) - 1));
  if (pages_ != nullptr) {
    const PageTable::Copy copy = pages_->extend(entry, length, needed);
    if (copy.n > 0) copy_page(copy.from, copy.to, copy.n);
  }
  for (std::int64_t a = length, end = needed; a < needed; a = end) {
    if (pages_ != nullptr) end = std::min(needed, leaves_.end_of_leaf(a));
    if (pages_ == nullptr || pages_->row(entry, a) != PageTable::kNone)
      write(entry, a, k.positions(a - length, end - length), v.positions(a - length, end - length));
  }
  length = needed;
}

void KvCache::truncate(std::int64_t entry, std::int64_t n) {
  check_entry("KvCache::truncate", entry, n);
  if (pages_ != nullptr) settle(), pages_->cut(entry, n);
  lengths_[static_cast<std::size_t>(entry)] = n;
}

void KvCache::use_pages(const PageRule& rule) {
  require<std::logic_error>(longest() == 0, "KvCache::use_pages: the cache holds rows");
  copy_page(0, 0, 0);
  pages_ = std::make_unique<PageTable>(rule, stored_, leaves_);
  cleared();
  try {
    allocate(capacity_);
  } catch (...) {
    pages_.reset();
    throw;
  }
}

void KvCache::share(std::int64_t from, std::int64_t to, std::int64_t n) {
  constexpr const char* kHere = "KvCache::share";
  require<std::logic_error>(pages_ != nullptr, kHere, ": the cache is not in pages");
  check_entry(kHere, from, n), check_entry(kHere, to);
  for (const std::vector<float>* each : {&scales_.k, &scales_.v}) {
    const auto of = [&](std::int64_t entry) { return each->begin() + entry * stored_.kv_heads; };
    require(each->empty() || std::equal(of(from), of(from + 1), of(to)), kHere, ": batch entries ", from, " and ", to,
            " have other scales");
  }
  std::int64_t& length = lengths_[static_cast<std::size_t>(to)];
  require<std::out_of_range>(length == 0, kHere, ": batch entry ", to, " holds ", length, " positions, not none");
  settle();
  pages_->share(from, to, n);
  length = n;
}

void KvCache::copy_page(std::int64_t, std::int64_t, std::int64_t) {
  throw std::logic_error("KvCache::use_pages: this cache takes none");
}

void KvCache::reset(const OwnedLeaves& leaves) {
  leaves_ = leaves;
  std::fill(lengths_.begin(), lengths_.end(), 0);
  if (pages_ != nullptr) pages_->reset(leaves_);
  cleared();
}

void KvCache::set_scales(KvScales scales) {
  constexpr const char* kHere = "KvCache::set_scales";
  require(pages_ == nullptr, kHere, ": the cache is in pages already");
  for (const auto& [each, dtype] : {std::pair(&scales.k, stored_.dtype), {&scales.v, stored_.value_dtype}}) {
    if (each->empty()) continue;
    require(dtype == DType::F8_E4M3, kHere, ": scales for ", name_of(dtype), "; F8_E4M3 alone has them");
    require(std::ssize(*each) == stored_.batch * stored_.kv_heads && std::ranges::all_of(*each, is_scale), kHere, ": ",
            each->size(), " scales for ", stored_.batch, " entries of ", stored_.kv_heads,
            " KV heads; each is from 2^-100 to 2^100");
  }
  require(!stored_.values_in_keys || scales.k == scales.v, kHere, ": values are components of the keys, with other scales");
  require(longest() == 0, kHere, ": the cache holds ", longest(), " rows");
  scales_ = std::move(scales);
}

void KvCache::reserve(std::int64_t n) {
  check_capacity("KvCache::reserve", n);
  const std::int64_t capacity = std::max(capacity_, n);
  allocate(capacity);
  capacity_ = capacity;
}

void KvCache::borrow(const Shard& shard, std::span<const std::int64_t> lengths) {
  constexpr const char* kHere = "KvCache::borrow";
  const FloatEnvironment environment;
  require<std::logic_error>(pages_ == nullptr, kHere, ": the cache is in pages, which take rows by append()");
  check_views(kHere, shard.k, shard.v, false);
  const std::int64_t n = std::min(shard.k.shape[2], shard.v.shape[2]);
  require(shard.k.shape[0] == stored_.batch && shard.v.shape[0] == stored_.batch && std::ssize(lengths) == stored_.batch,
          kHere, ": k has ", shard.k.shape[0], " batch entries, v has ", shard.v.shape[0], ", lengths has ", lengths.size(),
          ", but the cache has ", stored_.batch);
  require<std::out_of_range>(shard.begin == leaves_.range().begin, kHere, ": row 0 is position ", shard.begin,
                             ", but the cache begins at ", leaves_.range().begin);
  const std::int64_t most = std::min(n, leaves_.most_keys());
  for (std::size_t i = 0; i < lengths.size(); ++i)
    require<std::out_of_range>(lengths[i] >= 0 && lengths[i] <= most, kHere, ": length ", lengths[i], " of batch entry ", i,
                               " is not in 0 .. ", most, " (", n, " rows, capacity ", leaves_.most_keys(), ")");
  for (const std::int64_t length : lengths) check_capacity(kHere, length);
  std::fill(lengths_.begin(), lengths_.end(), 0);
  cleared();
  write_all(shard, lengths);
  std::copy(lengths.begin(), lengths.end(), lengths_.begin());
  capacity_ = std::max(capacity_, longest());
}

Shard KvCache::shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const {
  static constexpr const char* kHere = "KvCache::shard";
  check_rows(kHere, n);
  return read_all(n, [&memory](std::size_t n_bytes) {
    std::byte* const at = memory(n_bytes);
    require(at != nullptr || n_bytes == 0, kHere, ": no memory for ", n_bytes, " bytes");
    return at;
  });
}

Shard KvCache::shard_on_device(std::int64_t n, std::byte* memory) const {
  check_rows("KvCache::shard_on_device", n);
  return read_all_on_device(n, memory);
}

Shard KvCache::read_all_on_device(std::int64_t, std::byte*) const {
  throw std::logic_error("KvCache::shard_on_device: the cache is in host memory");
}

void KvCache::write_all(const Shard& shard, std::span<const std::int64_t> lengths) {
  reserve(lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
  for (std::int64_t i = 0; i < stored_.batch; ++i) {
    const std::int64_t n = lengths[static_cast<std::size_t>(i)];
    write(i, 0, shard.k.entry(i).positions(0, n), shard.v.entry(i).positions(0, n));
  }
}

}  // namespace tree_attn
