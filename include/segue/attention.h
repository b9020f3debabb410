// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache as a library of its own, for engines that are not ours: decode,
// verify and prefill rows of ragged batches, planned on the host and run on the CPU or on a GPU.
// What a row gets does not depend on the rows beside it, on the batch or on how work was split, bit
// for bit. The same in C: segue/c.h. Nothing throws across this header.
//
// Order of use: Attention::create() once per kind of layer; make_plan() once per kind of step;
// then, step by step, AttentionPlan::update() with the lengths of the batch and run() once per
// layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "segue/error.h"
#include "segue/types.h"

namespace segue {

using AttentionDevice = Device;

/// Where the element (token t of a page, dim d) of a kv head lies in the page. The natural layouts,
/// token-major and head-major, run on the same kernels as the device's own and give the same bytes;
/// their strides are free (KvPages). On the CPU one row then takes up to about twice as long,
/// because K is packed into tiles on its way; many rows share that. On the CPU the slow reference
/// serves kSwizzled8, and explain() says so; on a GPU nothing serves kTiled16.
enum class KvLayout : std::uint8_t {
  kDevice,      // the device's fastest: kTiled16 on the CPU, kSwizzled8 on a GPU
  kTokenMajor,  // [page][token][kv_head][head_dim], "NHD"
  kHeadMajor,   // [page][kv_head][token][head_dim], "HND"
  kTiled16,     // head-major blocks; K transposed in tiles of 16 tokens; V [token][head_dim]
  kSwizzled8,   // head-major blocks in the order in which tensor cores read them
};

/// One kind of layer. Everything that may decide a bit of the result is here or in the row itself.
struct AttentionConfig {
  AttentionDevice device = AttentionDevice::kCpu;
  int threads = 0;  // CPU: 0 takes all that this process may use
  int q_heads = 0;
  int kv_heads = 0;   // divides q_heads, at most 16 query heads each
  int head_dim = 0;   // 64, 80, 96, 128, 256 or 512
  int window = 0;     // a row at position p sees keys p - window + 1 .. p; 0: all keys up to p
  float scale = 0;    // multiplies q.k; 0: 1 / sqrt(head_dim)
  float softcap = 0;  // c > 0: scores become c * tanh(score / c)
  KvType kv = KvType::kBF16;  // of keys and values
  KvType io = KvType::kBF16;  // of q and out: the KV type, or on the CPU f32
  KvLayout layout = KvLayout::kDevice;
  int page_size = 16;            // tokens, a multiple of 8
  std::string policy = "segue";  // the rule that picks the path
  int decode_rows = 1;           // 1 + k, for policies that read it
  std::string kernel;            // forced kernel; empty: the first that supports the shape
};

/// What steps may come to; buffers and captured graphs are bound to it.
struct AttentionLimits {
  int sequences = 1;
  int rows_per_sequence = 1;
  std::int64_t rows = 0;          // of all sequences together; 0: sequences * rows_per_sequence
  std::int64_t kv_len = 0;        // of the longest sequence, its rows in the step included
  std::int32_t table_stride = 0;  // entries of a row of the page tables; 0: what kv_len needs
  /// At most this much is asked for; 0: 512 MiB. With less, policy "segue" splits less; the others
  /// split as their rule says, and update() refuses the step whose partials have no room.
  std::size_t workspace_bytes = 0;
};

/// One sequence of a step. Its row i sits at position depth + i; K and V of its rows have been
/// written before run().
struct AttentionSequence {
  std::int64_t depth = 0;  // keys in the cache before the step
  int rows = 0;            // 0: padding
  bool prefill = false;    // prompt tokens, or generated ones
};

/// One layer of a page pool. Strides in bytes, of K and of V; 0 stands for the dense ones of the
/// layout. Larger ones leave room between pages, heads and tokens, for V in the pages of K, for
/// other layers or for padding. kUsage for strides of which elements would overlap, or that are not
/// multiples of an element (16 bytes on a GPU).
struct KvPages {
  void* k = nullptr;  // only append() writes
  void* v = nullptr;
  std::int32_t pages = 0;  // in the pool; no other page is ever read
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;   // of one kv head: not looked at
  std::int64_t token_stride = 0;  // other than dense: kTokenMajor and kHeadMajor only
};

/// One layer of a step. On a GPU all pointers are device memory, aligned to 16 bytes.
///
/// Memory that no visible key lies in is never used: it may hold anything, NaN included, and so may
/// page table entries that no visible key needs and table rows of padding. A NaN or infinity in a
/// visible K or V row spreads to the rows that see it, as in plain arithmetic, and to no other.
/// Pages outside [0, pages) are not followed; what a visible key there counts as is unspecified.
struct AttentionCall {
  const void* q = nullptr;       // [rows, q_heads, head_dim], rows of all sequences in order
  void* out = nullptr;           // [rows, q_heads, head_dim]
  float* lse = nullptr;          // [rows, q_heads] natural log-sum-exp, sink included; or null
  const float* sinks = nullptr;  // [q_heads] or null
  KvPages kv;
  const std::int32_t* page_tables = nullptr;  // [sequences, table_stride], logical to physical
  void* workspace = nullptr;                  // AttentionPlan::workspace_bytes(); dead between runs
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;  // a cudaStream_t; null: the default stream. The CPU returns when done.
  /// GPU: the kernel before this one in the stream writes no K or V of this step, so reading may
  /// start before it ends.
  bool early_reads = false;
};

/// K and V of a step's rows on their way into the pages.
struct AttentionAppend {
  const void* k =
      nullptr;  // [rows, kv_heads, head_dim] of the io type, rows of all sequences in order
  const void* v = nullptr;
  std::int64_t k_stride = 0;  // bytes from a row to the next; 0: rows lie densely
  std::int64_t v_stride = 0;
  KvPages kv;
  const std::int32_t* page_tables = nullptr;  // [sequences, table_stride]
  void* stream = nullptr;
};

class AttentionPlan;

/// One kind of layer on one device. May be shared by threads; runs on the CPU take turns.
class [[gnu::visibility("default")]] Attention {
 public:
  /// kUsage or kUnsupported, with what was found and what is allowed. On a GPU: the thread's
  /// current one, the same for all objects of a process.
  static Result<std::unique_ptr<Attention>> create(const AttentionConfig& config) noexcept;
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// As given, with the defaults filled in.
  const AttentionConfig& config() const noexcept;
  /// Bytes of K, and of V, of one page.
  std::int64_t page_bytes() const noexcept;
  /// Byte offset of an element within its page, K and V, in dense strides; -1 of a head, token or
  /// dim that a page lacks.
  std::int64_t k_offset(int kv_head, int token, int dim) const noexcept;
  std::int64_t v_offset(int kv_head, int token, int dim) const noexcept;

