// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of fuzz/corpus/gguf and fuzz/corpus/safetensors: small files that together use
// every part of the formats.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "format/gguf/writer.h"
#include "format/safetensors/writer.h"

namespace segue {
namespace {

namespace gguf_seeds {

using namespace gguf;

using core::DType;

void add_zeros(Writer& writer, std::string_view name, DType type, std::int64_t in,
               std::int64_t out) {
  const core::DTypeInfo info = core::dtype_info(type);
  const auto bytes = static_cast<std::size_t>(in / info.block_elements * info.block_bytes * out);
  writer.tensor(name, type, {in, out}, std::vector<std::byte>(bytes));
}

Writer every_value_type() {
  Writer writer;
  writer.set("u8", std::uint8_t{1});
  writer.set("i8", std::int8_t{-1});
  writer.set("u16", std::uint16_t{2});
  writer.set("i16", std::int16_t{-2});
  writer.set("u32", std::uint32_t{3});
  writer.set("i32", std::int32_t{-3});
  writer.set("u64", ~std::uint64_t{0});
  writer.set("i64", std::int64_t{-4});
  writer.set("f32", 0.5f);
  writer.set("f64", 0.25);
  writer.set("bool", true);
  writer.set("text", "t");
  writer.set("ints", std::vector<std::int32_t>{1, 2});
  writer.set("bools", std::vector<bool>{true, false});
  writer.set("texts", std::vector<std::string>{"a", "", "bc"});
  return writer;
}

Writer nested_arrays() {
  Writer writer;
  writer.set_raw(
      "nested", ValueType::kArray,
      std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0x",
                  33));
  return writer;
}

Writer old_version_wide_alignment() {
  Writer writer(2);
  writer.set("general.alignment", std::uint32_t{64});
  writer.tensor("a", {3}, std::vector<float>{1, 2, 3});
  writer.tensor("b", {1, 2, 1, 2}, std::vector<float>{1, 2, 3, 4});
  return writer;
}

Writer every_tensor_type() {
  Writer writer;
  writer.set("general.alignment", std::uint32_t{8});
  for (const DType type : {DType::kF16, DType::kBF16, DType::kI32}) {
    add_zeros(writer, core::dtype_info(type).name, type, 3, 1);
  }
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                           DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    add_zeros(writer, core::dtype_info(type).name, type, core::dtype_info(type).block_elements, 1);
  }
  return writer;
}

Writer small_model() {
  Writer writer;
  writer.set("general.architecture", "llama");
  writer.set("llama.block_count", std::uint32_t{1});
  writer.set("llama.attention.head_count_kv", std::vector<std::uint32_t>{1});
  writer.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a"});
  writer.set("tokenizer.ggml.scores", std::vector<float>{0, -1});
  add_zeros(writer, "token_embd.weight", DType::kQ8_0, 32, 2);
  add_zeros(writer, "blk.0.attn_q.weight", DType::kQ4_0, 32, 2);
  writer.tensor("output_norm.weight", {32}, std::vector<float>(32, 1.0f));
  return writer;
}

Status write_all(const std::string& folder) {
  const std::pair<const char*, Writer> seeds[] = {{"empty", Writer()},
                                                  {"value_types", every_value_type()},
                                                  {"nested_arrays", nested_arrays()},
                                                  {"version_2", old_version_wide_alignment()},
                                                  {"tensor_types", every_tensor_type()},
                                                  {"small_model", small_model()}};
  for (const auto& [name, writer] : seeds) {
    const Status written = writer.write(folder + "/" + name + ".gguf");
    if (!written.ok()) return written;
  }
  return {};
}

}  // namespace gguf_seeds

namespace safetensors_seeds {

using namespace safetensors;

Writer every_dtype() {
  Writer writer;
  writer.metadata("format", "pt");
  for (int i = 0; i <= static_cast<int>(Dtype::kF64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    writer.tensor(dtype_name(dtype), dtype, {1, 2},
                  std::vector<std::byte>(static_cast<std::size_t>(2 * dtype_bytes(dtype))));
  }
  return writer;
}

Writer shapes() {
  Writer writer;
  writer.tensor("scalar", {}, std::vector<float>{1});
  writer.tensor("none", Dtype::kF32, {0, 3}, {});
  writer.tensor("deep", {1, 1, 1, 1, 2}, std::vector<float>{1, 2});
  return writer;
}

Writer packed() {
  const std::vector<std::int64_t> shape{2, 32};
  Writer writer;
  writer.tensor("w.weight_packed", Dtype::kI32, {2, 4}, std::vector<std::byte>(32));
  writer.tensor("w.weight_scale", Dtype::kBF16, {2, 1}, std::vector<std::byte>(4));
  writer.tensor("w.weight_shape", Dtype::kI64, {2}, std::as_bytes(std::span(shape)));
  return writer;
}

Status write_all(const std::string& folder) {
  const std::pair<const char*, Writer> seeds[] = {
      {"empty", Writer()}, {"dtypes", every_dtype()}, {"shapes", shapes()}, {"packed", packed()}};
  for (const auto& [name, writer] : seeds) {
    const Status written = writer.write(folder + "/" + name + ".safetensors");
    if (!written.ok()) return written;
  }
  return {};
}

}  // namespace safetensors_seeds

int write_all(const std::string& folder) {
  for (const Status& written : {gguf_seeds::write_all(folder + "/gguf"),
                                safetensors_seeds::write_all(folder + "/safetensors")}) {
    if (written.ok()) continue;
    std::fprintf(stderr, "%s\n", written.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace segue

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  return segue::write_all(argv[1]);
}
