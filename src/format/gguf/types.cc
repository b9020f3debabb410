// SPDX-License-Identifier: Apache-2.0
// One table; every lookup walks it.
#include "format/gguf/types.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "core/check.h"

namespace segue::gguf {
namespace {

using core::DType;

struct Row {
  std::uint32_t id;
  DType dtype;
};

constexpr std::array kRead{Row{0, DType::kF32},   Row{1, DType::kF16},   Row{30, DType::kBF16},
                           Row{2, DType::kQ4_0},  Row{3, DType::kQ4_1},  Row{6, DType::kQ5_0},
                           Row{7, DType::kQ5_1},  Row{8, DType::kQ8_0},  Row{12, DType::kQ4_K},
                           Row{13, DType::kQ5_K}, Row{14, DType::kQ6_K}, Row{26, DType::kI32}};

struct Foreign {
  std::uint32_t id;
  std::string_view name;
};

constexpr std::array kNotRead{
    Foreign{9, "Q8_1"},     Foreign{10, "Q2_K"},   Foreign{11, "Q3_K"},    Foreign{15, "Q8_K"},
    Foreign{16, "IQ2_XXS"}, Foreign{17, "IQ2_XS"}, Foreign{18, "IQ3_XXS"}, Foreign{19, "IQ1_S"},
    Foreign{20, "IQ4_NL"},  Foreign{21, "IQ3_S"},  Foreign{22, "IQ2_S"},   Foreign{23, "IQ4_XS"},
    Foreign{24, "I8"},      Foreign{25, "I16"},    Foreign{27, "I64"},     Foreign{28, "F64"},
    Foreign{29, "IQ1_M"},   Foreign{34, "TQ1_0"},  Foreign{35, "TQ2_0"},   Foreign{39, "MXFP4"}};

}  // namespace

std::optional<DType> tensor_type(std::uint32_t id) {
  for (const Row& row : kRead) {
    if (row.id == id) return row.dtype;
  }
  return std::nullopt;
}

std::uint32_t tensor_type_id(DType type) {
  for (const Row& row : kRead) {
    if (row.dtype == type) return row.id;
  }
  CHECK(false);  // the others are not for files
}

std::string tensor_type_label(std::uint32_t id) {
  if (const auto type = tensor_type(id))
    return fmt::format("{} ({})", id, core::dtype_info(*type).name);
  for (const Foreign& row : kNotRead) {
    if (row.id == id) return fmt::format("{} ({})", id, row.name);
  }
  return fmt::format("{}", id);
}

std::string supported_tensor_types() {
  std::string list;
  for (const Row& row : kRead) {
    if (!list.empty()) list += ", ";
    list += core::dtype_info(row.dtype).name;
  }
  return list;
}

}  // namespace segue::gguf
