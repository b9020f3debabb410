// SPDX-License-Identifier: Apache-2.0
// The checks that make an accepted file safe to read. Every refusal names the part, what was found
// and what is allowed.
#include "format/gguf/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "format/gguf/types.h"

namespace segue::gguf {
namespace {

constexpr int kMaxArrayDepth = 4;
constexpr std::uint32_t kMaxDims = 4;
// The least a metadata entry (empty key, one byte) and a tensor info (empty name, no dims) take.
constexpr std::uint64_t kLeastEntryBytes = 8 + 4 + 1;
constexpr std::uint64_t kLeastTensorBytes = 8 + 4 + 4 + 8;
// A tensor may be this large, so that sums of offset, size and padding stay far from the end of 64
// bits.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

std::string shape_text(const core::TensorView& tensor) {
  return fmt::format("[{}]",
                     fmt::join(tensor.shape.begin(), tensor.shape.begin() + tensor.dims, ", "));
}

}  // namespace

std::int64_t least_element_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kString:
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kArray: return 12;
  }
  return 0;
}

std::string quote(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out += text.size() > kMost ? "...'" : "'";
}

Error Parser::invalid(std::string_view problem) const {
  return {ErrorCode::kInvalidFile, fmt::format("'{}': {}", file_.path_, problem)};
}

Error Parser::truncated(std::string_view what, std::uint64_t needed) const {
  return invalid(
      fmt::format("the file ends inside {}: {} bytes are needed at byte {}, the file has {}", what,
                  needed, position_, bytes_.size()));
}

template <class T>
Status Parser::number(T& out, std::string_view what) {
  if (remaining() < sizeof(T)) return truncated(what, sizeof(T));
  std::memcpy(&out, bytes_.data() + position_, sizeof(T));
  position_ += sizeof(T);
  return {};
}

Status Parser::string(std::string_view& out, std::string_view what) {
  std::uint64_t length = 0;
  if (Status read = number(length, what); !read) return read;
  if (length > remaining()) return truncated(what, length);
  out = {reinterpret_cast<const char*>(bytes_.data() + position_),
         static_cast<std::size_t>(length)};
  position_ += length;
  return {};
}

Status Parser::parse() {
  if (Status read = header(); !read) return read;
  for (std::uint64_t i = 0; i < entry_count_; ++i) {
    if (Status read = metadata_entry(i); !read) return read;
  }
  if (Status read = read_alignment(); !read) return read;
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    if (Status read = tensor_info(i); !read) return read;
  }
  return place_tensors();
}

Status Parser::header() {
  constexpr std::string_view kMagic = "GGUF";
  if (bytes_.size() < kMagic.size() ||
      std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
    return invalid("not a GGUF file (it does not begin with the bytes 'GGUF')");
  }
  position_ = kMagic.size();
  if (Status read = number(file_.version_, "the header"); !read) return read;
  if (file_.version_ != 2 && file_.version_ != 3) {
    const bool swapped = (file_.version_ & 0xffffu) == 0;
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}': GGUF version {}{} (2 and 3 are read)", file_.path_,
                             file_.version_, swapped ? ", a big-endian file" : "")};
  }
  if (Status read = number(tensor_count_, "the header"); !read) return read;
  if (Status read = number(entry_count_, "the header"); !read) return read;
  if (entry_count_ > remaining() / kLeastEntryBytes) {
    return invalid(fmt::format("{} metadata entries cannot fit into the {} bytes after the header",
                               entry_count_, remaining()));
  }
  if (tensor_count_ > remaining() / kLeastTensorBytes) {
    return invalid(fmt::format("{} tensors cannot fit into the {} bytes after the header",
                               tensor_count_, remaining()));
  }
  return {};
}

Status Parser::metadata_entry(std::uint64_t entry_number) {
  Entry entry;
  if (Status read = string(entry.key, fmt::format("the key of metadata entry {}", entry_number));
      !read)
    return read;
  const std::string what = fmt::format("the value of key {}", quote(entry.key));
  std::uint32_t type = 0;
  if (Status read = number(type, what); !read) return read;
  const auto bytes = static_cast<std::uint64_t>(least_element_bytes(static_cast<ValueType>(type)));
  if (bytes == 0)
    return invalid(
        fmt::format("key {} has value type {} (0 to 12 are known)", quote(entry.key), type));

  Value& value = entry.value;
  value.type_ = value.element_type_ = static_cast<ValueType>(type);
  value.data_ = bytes_.data() + position_;
  if (value.type_ == ValueType::kArray) {
    if (Status read = array(entry.key, 1, value); !read) return read;
  } else if (value.type_ == ValueType::kString) {
    std::string_view text;
    if (Status read = string(text, what); !read) return read;
  } else {
    if (bytes > remaining()) return truncated(what, bytes);
    position_ += bytes;
  }
  if (!file_.metadata_index_.emplace(entry.key, file_.metadata_.size()).second) {
    return invalid(fmt::format("key {} appears twice", quote(entry.key)));
  }
  file_.metadata_.push_back(entry);
  return {};
}

