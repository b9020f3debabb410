// SPDX-License-Identifier: Apache-2.0
// A verify step over two sequences with segue/attention.h: four rows each, as speculation with
// three drafts has them. Shows that a row has the same bytes computed alone, and what the plan
// says.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "segue/attention.h"

namespace {

template <class T>
T require(segue::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

void require(const segue::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

constexpr int kQueryHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 128;
constexpr int kPageSize = 16;
constexpr int kPages = 200;
constexpr int kTableStride = 100;
constexpr int kRows = 4;
constexpr std::size_t kRowFloats = std::size_t{kQueryHeads} * kHeadDim;

}  // namespace

int main() {
  segue::AttentionConfig config;
  config.q_heads = kQueryHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kHeadDim;
  config.page_size = kPageSize;
  config.kv = segue::KvType::kF32;
  config.io = segue::KvType::kF32;
  const auto attention = require(segue::Attention::create(config));

  // A pool of pages, in the layout that the device likes best: the library says where an element
  // lies. Sequence 0 takes the even pages, sequence 1 the odd ones.
  const auto page_floats = static_cast<std::size_t>(attention->page_bytes()) / sizeof(float);
  std::vector<float> k(kPages * page_floats, std::nanf("unread"));
  std::vector<float> v(kPages * page_floats, std::nanf("unread"));
  std::vector<std::int32_t> tables(2 * kTableStride, -1);
  const std::vector<segue::AttentionSequence> step{{.depth = 1500, .rows = kRows},
                                                   {.depth = 37, .rows = kRows}};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::size_t s = 0; s < step.size(); ++s) {
    const auto keys = static_cast<int>(step[s].depth) + kRows;
    for (int t = 0; t < keys; ++t) {
      const std::int32_t page = 2 * (t / kPageSize) + static_cast<std::int32_t>(s);
      tables[s * kTableStride + static_cast<std::size_t>(t / kPageSize)] = page;
      for (int head = 0; head < kKvHeads; ++head) {
        for (int d = 0; d < kHeadDim; ++d) {
          const auto at = static_cast<std::size_t>(page) * page_floats;
          const auto k_at = attention->k_offset(head, t % kPageSize, d) / std::int64_t{4};
          const auto v_at = attention->v_offset(head, t % kPageSize, d) / std::int64_t{4};
          k[at + static_cast<std::size_t>(k_at)] = normal(random);
          v[at + static_cast<std::size_t>(v_at)] = normal(random);
        }
      }
    }
  }
  std::vector<float> q(2 * kRows * kRowFloats);
  for (float& x : q) x = normal(random);

  segue::AttentionLimits limits;
  limits.sequences = 2;
  limits.rows_per_sequence = kRows;
  limits.kv_len = kTableStride * kPageSize;
  const auto plan = require(attention->make_plan(limits));
  std::vector<std::byte> workspace(plan->workspace_bytes());

  segue::AttentionCall call;
  call.kv = {.k = k.data(), .v = v.data(), .pages = kPages};
  call.page_tables = tables.data();
  call.workspace = workspace.data();
  call.workspace_bytes = workspace.size();

  std::vector<float> block(q.size());
  require(plan->update(step));
  call.q = q.data();
  call.out = block.data();
  require(plan->run(call));
  std::printf("%s\n", plan->explain().c_str());

  // The last row of sequence 0 on its own.
  std::vector<float> alone(kRowFloats);
  const std::vector<segue::AttentionSequence> last{{.depth = 1500 + kRows - 1, .rows = 1}};
  require(plan->update(last));
  call.q = q.data() + (kRows - 1) * kRowFloats;
  call.out = alone.data();
  require(plan->run(call));
  const bool equal = std::memcmp(alone.data(), block.data() + (kRows - 1) * kRowFloats,
                                 kRowFloats * sizeof(float)) == 0;
  std::printf("a row of the block and the same row alone: %s\n",
              equal ? "equal bytes" : "DIFFERENT");
  return equal ? 0 : 1;
}
