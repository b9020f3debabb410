// SPDX-License-Identifier: Apache-2.0
// The GPU's rows of the kernel table.
#include "attention/cuda/rows.h"

namespace segue::attention {

std::span<const Kernel> cuda_kernels() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> joined;
    const auto add = [&](std::span<const Kernel> family) {
      joined.insert(joined.end(), family.begin(), family.end());
    };
    add(cuda::decode_bf16);
    add(cuda::decode_f16);
    add(cuda::sm80::decode_bf16);
    add(cuda::sm80::decode_f16);
    return joined;
  }();
  return rows;
}

}  // namespace segue::attention
