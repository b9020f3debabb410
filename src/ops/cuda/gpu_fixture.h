// SPDX-License-Identifier: Apache-2.0
// Test support: buffers of a GPU that are NaN before every call, with guard elements behind them,
// random numbers and matrices.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "device/device.h"
#include "ops/cpu/matrix.h"
#include "ops/cuda/matrix.h"

namespace segue::ops::cuda {

inline constexpr std::size_t kGuard = 64;  // elements behind every output

inline float from_bf16(std::uint16_t bits) { return core::bf16_to_f32(bits); }

inline std::vector<float> normals(std::int64_t count, std::uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

inline std::vector<std::uint16_t> bf16_of(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (const float value : values) out.push_back(core::f32_to_bf16(value));
  return out;
}

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<device::GpuFacts> gpu = device::gpu_facts();
    if (!gpu.ok()) GTEST_SKIP() << gpu.error().message;
    multiprocessors_ = gpu->multiprocessors;
    stream_ = device::Stream();
  }

  template <class T>
  T* send(const std::vector<T>& values) {
    device::Buffer& buffer = buffers_.emplace_back(values.size() * sizeof(T));
    device::copy_to_device(buffer.as<>(), values.data(), buffer.bytes(), stream());
    stream().synchronize();
    return buffer.as<T>();
  }
  template <class T>
  T* poisoned(std::int64_t count) {
    device::Buffer& buffer =
        buffers_.emplace_back((static_cast<std::size_t>(count) + kGuard) * sizeof(T));
    device::fill_bytes(buffer.as<>(), 0xff, buffer.bytes(), stream());
    return buffer.as<T>();
  }
  /// What poisoned() of that size has now; its guard must be untouched.
  template <class T>
  std::vector<T> fetch(const T* from, std::int64_t count) {
    std::vector<T> out(static_cast<std::size_t>(count) + kGuard);
    device::copy_to_host(out.data(), from, out.size() * sizeof(T), stream());
    stream().synchronize();
    for (std::size_t i = static_cast<std::size_t>(count); i < out.size(); ++i) {
      std::array<unsigned char, sizeof(T)> bytes;
      std::memcpy(bytes.data(), &out[i], sizeof(T));
      for (const unsigned char byte : bytes) EXPECT_EQ(byte, 0xff) << "wrote past the end";
    }
    out.resize(static_cast<std::size_t>(count));
    return out;
  }
  const device::Stream& stream() const { return *stream_; }

  /// A bf16 matrix on the device; the parts' outputs side by side.
  Matrix upload(const std::vector<std::uint16_t>& values, std::int64_t inputs,
                std::vector<std::int64_t> outputs) {
    std::vector<ops::Matrix> parts;
    std::vector<const ops::Matrix*> places;
    const std::uint16_t* at = values.data();
    for (const std::int64_t count : outputs) {
      core::TensorView view;
      view.dtype = core::DType::kBF16;
      view.dims = 2;
      view.shape = {inputs, count, 1, 1};
      view.data = reinterpret_cast<const std::byte*>(at);
      view.bytes = inputs * count * 2;
      parts.push_back(ops::Matrix::prepare(view, core::best_isa(), memory_, pool_).value());
      at += inputs * count;
    }
    for (const ops::Matrix& part : parts) places.push_back(&part);
    return Matrix::upload(places, Form::kBf16, pool_, stream());
  }

  struct Levels {
    Matrix matrix;
    std::vector<float> weights;  // [outputs, inputs]
  };
  /// Random levels and scales: Q4_0 or W4_BF16.
  Levels upload_levels(core::DType dtype, std::int64_t inputs, std::vector<std::int64_t> outputs) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    Levels out;
    std::vector<ops::Matrix> parts;
    std::vector<const ops::Matrix*> places;
    for (const std::int64_t count : outputs) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(inputs * count / 8));
      for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
      std::vector<std::uint16_t> scales(static_cast<std::size_t>(inputs * count / 32));
      const bool bf16 = dtype == core::DType::kW4_BF16;
      for (std::uint16_t& scale : scales) {
        const float value = normal(random);
        scale = bf16 ? core::f32_to_bf16(value) : core::f32_to_f16(value);
      }
      core::TensorView word_view, scale_view;
      word_view.dtype = core::DType::kI32;
      word_view.dims = scale_view.dims = 2;
      word_view.shape = {inputs / 8, count, 1, 1};
      word_view.data = reinterpret_cast<const std::byte*>(words.data());
      word_view.bytes = std::ssize(words) * 4;
      scale_view.dtype = bf16 ? core::DType::kBF16 : core::DType::kF16;
      scale_view.shape = {inputs / 32, count, 1, 1};
      scale_view.data = reinterpret_cast<const std::byte*>(scales.data());
      scale_view.bytes = std::ssize(scales) * 2;
      parts.push_back(
          ops::Matrix::prepare_packed(word_view, scale_view, core::best_isa(), memory_, pool_)
              .value());
      EXPECT_EQ(parts.back().dtype(), dtype);
    }
    std::vector<float> row(static_cast<std::size_t>(inputs));
    for (const ops::Matrix& part : parts) {
      places.push_back(&part);
      for (std::int64_t output = 0; output < part.outputs(); ++output) {
        part.dequantize_row(output, row.data());
        out.weights.insert(out.weights.end(), row.begin(), row.end());
      }
    }
    EXPECT_EQ(form_of(places), Form::kFourBit);
    out.matrix = Matrix::upload(places, form_of(places), pool_, stream());
    EXPECT_EQ(out.matrix.bytes(), bytes_of(Form::kFourBit, out.matrix.outputs(), inputs));
    return out;
  }
  std::vector<float> multiply(const Matrix& w, const std::vector<std::uint16_t>& x,
                              std::int64_t rows, int width = 0) {
    float* const y = poisoned<float>(rows * w.outputs());
    product({&w, send(x), y, rows, true, width}, multiprocessors_, stream());
    std::vector<float> out = fetch(y, rows * w.outputs());
    buffers_.clear();
    return out;
  }

  void check_product(const Matrix& matrix, const std::vector<float>& w, const std::string& what);

  int multiprocessors_ = 0;
  std::optional<device::Stream> stream_;
  std::vector<device::Buffer> buffers_;
  core::ThreadPool pool_{2};
  WeightMemory memory_;
};

}  // namespace segue::ops::cuda
