// SPDX-License-Identifier: Apache-2.0
// The driver's encoder of tensor maps, found at run time so that nothing links the driver.
#include "attention/cuda/natural_maps.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "core/check.h"
#include "device/cuda/check.h"
#include "device/device.h"

namespace segue::attention::cuda {
namespace {

constexpr std::int64_t kLineBytes = 128;
constexpr int kGroup = 8;  // tokens
constexpr std::int64_t kMostTokenStride = std::int64_t{1}
                                          << 36;  // the driver takes 2^40 for groups

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    device::cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) {
      throw device::DeviceError("the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return found;
}

/// Bytes of eight tokens of a head.
std::int64_t bytes_of_group(const kv::View& view) {
  const bool tiled = view.layout == kv::Layout::kSwizzled8;
  return kGroup * (tiled ? std::int64_t{view.head_dim} * 2 : view.token_stride);
}

std::int32_t whole_groups(std::int64_t bytes, std::int64_t group_bytes) {
  CHECK(bytes % group_bytes == 0);
  return static_cast<std::int32_t>(bytes / group_bytes);
}

}  // namespace

Status check_maps(const kv::View& view) {
  const std::int64_t group = bytes_of_group(view);
  const std::int64_t head = view.layout == kv::Layout::kTokenMajor ? kLineBytes : group;
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();  // groups of the pool
  if (view.page_stride % group == 0 && view.head_stride % head == 0 &&
      view.page_stride / group <= most / view.pages && view.token_stride < kMostTokenStride) {
    return {};
  }
  return Error{
      ErrorCode::kUsage,
      fmt::format("KV strides of {}, {} and {} bytes (page, head, token); {} pages on this "
                  "GPU need multiples of {} and {}, a token stride below {} and a pool of "
                  "at most {} times 8 rows",
                  view.page_stride, view.head_stride, view.token_stride,
                  kv::layout_name(view.layout), group, head, kMostTokenStride, most)};
}

void describe_maps(const kv::View& view, int block_dims, Arguments& args, NaturalMaps& maps) {
  const bool tiled = view.layout == kv::Layout::kSwizzled8;
  const bool token_major = view.layout == kv::Layout::kTokenMajor;
  // Lines of eight tokens are contiguous in the tiled layout, and swizzled there already.
  const std::int64_t token_bytes = tiled ? kLineBytes : view.token_stride;
  const std::int64_t line_bytes = tiled ? kGroup * kLineBytes : kLineBytes;
  const std::int64_t group_bytes = bytes_of_group(view);
  const int lines = view.head_dim / 64;
  args.page_groups = whole_groups(view.page_stride, group_bytes);
  args.head_lines = token_major ? static_cast<std::int32_t>(view.head_stride / kLineBytes) : 0;
  args.head_groups = token_major ? 0 : whole_groups(view.head_stride, group_bytes);
  const std::int64_t heads_lines = token_major ? std::int64_t{view.kv_heads} * lines : lines;
  // The last page may be followed by nothing of the same stride: its own groups end the tensor.
  const std::int64_t groups = std::int64_t{view.pages - 1} * args.page_groups +
                              std::int64_t{token_major ? 0 : view.kv_heads - 1} * args.head_groups +
                              view.page_size / kGroup;
  const cuuint64_t sizes[] = {64, kGroup, static_cast<cuuint64_t>(heads_lines),
                              static_cast<cuuint64_t>(groups)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(token_bytes),
                                static_cast<cuuint64_t>(line_bytes),
                                static_cast<cuuint64_t>(group_bytes)};
  const cuuint32_t box[] = {64, kGroup, static_cast<cuuint32_t>(block_dims / 64),
                            static_cast<cuuint32_t>(args.piece / kGroup)};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  // Promotion of L2 sectors to 256 bytes fetches the lines of neighbouring heads as well: 86 % of
  // the read ceiling instead of 93 at 128K (2026-11).
  const auto encode = [&](CUtensorMap& map, std::byte* data) {
    const CUresult result =
        encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, data, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  tiled ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) throw device::DeviceError("the driver refused a map of the cache");
  };
  encode(maps.k, view.k);
  encode(maps.v, view.v);
}

}  // namespace segue::attention::cuda
