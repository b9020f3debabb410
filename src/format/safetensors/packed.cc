// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors/packed.h"

#include <cstring>
#include <string>

#include <fmt/format.h>

#include "format/safetensors/header.h"

namespace segue::safetensors {
namespace {

using core::Json;

constexpr std::int64_t kLevelsPerWord = 8;
constexpr std::int64_t kGroup = 32;

std::string part(std::string_view linear, std::string_view name) {
  return std::string(linear).append(".weight_").append(name);
}

Error invalid(const Checkpoint& checkpoint, std::string_view problem) {
  return {ErrorCode::kInvalidFile, fmt::format("'{}': {}", checkpoint.path(), problem)};
}

/// The value of `.weight_shape`: [outputs, inputs].
Status read_shape(const Checkpoint& checkpoint, const Tensor& shape, PackedWeight& out) {
  const bool wide = shape.dtype == Dtype::kI64;
  if ((!wide && shape.dtype != Dtype::kI32) || shape.elements() != 2) {
    return invalid(checkpoint, fmt::format("tensor {} is {} {} (allowed: 2 values of I64 or I32)",
                                           quote(shape.name), shape_text(shape.shape),
                                           dtype_name(shape.dtype)));
  }
  std::int64_t values[2];
  if (wide) {
    std::memcpy(values, shape.bytes.data(), sizeof(values));
  } else {
    std::int32_t narrow[2];
    std::memcpy(narrow, shape.bytes.data(), sizeof(narrow));
    values[0] = narrow[0];
    values[1] = narrow[1];
  }
  out.outputs = values[0];
  out.inputs = values[1];
  if (out.outputs < 1 || out.inputs < kGroup || out.inputs % kGroup != 0) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("'{}': tensor {} says [{}, {}] (allowed: inputs that are a multiple of {})",
                    checkpoint.path(), quote(shape.name), out.outputs, out.inputs, kGroup)};
  }
  return {};
}

Result<core::TensorView> part_of_shape(const Checkpoint& checkpoint, const std::string& name,
                                       std::int64_t outputs, std::int64_t inputs) {
  const Tensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return invalid(checkpoint, fmt::format("no tensor {}", quote(name)));
  if (tensor->shape != std::vector<std::int64_t>{outputs, inputs}) {
    return invalid(checkpoint,
                   fmt::format("tensor {} has shape {}, its weight needs [{}, {}]", quote(name),
                               shape_text(tensor->shape), outputs, inputs));
  }
  return view(*tensor);
}

Error unsupported(std::string_view member, const Json* found, std::string_view allowed) {
  return {ErrorCode::kUnsupported,
          fmt::format("quantization_config: {} is {} (read: {})", member,
                      found == nullptr ? "absent" : found->dump().substr(0, 80), allowed)};
}

bool is_text(const Json* value, std::string_view text) {
  return value != nullptr && value->as_string() != nullptr && *value->as_string() == text;
}
bool is_number(const Json* value, std::int64_t number) {
  return value != nullptr && value->as_int() != nullptr && *value->as_int() == number;
}
bool is_flag(const Json* value, bool flag) {
  return value != nullptr && value->as_bool() != nullptr && *value->as_bool() == flag;
}
bool is_none(const Json* value) { return value == nullptr || value->is_null(); }

Status check_weights(const std::string& group, const Json& weights) {
  const auto member = [&](std::string_view name) {
    return fmt::format("{}.weights.{}", group, name);
  };
  const auto find = [&](std::string_view name) { return weights.find(name); };
  if (!is_number(find("num_bits"), 4))
    return unsupported(member("num_bits"), find("num_bits"), "4");
  if (!is_text(find("type"), "int")) return unsupported(member("type"), find("type"), "\"int\"");
  if (!is_flag(find("symmetric"), true))
    return unsupported(member("symmetric"), find("symmetric"), "true");
  if (!is_text(find("strategy"), "group"))
    return unsupported(member("strategy"), find("strategy"), "\"group\"");
  if (!is_number(find("group_size"), kGroup))
    return unsupported(member("group_size"), find("group_size"), "32");
  if (!is_none(find("actorder"))) return unsupported(member("actorder"), find("actorder"), "null");
  return {};
}

}  // namespace

bool is_packed(const Checkpoint& checkpoint, std::string_view linear) {
  return checkpoint.find(part(linear, "packed")) != nullptr;
}

Result<PackedWeight> packed_weight(const Checkpoint& checkpoint, std::string_view linear) {
  for (const std::string_view foreign : {"zero_point", "g_idx"}) {
    if (const Tensor* tensor = checkpoint.find(part(linear, foreign)); tensor != nullptr) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}': tensor {}: only symmetric levels in the order of the inputs "
                               "are read",
                               checkpoint.path(), quote(tensor->name))};
    }
  }
  PackedWeight weight;
  const Tensor* shape = checkpoint.find(part(linear, "shape"));
  if (shape == nullptr)
    return invalid(checkpoint, fmt::format("no tensor {}", quote(part(linear, "shape"))));
  if (Status read = read_shape(checkpoint, *shape, weight); !read) return read.error();
  Result<core::TensorView> words = part_of_shape(checkpoint, part(linear, "packed"), weight.outputs,
                                                 weight.inputs / kLevelsPerWord);
  if (!words) return words.error();
  Result<core::TensorView> scales =
      part_of_shape(checkpoint, part(linear, "scale"), weight.outputs, weight.inputs / kGroup);
  if (!scales) return scales.error();
  weight.words = std::move(words).value();
  weight.scales = std::move(scales).value();
  return weight;
}

Status check_quantization(const Json& config) {
  const Json* method = config.find("quant_method");
  if (!is_text(method, "compressed-tensors"))
    return unsupported("quant_method", method, "\"compressed-tensors\"");
  const Json* format = config.find("format");
  if (!is_text(format, "pack-quantized"))
    return unsupported("format", format, "\"pack-quantized\"");
  const Json* cache = config.find("kv_cache_scheme");
  if (!is_none(cache)) return unsupported("kv_cache_scheme", cache, "null");
  const Json* groups = config.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->as_object()->empty())
    return unsupported("config_groups", groups, "an object of groups");
  for (const auto& [name, group] : *groups->as_object()) {
    const Json* weights = group.find("weights");
    if (weights == nullptr || !weights->is_object())
      return unsupported(name + ".weights", weights, "an object");
    for (const std::string_view other : {"input_activations", "output_activations"}) {
      if (!is_none(group.find(other)))
        return unsupported(fmt::format("{}.{}", name, other), group.find(other), "null");
    }
    if (Status fits = check_weights(name, *weights); !fits) return fits;
  }
  return {};
}

}  // namespace segue::safetensors