Status Parser::array(std::string_view key, int depth, Value& value) {
  const std::string what = fmt::format("the array of key {}", quote(key));
  if (depth > kMaxArrayDepth) {
    return invalid(fmt::format("the array of key {} is nested deeper than {} levels", quote(key),
                               kMaxArrayDepth));
  }
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  if (Status read = number(type, what); !read) return read;
  if (Status read = number(count, what); !read) return read;
  const auto least = static_cast<std::uint64_t>(least_element_bytes(static_cast<ValueType>(type)));
  if (least == 0) {
    return invalid(fmt::format("the array of key {} has element type {} (0 to 12 are known)",
                               quote(key), type));
  }
  if (count > remaining() / least) {
    return invalid(fmt::format(
        "the array of key {} has {} elements of at least {} bytes, but the file ends {} bytes "
        "further on",
        quote(key), count, least, remaining()));
  }
  value.element_type_ = static_cast<ValueType>(type);
  value.count_ = static_cast<std::int64_t>(count);
  value.data_ = bytes_.data() + position_;
  if (value.element_type_ != ValueType::kString && value.element_type_ != ValueType::kArray) {
    position_ += count * least;
    return {};
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string_view text;
    Value inner;
    Status read = value.element_type_ == ValueType::kString ? string(text, what)
                                                            : array(key, depth + 1, inner);
    if (!read) return read;
  }
  return {};
}

Status Parser::read_alignment() {
  const Value* value = file_.find("general.alignment");
  if (value == nullptr) return {};
  const auto alignment = value->as_int();
  constexpr std::int64_t kLeast = 8;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (!alignment || *alignment < kLeast || *alignment > kMost ||
      !std::has_single_bit(static_cast<std::uint64_t>(*alignment))) {
    return invalid(fmt::format("general.alignment is {} (a power of two from {} to {} is allowed)",
                               alignment ? fmt::format("{}", *alignment) : value->describe_type(),
                               kLeast, kMost));
  }
  file_.alignment_ = *alignment;
  return {};
}

Status Parser::tensor_info(std::uint64_t tensor_number) {
  std::string_view name;
  if (Status read = string(name, fmt::format("the name of tensor {}", tensor_number)); !read)
    return read;
  const std::string what = fmt::format("the description of tensor {}", quote(name));
  const auto refuse = [&](std::string_view problem) {
    return invalid(fmt::format("tensor {} {}", quote(name), problem));
  };
  if (name.empty()) return invalid(fmt::format("tensor {} has no name", tensor_number));
  if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second)
    return refuse("appears twice");

  std::uint32_t dims = 0;
  if (Status read = number(dims, what); !read) return read;
  if (dims < 1 || dims > kMaxDims)
    return refuse(fmt::format("has {} dimensions (1 to {} are allowed)", dims, kMaxDims));
  core::TensorView tensor;
  tensor.name = name;
  tensor.dims = static_cast<int>(dims);
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dims; ++i) {
    std::uint64_t dim = 0;
    if (Status read = number(dim, what); !read) return read;
    if (dim == 0) return refuse(fmt::format("has a dimension {} of 0", i));
    if (dim > kMaxBytes / elements)
      return refuse(fmt::format("is too large: dimension {} is {}", i, dim));
    elements *= dim;
    tensor.shape[i] = static_cast<std::int64_t>(dim);
  }

  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  if (Status read = number(type, what); !read) return read;
  if (Status read = number(offset, what); !read) return read;
  const auto dtype = tensor_type(type);
  if (!dtype) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("'{}': tensor {} has type {}, which is not supported (types that "
                    "are: {})",
                    file_.path_, quote(name), tensor_type_label(type), supported_tensor_types())};
  }
  const core::DTypeInfo info = core::dtype_info(*dtype);
  const auto block = static_cast<std::uint64_t>(info.block_elements);
  const auto block_bytes = static_cast<std::uint64_t>(info.block_bytes);
  if (tensor.shape[0] % info.block_elements != 0) {
    return refuse(fmt::format("of shape {} has type {}, whose rows are multiples of {}",
                              shape_text(tensor), info.name, info.block_elements));
  }
  if (elements / block > kMaxBytes / block_bytes)
    return refuse(fmt::format("of shape {} is too large", shape_text(tensor)));
  if (offset % static_cast<std::uint64_t>(file_.alignment_) != 0) {
    return refuse(fmt::format("has offset {}, which is no multiple of the alignment {}", offset,
                              file_.alignment_));
  }
  tensor.dtype = *dtype;
  tensor.bytes = static_cast<std::int64_t>(elements / block * block_bytes);
  file_.tensors_.push_back(std::move(tensor));
  offsets_.push_back(offset);
  return {};
}

Status Parser::place_tensors() {
  const auto alignment = static_cast<std::uint64_t>(file_.alignment_);
  const std::uint64_t start = (position_ + alignment - 1) / alignment * alignment;
  file_.data_offset_ = static_cast<std::int64_t>(start);
  const std::uint64_t size = bytes_.size();
  for (std::size_t i = 0; i < file_.tensors_.size(); ++i) {
    core::TensorView& tensor = file_.tensors_[i];
    const auto bytes = static_cast<std::uint64_t>(tensor.bytes);
    if (offsets_[i] > kMaxBytes) {
      return invalid(
          fmt::format("tensor {} has offset {}, beyond any file", quote(tensor.name), offsets_[i]));
    }
    const std::uint64_t first = start + offsets_[i];
    if (first > size || bytes > size - first) {
      return invalid(
          fmt::format("tensor {} needs bytes {} to {}, the file has {} (is the download complete?)",
                      quote(tensor.name), first, first + bytes, size));
    }
    tensor.data = bytes_.data() + first;
  }
  return check_overlaps();
}

Status Parser::check_overlaps() const {
  std::vector<std::size_t> order(file_.tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return offsets_[a] < offsets_[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const core::TensorView& before = file_.tensors_[order[i - 1]];
    const core::TensorView& after = file_.tensors_[order[i]];
    if (after.data - before.data < before.bytes) {
      return invalid(
          fmt::format("tensors {} and {} overlap", quote(before.name), quote(after.name)));
    }
  }
  return {};
}

}  // namespace segue::gguf
