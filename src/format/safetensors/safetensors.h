// SPDX-License-Identifier: Apache-2.0
// Safetensors reader: a file, or a folder of shards with their index, becomes named tensor views.
// It knows nothing about models. Every length, shape and offset is checked before it is used, so an
// accepted checkpoint can be read without further checks.
//
// A file, all numbers little-endian:
//   1. u64 header bytes N, at most 100,000,000
//   2. N bytes of JSON, padded with spaces: {name: {"dtype": "BF16", "shape": [out, in],
//      "data_offsets": [begin, end]}, ..., "__metadata__": {string: string}}; the metadata may be
//      absent, and shapes have the contiguous axis last
//   3. the data; offsets count from its first byte. Every byte of it belongs to exactly one tensor,
//      and tensors begin at multiples of their element size, in the file too
//
// A folder holds model.safetensors, or model.safetensors.index.json: {"weight_map": {tensor name:
// file name}} and the files that it names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/tensor.h"
#include "segue/error.h"

namespace segue::safetensors {

enum class Dtype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

std::string_view dtype_name(Dtype dtype);  // as in the file: "BF16", "F8_E4M3", ...
std::int64_t dtype_bytes(Dtype dtype);     // of one element

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;   // contiguous axis last; empty: one element
  std::span<const std::byte> bytes;  // little-endian elements, aligned to their size
  int file = 0;                      // index into Checkpoint::files()

  std::int64_t elements() const { return std::ssize(bytes) / dtype_bytes(dtype); }
};

/// "[4096, 512]"
std::string shape_text(std::span<const std::int64_t> shape);

/// The same bytes as the engine's view, whose shape[0] is the contiguous axis: [out, in] becomes
/// {in, out}. kUnsupported, naming the tensor, for other dtypes than F32, F16, BF16 and I32, more
/// than four axes, and no elements.
Result<core::TensorView> view(const Tensor& tensor);

/// An opened file or folder. Movable; views stay valid until it is destroyed.
class Checkpoint {
 public:
  struct File {
    std::string path;
    std::int64_t bytes = 0;
    std::vector<std::pair<std::string, std::string>> metadata;
    core::MappedFile map;  // empty after parse()
  };

  /// Maps a .safetensors file, or all files of a folder, and checks them. kNotFound (a file of the
  /// folder too), kIo, kInvalidFile, or kUnsupported for dtypes that are well-formed but not read.
  /// In a folder, index and files must name the same tensors.
  static Result<Checkpoint> open(const std::string& path);
  /// The same checks on one file's bytes in memory, which must outlive the Checkpoint. `name`
  /// stands for the path in messages. Tensors are aligned in memory only as far as `bytes` is.
  static Result<Checkpoint> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  std::span<const File> files() const { return files_; }

  /// In the order of the files and of the data within them; names are unique, bytes disjoint.
  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;

  /// Gives back the resident pages of a tensor that was copied elsewhere; it stays readable.
  void release(const Tensor& tensor) const;

 private:
  Status add(File file, std::span<const std::byte> bytes);
  Status add_file(const std::string& path);
  Status add_shards(const std::string& index_path);

  std::string path_;
  std::vector<File> files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace segue::safetensors
