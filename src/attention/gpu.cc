// SPDX-License-Identifier: Apache-2.0
// Which GPU has which kernels of attention/cuda, their unit rule and their limits.
#include "attention/gpu.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "attention/kernel.h"

namespace segue::attention {

namespace {

struct FamilyRow {
  GpuFamily family;
  std::string_view range;
  int first;  // compute capabilities, ten times the number
  int last;
  int lines;  // head dims are multiples of it
};

constexpr int kLatest = 1 << 20;
/// Best first.
constexpr std::array kFamilies{FamilyRow{GpuFamily::kSm90, "9.0", 90, 90, 64},
                               FamilyRow{GpuFamily::kSm80, "8.0 and later", 80, kLatest, 16}};

int capability_of(const device::GpuFacts& gpu) { return 10 * gpu.major + gpu.minor; }

bool allows(const FamilyRow& row, int capability) {
  return capability >= row.first && capability <= row.last;
}

GpuFamily family_of(const device::GpuFacts& gpu, const Shape& shape) {
  for (const FamilyRow& row : kFamilies) {
    if (allows(row, capability_of(gpu)) && shape.head_dim % row.lines == 0) return row.family;
  }
  return GpuFamily::kNone;
}

}  // namespace

std::string_view family_range(GpuFamily family) {
  for (const FamilyRow& row : kFamilies) {
    if (row.family == family) return row.range;
  }
  return "none";
}

bool runs_family(const device::GpuFacts& gpu, GpuFamily family) {
  return std::ranges::any_of(kFamilies, [&](const FamilyRow& row) {
    return row.family == family && allows(row, capability_of(gpu));
  });
}

DeviceFacts gpu_device(const device::GpuFacts& gpu, const Shape& shape, const Kernel* forced) {
  const bool wide = shape.head_dim >= 256;
  DeviceFacts facts;
  facts.kind = DeviceKind::kCuda;
  facts.family = forced != nullptr && forced->family != GpuFamily::kNone ? forced->family
                                                                         : family_of(gpu, shape);
  facts.name = gpu.name;
  facts.multiprocessors = gpu.multiprocessors;
  const bool sm80 = facts.family == GpuFamily::kSm80;
  facts.residents = shape.head_dim > (sm80 ? 128 : 256) ? 1 : 2;
  // At head_dim 512 a work item has a cluster of two blocks, each alone on its multiprocessor, so
  // half as many items, and units, fill the machine.
  const bool pairs = shape.head_dim > 256 && !sm80;
  facts.workgroups = pairs ? gpu.multiprocessors / 2 : gpu.multiprocessors * facts.residents;
  facts.max_tile_rows = sm80 || shape.head_dim > 256 ? 64 : 128;
  facts.unit_granule = wide && !pairs ? 32 : 64;  // the kernels' tile of keys
  facts.min_unit = shape.window > 0 || shape.kv_heads < 4 ? facts.unit_granule : 64;
  facts.unit_steps = 8;
  // Two blocks of head_dim 128 on a multiprocessor read no faster than one with deeper rings.
  facts.target_units = pairs || (shape.head_dim == 128 && !sm80) ? 16 : 32;
  // A window of 1024 in units of 160 at 16 kv heads: at most 8 of them whatever it is aligned to,
  // so that no row count makes more items than there are multiprocessors.
  facts.window_units = 6;
  facts.target_items = pairs ? 64 : shape.window > 0 ? 96 : 128;
  // Up to 4K keys (32K of head_dim 64) a unit is 1/16 of them: a batch folds half as often, and a
  // lone sequence writes half the partials.
  // Where a whole tile of keys takes longest, up to 3K: a lone sequence of 4K pays 5 % for what a
  // batch gains 10 to 15 % from (2026-11).
  facts.coarse_keys = shape.head_dim > 256 ? 3072 : shape.head_dim == 64 && !sm80 ? 32768 : 4096;
  facts.prefill_unit = 1024;
  facts.reading_rows = 64;
  // A start is 3 us in which a multiprocessor could read 50 keys of head_dim 512, and two of them
  // 100. A partial is written and read, two floats an element; a key is read, two halves an
  // element, for 64 rows.
  facts.item_keys = pairs ? 100 : 50;
  facts.merge_keys = 128;
  return facts;
}

kv::Layout gpu_layout(const Shape& shape) {
  constexpr int kLine = 64;  // dims of the swizzled layout that lie together
  return shape.head_dim % kLine == 0 ? kv::Layout::kSwizzled8 : kv::Layout::kHeadMajor;
}

Status check_gpu(const device::GpuFacts& gpu, const Kernel* forced) {
  if (family_of(gpu, {.head_dim = 64}) == GpuFamily::kNone) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{} has compute capability {}.{}; the attention kernels are for {}",
                             gpu.name, gpu.major, gpu.minor, family_range(GpuFamily::kSm80))};
  }
  if (forced != nullptr && forced->device == DeviceKind::kCuda &&
      !runs_family(gpu, forced->family)) {
    return Error{ErrorCode::kUsage,
                 fmt::format("kernel '{}' is for compute capability {}; {} has {}.{}", forced->name,
                             family_range(forced->family), gpu.name, gpu.major, gpu.minor)};
  }
  return {};
}

}  // namespace segue::attention
