// SPDX-License-Identifier: Apache-2.0
// A caller's pages as the kernels see them, or why they cannot be that.
#pragma once

#include "attention/shape.h"
#include "kv/view.h"
#include "segue/attention.h"

namespace segue::attention::api {

/// Dense strides where the caller gives none. kUsage for strides of which two elements would share
/// their bytes, or that no layout has; padding and what lies between K rows (V of the same page,
/// other layers) are the caller's business.
Result<kv::View> view_of(const Shape& shape, const KvPages& pages);

}  // namespace segue::attention::api
