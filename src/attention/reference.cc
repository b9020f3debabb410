// SPDX-License-Identifier: Apache-2.0
// Per query row and head: scores of all visible keys, their maximum, then sums in ascending key
// order.
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace segue::attention {
namespace {

float load(const std::byte* p, KvType type) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return type == KvType::kF16 ? core::f16_to_f32(bits) : core::bf16_to_f32(bits);
}

/// K and V rows of one sequence and kv head by position.
class Keys {
 public:
  Keys(const Params& params, int sequence, int kv_head)
      : view_(params.kv),
        table_(params.tables[sequence]),
        head_offset_(kv_head * params.kv.head_stride) {}

  void read_k(std::int64_t position, float* row /* [head_dim] */) const {
    const std::byte* block = view_.k + block_offset(position);
    const int t = static_cast<int>(position % view_.page_size);
    for (int d = 0; d < view_.head_dim; ++d)
      row[d] = load(block + view_.k_offset(t, d), view_.type);
  }
  void read_v(std::int64_t position, float* row /* [head_dim] */) const {
    const std::byte* block = view_.v + block_offset(position);
    const int t = static_cast<int>(position % view_.page_size);
    for (int d = 0; d < view_.head_dim; ++d)
      row[d] = load(block + view_.v_offset(t, d), view_.type);
  }

 private:
  std::int64_t block_offset(std::int64_t position) const {
    const std::int64_t logical = position / view_.page_size;
    CHECK(logical < table_.count);
    const std::int32_t page = table_.pages[logical];
    CHECK(page >= 0 && page < view_.pages);
    return page * view_.page_stride + head_offset_;
  }

  const kv::View& view_;
  const kv::PageTable& table_;
  std::int64_t head_offset_;
};

template <class Real>
Real score(const Params& params, const float* q, const float* k) {
  Real sum = 0;
  for (int d = 0; d < params.kv.head_dim; ++d)
    sum += static_cast<Real>(q[d]) * static_cast<Real>(k[d]);
  sum *= static_cast<Real>(params.scale);
  if (params.softcap > 0) {
    const auto cap = static_cast<Real>(params.softcap);
    sum = cap * std::tanh(sum / cap);
  }
  return sum;
}

/// All query rows and heads of one (row tile, kv head).
template <class Real>
void run_tile(const Params& params, const RowTile& tile, int kv_head) {
  const Shape& shape = params.plan->shape;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto group = static_cast<std::size_t>(shape.group());
  const std::size_t queries = static_cast<std::size_t>(tile.rows) * group;
  const std::int64_t first = shape.first_key(tile.position);
  const std::int64_t end = tile.position + tile.rows;
  const auto keys = static_cast<std::size_t>(end - first);
  const Keys cache(params, tile.sequence, kv_head);
  const auto query_index = [&](std::size_t query) {
    const std::size_t row = static_cast<std::size_t>(tile.token) + query / group;
    return row * static_cast<std::size_t>(shape.q_heads) +
           static_cast<std::size_t>(kv_head) * group + query % group;
  };
  const auto visible = [&](std::size_t query, std::int64_t key) {
    const std::int64_t position = tile.position + static_cast<std::int64_t>(query / group);
    return key >= shape.first_key(position) && key <= position;
  };

  constexpr Real kNone = -std::numeric_limits<Real>::infinity();
  std::vector<Real> scores(queries * keys);
  std::vector<Real> maximum(queries, kNone);
  std::vector<float> row(dim);
  for (std::size_t i = 0; i < keys; ++i) {
    const std::int64_t key = first + static_cast<std::int64_t>(i);
    cache.read_k(key, row.data());
    for (std::size_t query = 0; query < queries; ++query) {
      if (!visible(query, key)) continue;
      const Real value = score<Real>(params, params.q + query_index(query) * dim, row.data());
      scores[query * keys + i] = value;
      maximum[query] = std::max(maximum[query], value);
    }
  }
  std::vector<Real> sums(queries, 0);
  std::vector<Real> out(queries * dim, 0);
  const auto sink = [&](std::size_t query) {
    return static_cast<Real>(
        params.sinks[static_cast<std::size_t>(kv_head) * group + query % group]);
  };
  if (params.sinks != nullptr) {
    for (std::size_t query = 0; query < queries; ++query)
      maximum[query] = std::max(maximum[query], sink(query));
  }
  for (std::size_t i = 0; i < keys; ++i) {
    const std::int64_t key = first + static_cast<std::int64_t>(i);
    cache.read_v(key, row.data());
    for (std::size_t query = 0; query < queries; ++query) {
      if (!visible(query, key)) continue;
      const Real p = std::exp(scores[query * keys + i] - maximum[query]);
      sums[query] += p;
      Real* sum = out.data() + query * dim;
      for (std::size_t d = 0; d < dim; ++d) sum[d] += p * static_cast<Real>(row[d]);
    }
  }
  for (std::size_t query = 0; query < queries; ++query) {
    const Real sum = params.sinks != nullptr ? sums[query] + std::exp(sink(query) - maximum[query])
                                             : sums[query];
    const std::size_t index = query_index(query);
    for (std::size_t d = 0; d < dim; ++d) {
      params.out[index * dim + d] = static_cast<float>(out[query * dim + d] / sum);
    }
    if (params.lse != nullptr)
      params.lse[index] = static_cast<float>(maximum[query] + std::log(sum));
  }
}

template <class Real>
void run(const Params& params, Stream& stream) {
  const Plan& plan = *params.plan;
  const int heads = plan.shape.kv_heads;
  const auto task = [&](std::int64_t index, int) {
    run_tile<Real>(params, plan.tiles[static_cast<std::size_t>(index / heads)],
                   static_cast<int>(index % heads));
  };
  const std::int64_t tasks = static_cast<std::int64_t>(plan.tiles.size()) * heads;
  if (stream.pool != nullptr) {
    stream.pool->for_each(tasks, task);
  } else {
    for (std::int64_t index = 0; index < tasks; ++index) task(index, 0);
  }
}

bool supports_everything(const Shape&) { return true; }

}  // namespace

void reference_attention(const Params& params, Stream& stream) { run<double>(params, stream); }
void plain_attention(const Params& params, Stream& stream) { run<float>(params, stream); }

const Kernel kReference{
    .name = "reference",
    .bits_class = "reference",
    .device = DeviceKind::kCpu,
    .isa = core::IsaLevel::kPortable,
    .supports = supports_everything,
    .launch = reference_attention,
};

}  // namespace segue::attention