  /// Buffers for steps within the limits. The plan keeps what it needs of this object alive.
  Result<std::unique_ptr<AttentionPlan>> make_plan(const AttentionLimits& limits) const noexcept;

 private:
  friend class AttentionPlan;
  struct Impl;
  explicit Attention(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// The plan of the current step. Used by one thread at a time.
class [[gnu::visibility("default")]] AttentionPlan {
 public:
  ~AttentionPlan();
  AttentionPlan(const AttentionPlan&) = delete;
  AttentionPlan& operator=(const AttentionPlan&) = delete;

  /// Plans a step; lengths are host memory. On a GPU the plan is sent in stream order, so it must
  /// be the stream of the runs, and not one that is being captured. kUsage outside the limits.
  ///
  /// Graphs: capture run() once, then for every step update() and replay. Everything that depends
  /// on lengths is read from device memory, so the graph needs no new capture; its grid is as large
  /// as the limits allow, and blocks without work return at once.
  Status update(std::span<const AttentionSequence> sequences, void* stream = nullptr) noexcept;

  /// What run() needs, for any step within the limits.
  std::size_t workspace_bytes() const noexcept;

  /// Writes K and V rows to positions depth, depth + 1, ... of their sequences; values are rounded
  /// to the KV type. For callers whose own kernels do not know the layout; may be captured as run()
  /// may. A position without a page in the pool is not written.
  Status append(const AttentionAppend& rows) noexcept;

  /// One layer of the current step. kUsage for pointers and strides that cannot work, kDevice when
  /// the GPU refuses the launch. A stack of 64 KiB is enough for the caller.
  Status run(const AttentionCall& call) noexcept;

  /// Kernel, path and reason, workgroups, bytes and sequences of the current step, as JSON.
  std::string explain() const;

 private:
  friend class Attention;
  struct Impl;
  explicit AttentionPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace segue
