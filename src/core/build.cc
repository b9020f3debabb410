// SPDX-License-Identifier: Apache-2.0
// build_facts.h is written by cmake/write_build_facts.cmake before every build, and changes only
// with the commit.
#include "core/build.h"

#include <fmt/format.h>

#include "build_facts.h"
#include "core/cpu.h"

namespace segue::core {

std::string build_line() {
  return fmt::format("segue {} (commit {}, {}, {})", kVersion, kCommit, kBuildType, kCompiler);
}

Json build_json() {
  Json json = Json::object();
  return json.set("version", kVersion)
      .set("commit", kCommit)
      .set("type", kBuildType)
      .set("compiler", kCompiler);
}

Json machine_json() {
  const CpuFacts facts = cpu_facts();
  Json json = Json::object();
  return json.set("cpu", facts.model)
      .set("logical_cpus", facts.logical_cpus)
      .set("memory_bytes", facts.memory_bytes)
      .set("isa", isa_name(best_isa()));
}

}  // namespace segue::core
