// SPDX-License-Identifier: Apache-2.0
// Matrix products of tiles of 16 outputs with panels of 8-bit (or float) rows.
//
// One row (decode): every weight byte is read once from memory and used once, so memory bandwidth
// is the floor: 4.5 to 8.5 bits per weight. Unpacking happens in registers on the way; there are
// two to four times more issue slots than it needs. Many rows (prefill): the floor is the number of
// multiply-adds, 512 per row, block and tile: 8 dot instructions of AVX-512 plus conversion, two
// scalings and the start value. A tile is unpacked once into a scratch buffer that stays in L1 or
// L2, and panels of up to 16 rows then pass over it with their 16 accumulators in registers (the
// idea of the register-blocked inner kernel: Goto and van de Geijn 2008, "Anatomy of
// high-performance matrix multiplication").
//
// Order of additions, in every kernel of a level: per (row, output) the integer dot product of a
// block is exact; its float contribution is added to one accumulator, blocks ascending. So a row's
// bits do not depend on the other rows or on the kernel that ran.
#include <cstring>

#include "ops/cpu/formats.isa.h"
#include "ops/cpu/kernels.h"

namespace segue::ops::ISA {
namespace {

#if defined(ISA_avx512)
constexpr core::IsaLevel kLevel = core::IsaLevel::kAvx512;
constexpr int kPanelRows = 16;
constexpr int kFewRows = 9;  // a verify step of eight drafts
constexpr int kSideBySide = 4;
#elif defined(ISA_avx2)
constexpr core::IsaLevel kLevel = core::IsaLevel::kAvx2;
constexpr int kPanelRows = 4;
constexpr int kFewRows = 4;
constexpr int kSideBySide = 4;
#elif defined(ISA_neon)
constexpr core::IsaLevel kLevel = core::IsaLevel::kNeon;
constexpr int kPanelRows = 4;
constexpr int kFewRows = 4;
constexpr int kSideBySide = 2;
#else
constexpr core::IsaLevel kLevel = core::IsaLevel::kPortable;
constexpr int kPanelRows = 4;
constexpr int kFewRows = 1;
constexpr int kSideBySide = 1;
#endif

constexpr int kUnpackedBytes = 512 + 128;  // of one block: w, s, t

/// kSideBySide rows advance together, so that the instructions of one chain are not all waiting for
/// each other in the scheduler: with one row after the other it fills up and half of the issue
/// slots are lost.
///
/// Adds one block's contribution for R rows from row `first` of a panel of M. `x` is the panel's
/// record of this block.
template <Sum Kind, int Bits, int M, int R, class Block>
[[gnu::always_inline]] inline void accumulate_some(const Block& b, const std::uint8_t* x, int first,
                                                   F* acc) {
  const std::uint8_t* q = x + kBlock * first;
  const std::uint8_t* factors = x + kBlock * M + 4 * first;  // scale, scale * sum, start values
  I dot[R], second[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if constexpr (Kind == Sum::kScale) dot[r] = dot_start<Bits>(factors + 8 * M + 4 * r);
    if constexpr (Kind == Sum::kScaleMin) dot[r] = i_zero();
    if constexpr (Kind == Sum::kTwoScales) {
      dot[r] = dot_start<Bits>(factors + 12 * M + 4 * r);
      second[r] = dot_start<Bits>(factors + 16 * M + 4 * r);
    }
  }
  if constexpr (Kind == Sum::kTwoScales) {
    dot_groups<Bits, R, 4>(b.w, q, dot);
    dot_groups<Bits, R, 4>(b.second_half(), q + 16, second);
  } else {
    dot_groups<Bits, R, 8>(b.w, q, dot);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const F scale = f_set(load_f32(factors + 4 * r));
    F scaled = f_mul(f_from_i(dot[r]), b.s);
    if constexpr (Kind == Sum::kTwoScales) scaled = f_fma(f_from_i(second[r]), b.t, scaled);
    acc[r] = f_fma(scaled, scale, acc[r]);
    if constexpr (Kind == Sum::kScaleMin) {
      acc[r] = f_fma(b.t, f_set(load_f32(factors + 4 * M + 4 * r)), acc[r]);
    }
  }
}

template <Sum Kind, int Bits, int M, int First = 0, class Block>
[[gnu::always_inline]] inline void accumulate(const Block& b, const std::uint8_t* x, F (&acc)[M]) {
  constexpr int kRows = M - First < kSideBySide ? M - First : kSideBySide;
  accumulate_some<Kind, Bits, M, kRows>(b, x, First, acc + First);
  if constexpr (First + kRows < M) accumulate<Kind, Bits, M, First + kRows>(b, x, acc);
}

template <int M>
inline void store_rows(const F (&acc)[M], float* y, std::int64_t y_stride, int outputs) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    if (outputs == kTileOutputs) {
      f_store(y + m * y_stride, acc[m]);
    } else {
      f_store_part(y + m * y_stride, acc[m], outputs);
    }
  }
}

