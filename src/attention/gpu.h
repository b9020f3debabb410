// SPDX-License-Identifier: Apache-2.0
// What plans need to know about a GPU, from its facts alone: no call to it, so that a step on a GPU
// that is not here can be planned and explained too.
#pragma once

#include "attention/shape.h"
#include "device/device.h"

namespace segue::attention {

/// The facts that plans of this shape read. The unit rule is part of the bits class.
DeviceFacts gpu_device(const device::GpuFacts& gpu, const Shape& shape);

/// Has this build kernels for it? kUnsupported with what it is and what there is.
Status check_gpu(const device::GpuFacts& gpu);

}  // namespace segue::attention
