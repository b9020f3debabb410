// SPDX-License-Identifier: Apache-2.0
#include "attention/api/pages.h"

#include <fmt/format.h>

namespace segue::attention::api {
namespace {

constexpr std::int64_t kMostStride = std::int64_t{1} << 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;  // from the first page to the last

bool is_natural(kv::Layout layout) {
  return layout == kv::Layout::kTokenMajor || layout == kv::Layout::kHeadMajor;
}

/// What a page needs at least; a stride depends on those within it.
struct Least {
  std::int64_t page, head, token;
};

Least least_of(const kv::View& view, const kv::View& dense) {
  const std::int64_t row = std::int64_t{view.head_dim} * kv_type_bytes(view.type);
  const std::int64_t heads = (view.kv_heads - 1) * view.head_stride;
  const std::int64_t tokens = (view.page_size - 1) * view.token_stride;
  if (view.layout == kv::Layout::kTokenMajor) return {tokens + heads + row, row, heads + row};
  if (view.layout == kv::Layout::kHeadMajor) return {heads + tokens + row, tokens + row, row};
  return {heads + dense.head_stride, dense.head_stride, dense.token_stride};
}

}  // namespace

Result<kv::View> view_of(const Shape& shape, const KvPages& pages) {
  const kv::View dense = dense_view(shape);
  kv::View view = dense;
  view.k = static_cast<std::byte*>(pages.k);
  view.v = static_cast<std::byte*>(pages.v);
  view.pages = pages.pages;
  if (pages.page_stride != 0) view.page_stride = pages.page_stride;
  if (pages.head_stride != 0 && shape.kv_heads > 1) view.head_stride = pages.head_stride;
  if (pages.token_stride != 0) view.token_stride = pages.token_stride;

  const std::int64_t strides[] = {view.page_stride, view.head_stride, view.token_stride};
  const int element = kv_type_bytes(shape.kv);
  bool good = is_natural(shape.layout) || view.token_stride == dense.token_stride;
  for (const std::int64_t stride : strides)
    good = good && stride > 0 && stride <= kMostStride && stride % element == 0;
  // Of strides that are no numbers of bytes, nothing can be worked out: the dense ones are the
  // least.
  const Least least = least_of(good ? view : dense, dense);
  good = good && view.page_stride >= least.page && view.head_stride >= least.head &&
         view.token_stride >= least.token && pages.pages <= kMostBytes / view.page_stride;
  if (good) return view;
  return Error{
      ErrorCode::kUsage,
      fmt::format("KV strides of {}, {} and {} bytes (page, head, token); {} pages of this shape "
                  "need at least {}, {} and {}, multiples of {} up to {}{}; a pool of {} pages",
                  view.page_stride, view.head_stride, view.token_stride,
                  kv::layout_name(shape.layout), least.page, least.head, least.token, element,
                  kMostStride, is_natural(shape.layout) ? "" : ", and no other token stride",
                  pages.pages)};
}

}  // namespace segue::attention::api