inline int outputs_of_tile(const TileRun& r, std::int64_t tile) {
  const std::int64_t left = r.outputs - tile * kTileOutputs;
  return left < kTileOutputs ? static_cast<int>(left) : kTileOutputs;
}

/// How far ahead of the weights in use the next ones are asked for. Without it a waiting block
/// fills the scheduler and the loads behind it start too late: the time of the arithmetic adds to
/// that of memory instead of hiding behind it.
constexpr std::int64_t kPrefetchBytes = 8192;

[[gnu::always_inline]] inline void prefetch_lines(const std::uint8_t* p, int bytes) {
  for (int line = 0; line < bytes; line += kLineBytes) prefetch(p + line);
}

/// A few rows straight from the stored format.
template <class Format, int M>
void run_few_rows(const TileRun& r) {
  constexpr TileLayout kLayout = Format::kLayout;
  constexpr int kBlockBytes = kLayout.quant_bytes + kLayout.scale_bytes / kLayout.group_blocks;
  const std::int64_t blocks = r.inputs / kBlock;
  for (std::int64_t tile = 0; tile < r.tiles_count; ++tile) {
    const std::uint8_t* quants = r.tiles + tile * r.tile_bytes;
    const std::uint8_t* scales = quants + blocks * kLayout.quant_bytes;
    const std::uint8_t* ahead = quants + kPrefetchBytes;
    const std::uint8_t* x = r.panels;
    F acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = f_zero();
    for (std::int64_t group = 0; group < blocks; group += kLayout.group_blocks) {
      for (int index = 0; index < kLayout.group_blocks; ++index) {
        Block b;
        prefetch_lines(ahead, kBlockBytes);
        ahead += kBlockBytes;
        Format::load(quants, scales, index, b);
        accumulate<Format::kSum, kernel_bits(Format::kBits), M>(b, x, acc);
        quants += kLayout.quant_bytes;
        x += kRowBlockBytes * M;
      }
      scales += kLayout.scale_bytes;
    }
    store_rows(acc, r.y + tile * kTileOutputs, r.y_stride, outputs_of_tile(r, tile));
  }
}

template <class Format>
void unpack_tile(const std::uint8_t* tile, std::int64_t blocks, std::uint8_t* out) {
  constexpr TileLayout kLayout = Format::kLayout;
  const std::uint8_t* quants = tile;
  const std::uint8_t* scales = tile + blocks * kLayout.quant_bytes;
  for (std::int64_t group = 0; group < blocks; group += kLayout.group_blocks) {
    for (int index = 0; index < kLayout.group_blocks; ++index) {
      Block b;
      Format::load(quants, scales, index, b);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) w_store(out + 64 * g, b.w[g]);
      f_store(out + 512, b.s);
      f_store(out + 576, b.t);
      quants += kLayout.quant_bytes;
      out += kUnpackedBytes;
    }
    scales += kLayout.scale_bytes;
  }
}

/// A block in the buffer; its weights are loaded where they are used, as not every level has the
/// registers to hold them.
struct UnpackedBlock {
  struct Weights {
    const std::uint8_t* p;
    W operator[](int g) const { return w_load(p + 64 * g); }
  };
  Weights w;
  F s, t;
  Weights second_half() const { return {w.p + 256}; }
};

struct PanelRun {
  const std::uint8_t* weights;  // one unpacked tile
  std::int64_t count;           // blocks, or inputs of a float matrix
  const std::uint8_t* x;        // one panel
  float* y;                     // [M, y_stride]
  std::int64_t y_stride;
  int outputs;
  const std::uint8_t* next;  // the tile after this one, to prefetch along the way
  int next_bytes;            // per block (or input); 0: nothing to prefetch
};

