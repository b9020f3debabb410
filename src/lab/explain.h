// SPDX-License-Identifier: Apache-2.0
// Which path a step takes and why, without running anything; and the kernel table for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attention/policy.h"
#include "core/json.h"
#include "lab/shapes.h"
#include "segue/error.h"

namespace segue::lab {

struct ExplainOptions {
  NamedShape shape;
  std::int64_t depth = 32'768;  // keys in the cache before the step
  int rows = 1;
  int batch = 1;        // sequences alike
  int decode_rows = 1;  // 1 + k that an engine was started with
  attention::Policy policy = attention::Policy::kSegue;
  attention::DeviceKind device = attention::DeviceKind::kCpu;
  std::string device_facts;  // GPU by name; empty: this machine's, without one the H200
  int workgroups = 0;        // of the device; 0: the facts'
  int threads = 0;           // CPU: 0 takes all CPUs of the process
  std::string kernel;        // empty: the table's choice
};

/// The plan as JSON (attention/plan.h), with name, depth, rows, batch and device. Planning for a
/// GPU needs none; device.assumed says that its facts were taken from a name. kUsage, kUnsupported.
Result<core::Json> explain(const ExplainOptions& options);
/// The same for people.
Result<std::string> explain_text(const ExplainOptions& options);

/// kUnsupported, with the reason, when this build has no kernel of that device.
Status check_kernels(std::optional<attention::DeviceKind> device);

/// {kernels: [{name, bits_class, device, isa, kv, available}]}: all rows of this build, best first;
/// of one device if given. Asked for a GPU's where none can run: with `missing`, the reason.
core::Json kernels_json(std::optional<attention::DeviceKind> device = {});
std::string kernels_table(std::optional<attention::DeviceKind> device = {});

}  // namespace segue::lab
