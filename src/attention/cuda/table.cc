// SPDX-License-Identifier: Apache-2.0
// The GPU's rows of the kernel table.
#include "attention/cuda/rows.h"

namespace segue::attention {

std::span<const Kernel> cuda_kernels() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> joined(cuda::decode_bf16.begin(), cuda::decode_bf16.end());
    joined.insert(joined.end(), cuda::decode_f16.begin(), cuda::decode_f16.end());
    return joined;
  }();
  return rows;
}

}  // namespace segue::attention
