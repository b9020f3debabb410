// SPDX-License-Identifier: Apache-2.0
// The checks that make an accepted file safe to read. Every refusal names the tensor, what was
// found and what is allowed.
#include "format/safetensors/header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "core/json.h"

namespace segue::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is read and written as it lies in memory");

using core::Json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<DtypeRow, 15> kDtypes{{{Dtype::kBool, "BOOL", 1},
                                            {Dtype::kU8, "U8", 1},
                                            {Dtype::kI8, "I8", 1},
                                            {Dtype::kF8E4M3, "F8_E4M3", 1},
                                            {Dtype::kF8E5M2, "F8_E5M2", 1},
                                            {Dtype::kU16, "U16", 2},
                                            {Dtype::kI16, "I16", 2},
                                            {Dtype::kF16, "F16", 2},
                                            {Dtype::kBF16, "BF16", 2},
                                            {Dtype::kU32, "U32", 4},
                                            {Dtype::kI32, "I32", 4},
                                            {Dtype::kF32, "F32", 4},
                                            {Dtype::kU64, "U64", 8},
                                            {Dtype::kI64, "I64", 8},
                                            {Dtype::kF64, "F64", 8}}};
constexpr bool in_order() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (static_cast<std::size_t>(kDtypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_order());

std::string known_dtypes() {
  std::string names;
  for (const DtypeRow& row : kDtypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

/// One file under inspection: where its data begins, and how its messages begin.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  Result<Header> read() {
    Result<Json> json = header_json();
    if (!json) return json.error();
    Header header;
    for (const auto& [name, value] : *json->as_object()) {
      if (name == kMetadata) {
        if (Status read = metadata(value, header); !read) return read.error();
        continue;
      }
      Result<Tensor> read = tensor(name, value);
      if (!read) return read.error();
      header.tensors.push_back(std::move(read).value());
    }
    if (Status disjoint = place(header.tensors); !disjoint) return disjoint.error();
    return header;
  }

 private:
  Error invalid(std::string_view problem) const {
    return {ErrorCode::kInvalidFile, fmt::format("'{}': {}", path_, problem)};
  }
  Error invalid(std::string_view name, std::string_view problem) const {
    return invalid(fmt::format("tensor {} {}", quote(name), problem));
  }

  Result<Json> header_json() {
    if (bytes_.size() < kLengthBytes) {
      return invalid(fmt::format("{} bytes are no safetensors file (at least {} are needed)",
                                 bytes_.size(), kLengthBytes));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    const std::uint64_t left = bytes_.size() - kLengthBytes;
    if (length > kMaxHeaderBytes) {
      return invalid(
          fmt::format("a header of {} bytes is announced, {} are allowed (is this a safetensors "
                      "file?)",
                      length, kMaxHeaderBytes));
    }
    if (length > left) {
      return invalid(
          fmt::format("a header of {} bytes is announced, the file ends early, {} bytes after its "
                      "length (is the download complete?)",
                      length, left));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                static_cast<std::size_t>(length));
    if (text.empty() || text.front() != '{') {
      return invalid("the header does not begin with '{' (is this a safetensors file?)");
    }
    Result<Json> json = Json::parse(text, Json::Repeats::kRefused);
    if (!json) return invalid("header: " + json.error().message);
    data_begin_ = kLengthBytes + length;
    data_bytes_ = bytes_.size() - data_begin_;
    return json;
  }

  Status metadata(const Json& value, Header& header) const {
    const Json::Object* members = value.as_object();
    if (members == nullptr) return invalid("__metadata__ is no object of strings");
    for (const auto& [key, text] : *members) {
      if (text.as_string() == nullptr) {
        return invalid(fmt::format("__metadata__ {} is {} (allowed: a string)", quote(key),
                                   quote(text.dump())));
      }
      header.metadata.emplace_back(key, *text.as_string());
    }
    return {};
  }

  Result<Tensor> tensor(const std::string& name, const Json& value) const {
    if (!value.is_object()) return invalid(name, "is no object of dtype, shape and data_offsets");
    for (const auto& [key, ignored] : *value.as_object()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        return invalid(
            name, fmt::format("has a member {} (allowed: dtype, shape, data_offsets)", quote(key)));
      }
    }
    Tensor tensor;
    tensor.name = name;
    if (Status read = dtype(value.find("dtype"), tensor); !read) return read.error();
    Result<std::uint64_t> needed = shape(value.find("shape"), tensor);
    if (!needed) return needed.error();
    if (Status read = offsets(value.find("data_offsets"), *needed, tensor); !read)
      return read.error();
    return tensor;
  }

  Status dtype(const Json* value, Tensor& tensor) const {
    const std::string* text = value == nullptr ? nullptr : value->as_string();
    if (text == nullptr) return invalid(tensor.name, "has no dtype (a string)");
    const auto* row = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&](const DtypeRow& known) { return known.name == *text; });
    if (row == kDtypes.end()) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("'{}': tensor {} has dtype {}, which is not read (those that are: {})", path_,
                      quote(tensor.name), quote(*text), known_dtypes())};
    }
    tensor.dtype = row->dtype;
    return {};
  }

  /// Fills the shape; the value is the bytes that it needs.
  Result<std::uint64_t> shape(const Json* value, Tensor& tensor) const {
    const Json::Array* axes = value == nullptr ? nullptr : value->as_array();
    if (axes == nullptr) return invalid(tensor.name, "has no shape (an array)");
    // A product of the non-zero axes that overflows is refused even where another axis is 0.
    std::uint64_t product = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
    bool any = true;
    for (const Json& axis : *axes) {
      const std::int64_t* count = axis.as_int();
      if (count == nullptr || *count < 0) {
        return invalid(tensor.name, fmt::format("has an axis of {} (allowed: 0 and larger, below "
                                                "2^63)",
                                                quote(axis.dump())));
      }
      tensor.shape.push_back(*count);
      if (*count == 0) {
        any = false;
      } else if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(*count), &product) ||
                 product > static_cast<std::uint64_t>(INT64_MAX)) {
        return invalid(tensor.name, fmt::format("of shape {} is too large", quote(value->dump())));
      }
    }
    return any ? product : 0;
  }

  Status offsets(const Json* value, std::uint64_t needed, Tensor& tensor) const {
    const Json::Array* pair = value == nullptr ? nullptr : value->as_array();
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].as_uint(begin) ||
        !(*pair)[1].as_uint(end)) {
      return invalid(tensor.name, fmt::format("has data_offsets {} (allowed: [begin, end])",
                                              value == nullptr ? "null" : quote(value->dump())));
    }
    if (begin > end || end > data_bytes_) {
      return invalid(
          tensor.name,
          end > data_bytes_
              ? fmt::format("has data_offsets [{}, {}], the file ends early, after {} bytes of "
                            "data (is the download complete?)",
                            begin, end, data_bytes_)
              : fmt::format("has data_offsets [{}, {}], which end before they begin", begin, end));
    }
    if (end - begin != needed) {
      return invalid(tensor.name,
                     fmt::format("has {} bytes, but {} of {} needs {}", end - begin,
                                 shape_text(tensor.shape), dtype_name(tensor.dtype), needed));
    }
    const auto element = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
    if ((data_begin_ + begin) % element != 0) {
      return invalid(tensor.name,
                     fmt::format("begins at byte {} of the file, no multiple of the {} bytes of {}",
                                 data_begin_ + begin, element, dtype_name(tensor.dtype)));
    }
    tensor.bytes = bytes_.subspan(static_cast<std::size_t>(data_begin_ + begin),
                                  static_cast<std::size_t>(end - begin));
    return {};
  }

  /// Sorts by position; every byte of the data belongs to one tensor.
  Status place(std::vector<Tensor>& tensors) const {
    std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return a.bytes.data() != b.bytes.data() ? a.bytes.data() < b.bytes.data()
                                              : a.bytes.size() < b.bytes.size();
    });
    const std::byte* data = bytes_.data() + data_begin_;
    const std::byte* done = data;
    const Tensor* before = nullptr;
    for (const Tensor& tensor : tensors) {
      if (tensor.bytes.data() < done) {
        return invalid(
            fmt::format("tensors {} and {} overlap", quote(before->name), quote(tensor.name)));
      }
      if (tensor.bytes.data() > done) {
        return invalid(fmt::format("bytes {} to {} of the data belong to no tensor", done - data,
                                   tensor.bytes.data() - data));
      }
      done = tensor.bytes.data() + tensor.bytes.size();
      before = &tensor;
    }
    if (done != bytes_.data() + bytes_.size()) {
      return invalid(
          fmt::format("bytes {} to {} of the data belong to no tensor", done - data, data_bytes_));
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }
std::int64_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::string quote(std::string_view name) {
  constexpr std::size_t kMost = 80;
  if (name.size() <= kMost) return Json(name).dump();
  return Json(name.substr(0, kMost)).dump() + "...";
}

Result<Header> read_header(std::span<const std::byte> bytes, const std::string& path) {
  return Reader(bytes, path).read();
}

}  // namespace segue::safetensors
