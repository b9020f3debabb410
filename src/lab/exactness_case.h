// SPDX-License-Identifier: Apache-2.0
// What the exactness checks of all devices have in common: how a case is written down and how
// comparisons are counted. The cases themselves are each device's own.
#pragma once

#include <cstdint>
#include <string_view>

#include "attention/shape.h"
#include "core/json.h"

namespace segue::lab {

/// A shape and the keys before its rows.
struct ExactnessCase {
  std::string_view shape;  // as the document names it
  int q_heads;
  int kv_heads;
  int head_dim;
  int window;
  int page_size;
  std::int64_t depth;
  float softcap = 0.0f;
  bool sinks = false;
};

/// Outputs that should have had the baseline's bytes.
struct Comparisons {
  int made = 0;
  int differing = 0;

  void add(bool equal) {
    ++made;
    differing += equal ? 0 : 1;
  }
  core::Json json() const {
    return core::Json::object().set("made", made).set("differing", differing);
  }
};

}  // namespace segue::lab
