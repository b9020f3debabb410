// SPDX-License-Identifier: Apache-2.0
// Small random models written by the tests themselves: every feature of the real architectures
// (windows, both kinds of layers, grouped heads, tied and untied heads) at a size that runs under
// sanitizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/gguf/writer.h"

namespace segue::e2e {

struct TinyModel {
  std::string architecture = "gemma3";  // or "llama"
  int layers = 7;                       // gemma3: the sixth is global
  int hidden = 64;
  int intermediate = 96;
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int window = 32;
  int context = 2048;
  std::uint64_t seed = 1;
  int vocab = 260;                          // kTinyVocab; smaller drops the last bytes
  std::vector<std::string> first_tokens{};  // what tokens 0, 1, .. are called instead
  std::string chat_template{};              // if not empty
};

/// Its metadata and tensors; a test may spoil them before writing.
gguf::Writer tiny_writer(const TinyModel& model);

/// Writes it below the test's temporary folder and returns the path.
std::string write_tiny(const TinyModel& model, const std::string& name = "model");

/// A random assistant for that target (gemma3), as a GGUF file; a test may spoil it before writing.
gguf::Writer tiny_assistant_writer(const TinyModel& target);
std::string write_tiny_assistant(const TinyModel& target);

/// The config.json of a random model of a variant of tests/golden/gemma4 ("e2b"), with a vocabulary
/// that has all bytes and widths of whole blocks; and of the assistant beside it, where there is
/// one.
std::string tiny_gemma4(const std::string& variant);
std::string tiny_gemma4_assistant(const std::string& variant);

/// Vocabulary: pad, eos, bos, unk, then the 256 bytes as "<0xXX>".
inline constexpr int kTinyVocab = 260;

/// A path that no other test uses; what is written there is removed when the tests have run.
std::string temporary_path(const std::string& name);

/// Path of a real model, or empty when it has not been fetched.
std::string real_model(const std::string& file);

/// `count` tokens with repetitions, so that prompt lookup finds something; deterministic.
std::vector<std::int32_t> repetitive_tokens(std::int64_t count, std::uint64_t seed,
                                            int vocab = kTinyVocab);

}  // namespace segue::e2e
