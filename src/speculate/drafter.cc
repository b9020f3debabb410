// SPDX-License-Identifier: Apache-2.0
#include "speculate/drafter.h"

namespace segue::speculate {

std::int64_t Drafter::behind(std::int64_t /*sequence*/,
                             std::span<const std::int32_t> /*context*/) const {
  return 0;
}
void Drafter::prepare(std::int64_t /*sequence*/, std::span<const std::int32_t> /*context*/) {}
void Drafter::rewind(std::int64_t /*sequence*/, std::int64_t /*tokens*/) {}
void Drafter::fork(std::int64_t /*from*/, std::int64_t /*to*/) {}
void Drafter::forget(std::int64_t /*sequence*/) {}

}  // namespace segue::speculate