template <Sum Kind, int Bits, int M>
void run_panel(const PanelRun& p) {
  F acc[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const std::uint8_t* weights = p.weights;
  const std::uint8_t* x = p.x;
  const std::uint8_t* next = p.next;
  for (std::int64_t block = 0; block < p.count; ++block) {
    prefetch_lines(next, p.next_bytes);
    next += p.next_bytes;
    const UnpackedBlock b{{weights}, f_load(weights + 512), f_load(weights + 576)};
    accumulate<Kind, Bits, M>(b, x, acc);
    weights += kUnpackedBytes;
    x += kRowBlockBytes * M;
  }
  store_rows(acc, p.y, p.y_stride, p.outputs);
}

/// Float weights: one accumulator per (row, output), inputs ascending, one fused multiply-add each.
/// Bound by memory for a few rows (F16 reads 32 bytes per dependent multiply-add of 4 cycles) and
/// by the multiply-adds for many.
template <class Format, int M>
void run_float_panel(const PanelRun& p) {
  F acc[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const std::uint8_t* weights = p.weights;
  const std::uint8_t* x = p.x;
  for (std::int64_t input = 0; input < p.count; ++input) {
    prefetch(weights + kPrefetchBytes);
    const F w = Format::load(weights);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = f_fma(w, f_set(load_f32(x + 4 * m)), acc[m]);
    weights += kTileOutputs * Format::kBytes;
    x += 4 * M;
  }
  store_rows(acc, p.y, p.y_stride, p.outputs);
}

template <Sum Kind, int Bits, int M = kPanelRows>
void dispatch_panel(int rows, const PanelRun& p) {
  if (rows == M) return run_panel<Kind, Bits, M>(p);
  if constexpr (M > 1) dispatch_panel<Kind, Bits, M - 1>(rows, p);
}

template <class Format, int M = kPanelRows>
void dispatch_float_panel(int rows, const PanelRun& p) {
  if (rows == M) return run_float_panel<Format, M>(p);
  if constexpr (M > 1) dispatch_float_panel<Format, M - 1>(rows, p);
}

template <class Format, int M = kFewRows>
void dispatch_few_rows(const TileRun& r) {
  if (r.rows == M) return run_few_rows<Format, M>(r);
  if constexpr (M > 1) dispatch_few_rows<Format, M - 1>(r);
}

inline int rows_of_panel(const TileRun& r, std::int64_t row) {
  return r.rows - row < kPanelRows ? static_cast<int>(r.rows - row) : kPanelRows;
}

template <class Format>
void run_rows(const TileRun& r) {
  if (r.rows <= kFewRows) return dispatch_few_rows<Format>(r);
  const std::int64_t blocks = r.inputs / kBlock;
  for (std::int64_t tile = 0; tile < r.tiles_count; ++tile) {
    const std::uint8_t* stored = r.tiles + tile * r.tile_bytes;
    unpack_tile<Format>(stored, blocks, r.scratch);
    for (std::int64_t row = 0; row < r.rows; row += kPanelRows) {
      const PanelRun p{.weights = r.scratch,
                       .count = blocks,
                       .x = r.panels + row * blocks * kRowBlockBytes,
                       .y = r.y + row * r.y_stride + tile * kTileOutputs,
                       .y_stride = r.y_stride,
                       .outputs = outputs_of_tile(r, tile),
                       .next = stored + r.tile_bytes,
                       .next_bytes = row == 0 ? static_cast<int>(r.tile_bytes / blocks) : 0};
      dispatch_panel<Format::kSum, kernel_bits(Format::kBits)>(rows_of_panel(r, row), p);
    }
  }
}

template <class Format>
void run_float_rows(const TileRun& r) {
  for (std::int64_t tile = 0; tile < r.tiles_count; ++tile) {
    for (std::int64_t row = 0; row < r.rows; row += kPanelRows) {
      const PanelRun p{.weights = r.tiles + tile * r.tile_bytes,
                       .count = r.inputs,
                       .x = r.panels + row * r.inputs * 4,
                       .y = r.y + row * r.y_stride + tile * kTileOutputs,
                       .y_stride = r.y_stride,
                       .outputs = outputs_of_tile(r, tile),
                       .next = nullptr,
                       .next_bytes = 0};
      dispatch_float_panel<Format>(rows_of_panel(r, row), p);
    }
  }
}

void run_tiles(const TileRun& r) {
  switch (r.dtype) {
    case core::DType::kF32: return run_float_rows<F32>(r);
    case core::DType::kF16: return run_float_rows<F16>(r);
    case core::DType::kBF16: return run_float_rows<BF16>(r);
    case core::DType::kQ4_0: return run_rows<Q4_0>(r);
    case core::DType::kQ4_1: return run_rows<Q4_1>(r);
    case core::DType::kQ5_0: return run_rows<Q5_0>(r);
    case core::DType::kQ5_1: return run_rows<Q5_1>(r);
    case core::DType::kQ8_0: return run_rows<Q8_0>(r);
    case core::DType::kQ4_K: return run_rows<Q4_K>(r);
    case core::DType::kQ5_K: return run_rows<Q5_K>(r);
    case core::DType::kQ6_K: return run_rows<Q6_K>(r);
    case core::DType::kW4_BF16: return run_rows<W4_BF16>(r);
    case core::DType::kW4_F32: return run_rows<W4_F32>(r);
    case core::DType::kI32: return;
  }
}

inline void store_f32(std::uint8_t* p, float value) { std::memcpy(p, &value, 4); }
inline void store_i32(std::uint8_t* p, std::int32_t value) { std::memcpy(p, &value, 4); }

/// One block of one row into its panel record. The largest magnitude is taken on the bit patterns,
/// where NaN is above everything, so that a NaN or infinity in the row makes the scale one too
/// instead of vanishing. Blocks whose magnitudes are below 2^-100 become zero (127 / magnitude
/// would overflow further down).
inline void quantise_block(const float* x, std::uint8_t* q, std::uint8_t* factors, int rows) {
  const F a = f_load(x), b = f_load(x + 16);
  const I magnitude = i_set(0x7fffffff);
  const std::int32_t bits =
      i_largest(i_max(i_and(f_bits(a), magnitude), i_and(f_bits(b), magnitude)));
  constexpr std::int32_t kSmallest = (127 - 100) << 23, kInfinity = 0x7f800000;
  const float largest = __builtin_bit_cast(float, bits);
  const bool usable = bits >= kSmallest && bits < kInfinity;
  const F inverse = f_set(usable ? 127.0f / largest : 0.0f);
  const float scale = bits < kSmallest ? 0.0f : largest / 127.0f;
  const I mask = i_set(usable ? -1 : 0);  // 0 * infinity
  const I qa = i_and(f_round(f_mul(a, inverse)), mask),
          qb = i_and(f_round(f_mul(b, inverse)), mask);
  i_store_i8(q, qa);
  i_store_i8(q + 16, qb);
  // Both sums in one: each is within 16 * 127, so the first is the low half, sign and all.
  const std::int32_t both = i_sum(i_add(qa, i_shl<16>(qb)));
  const std::int32_t first = static_cast<std::int16_t>(both), second = (both - first) >> 16;
  store_f32(factors, scale);
  store_f32(factors + 4 * rows, scale * static_cast<float>(first + second));
  store_i32(factors + 8 * rows, -128 * (first + second));
  store_i32(factors + 12 * rows, -128 * first);
  store_i32(factors + 16 * rows, -128 * second);
}

void quantise_rows(const float* x, std::int64_t stride, std::int64_t count, std::int64_t inputs,
                   std::uint8_t* panels) {
  const std::int64_t blocks = inputs / kBlock;
  for (std::int64_t row = 0; row < count; row += kPanelRows) {
    const int rows = count - row < kPanelRows ? static_cast<int>(count - row) : kPanelRows;
    std::uint8_t* panel = panels + row * blocks * kRowBlockBytes;
    for (int m = 0; m < rows; ++m) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        std::uint8_t* record = panel + block * rows * kRowBlockBytes;
        quantise_block(x + (row + m) * stride + block * kBlock, record + kBlock * m,
                       record + kBlock * rows + 4 * m, rows);
      }
    }
  }
}

}  // namespace

extern const Kernels kMatrixKernels;
const Kernels kMatrixKernels{kLevel, kPanelRows, quantise_rows, run_tiles};

}  // namespace segue::ops::ISA
