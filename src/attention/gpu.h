// SPDX-License-Identifier: Apache-2.0
// What plans need to know about a GPU, from its facts alone: no call to it, so that a step on a GPU
// that is not here can be planned and explained too.
#pragma once

#include <string_view>

#include "attention/shape.h"
#include "device/device.h"

namespace segue::attention {

struct Kernel;

/// The compute capabilities that run it: "9.0", "8.0 and later".
std::string_view family_range(GpuFamily family);

/// Does a GPU run the kernels of this family? sm90: compute capability 9.0, head dims that are
/// multiples of 64. sm80: 8.0 and later, every head_dim.
bool runs_family(const device::GpuFacts& gpu, GpuFamily family);

/// The facts that plans of this shape read, for the family of `forced`, or for the best one that
/// the GPU and the shape allow. The unit rule is part of the bits class.
DeviceFacts gpu_device(const device::GpuFacts& gpu, const Shape& shape,
                       const Kernel* forced = nullptr);

/// The layout that caches of this shape have on a GPU unless somebody else made them.
kv::Layout gpu_layout(const Shape& shape);

/// Has this build kernels for it, and is `forced` one of them? kUnsupported, or
/// kUsage for `forced`, with what it is and what there is.
Status check_gpu(const device::GpuFacts& gpu, const Kernel* forced = nullptr);

}  // namespace segue::attention
