// SPDX-License-Identifier: Apache-2.0
// The C ABI on top of the public classes: structs in, codes and messages out.
#include "segue/c.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "core/build.h"
#include "segue/attention.h"

struct segue_attention {
  std::unique_ptr<segue::Attention> object;
};

struct segue_plan {
  std::unique_ptr<segue::AttentionPlan> object;
  std::vector<segue::AttentionSequence> sequences;  // of the current update
};

namespace {

using segue::ErrorCode;

segue_code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage: return SEGUE_USAGE;
    case ErrorCode::kUnsupported:
    case ErrorCode::kNotFound:
    case ErrorCode::kTooLong: return SEGUE_UNSUPPORTED;
    case ErrorCode::kNoMemory: return SEGUE_NO_MEMORY;
    case ErrorCode::kDevice: return SEGUE_DEVICE_ERROR;
    case ErrorCode::kInvalidFile:
    case ErrorCode::kIo:
    case ErrorCode::kCancelled: break;
  }
  return SEGUE_INTERNAL;
}

segue_code report(segue_code code, std::string_view message, segue_error* error) {
  if (error != nullptr) {
    error->code = code;
    const std::size_t length = std::min(message.size(), sizeof(error->message) - 1);
    std::memcpy(error->message, message.data(), length);
    error->message[length] = '\0';
  }
  return code;
}

segue_code report(const segue::Error& what, segue_error* error) {
  return report(code_of(what.code), what.message, error);
}

segue_code good(segue_error* error) { return report(SEGUE_OK, "", error); }

/// What `body` throws becomes a code. The classes below do not throw; vectors and strings may.
template <class Body>
segue_code guarded(segue_error* error, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(SEGUE_NO_MEMORY, "out of memory", error);
  } catch (const std::exception& what) {
    return report(SEGUE_INTERNAL, what.what(), error);
  }
}

/// A caller's struct, which may be shorter (an older header) or longer (a newer one) than ours, in
/// our size: what is missing keeps its default. False for a size that no header ever had.
template <class T>
bool adopt(const T* given, std::size_t oldest, T& out) {
  if (given == nullptr || given->size < oldest || given->size > 4 * sizeof(T)) return false;
  std::memcpy(&out, given, std::min(static_cast<std::size_t>(given->size), sizeof(T)));
  return true;
}

segue_code bad_struct(const char* name, segue_error* error) {
  return report(SEGUE_USAGE, std::string(name) + " is null or was not filled by its _init function",
                error);
}

/// Enumerators have the same numbers in both headers.
static_assert(static_cast<int>(segue::AttentionDevice::kCuda) == SEGUE_DEVICE_CUDA &&
              static_cast<int>(segue::KvType::kBF16) == SEGUE_BF16 &&
              static_cast<int>(segue::KvType::kF16) == SEGUE_F16 &&
              static_cast<int>(segue::KvLayout::kTokenMajor) == SEGUE_LAYOUT_TOKEN_MAJOR &&
              static_cast<int>(segue::KvLayout::kHeadMajor) == SEGUE_LAYOUT_HEAD_MAJOR &&
              static_cast<int>(segue::KvLayout::kTiled16) == SEGUE_LAYOUT_TILED16 &&
              static_cast<int>(segue::KvLayout::kSwizzled8) == SEGUE_LAYOUT_SWIZZLED8);

template <class Enum>
Enum enum_of(std::int32_t value) {
  return static_cast<Enum>(value < 0 || value > 255 ? 255 : value);  // 255: refused by create()
}

segue::AttentionConfig config_of(const segue_attention_config& c) {
  segue::AttentionConfig config;
  config.device = enum_of<segue::AttentionDevice>(c.device);
  config.threads = c.threads;
  config.q_heads = c.q_heads;
  config.kv_heads = c.kv_heads;
  config.head_dim = c.head_dim;
  config.window = c.window;
  config.scale = c.scale;
  config.softcap = c.softcap;
  config.kv = enum_of<segue::KvType>(c.kv_type);
  config.io = enum_of<segue::KvType>(c.io_type);
  config.layout = enum_of<segue::KvLayout>(c.layout);
  config.page_size = c.page_size;
  config.decode_rows = c.decode_rows;
  if (c.policy != nullptr) config.policy = c.policy;
  if (c.kernel != nullptr) config.kernel = c.kernel;
  return config;
}

segue::AttentionCall call_of(const segue_call& c) {
  segue::AttentionCall call;
  call.q = c.q;
  call.out = c.out;
  call.lse = c.lse;
  call.sinks = c.sinks;
  call.kv = {c.k, c.v, c.pages, c.page_stride, c.head_stride, c.token_stride};
  call.page_tables = c.page_tables;
  call.workspace = c.workspace;
  call.workspace_bytes = static_cast<std::size_t>(c.workspace_bytes);
  call.stream = c.stream;
  call.early_reads = c.early_reads != 0;
  return call;
}

segue::AttentionAppend append_of(const segue_append& c) {
  segue::AttentionAppend rows;
  rows.k = c.k_rows;
  rows.v = c.v_rows;
  rows.k_stride = c.k_row_stride;
  rows.v_stride = c.v_row_stride;
  rows.kv = {c.k, c.v, c.pages, c.page_stride, c.head_stride, c.token_stride};
  rows.page_tables = c.page_tables;
  rows.stream = c.stream;
  return rows;
}

// Sizes of the structs in the first version of the header: never change them.
constexpr std::size_t kFirstConfig = 80;
constexpr std::size_t kFirstLimits = 48;
constexpr std::size_t kFirstCall = 120;
constexpr std::size_t kFirstAppend = 104;
static_assert(sizeof(segue_attention_config) >= kFirstConfig);
static_assert(sizeof(segue_limits) >= kFirstLimits);
static_assert(sizeof(segue_call) >= kFirstCall);
static_assert(sizeof(segue_append) >= kFirstAppend);
static_assert(sizeof(segue_sequence) == 16 && sizeof(segue_error) == 1024);

}  // namespace

extern "C" {

uint32_t segue_abi_version(void) { return SEGUE_ABI_VERSION; }

const char* segue_build(void) {
  static const std::string line = segue::core::build_line();
  return line.c_str();
}

void segue_attention_config_init(segue_attention_config* config) {
  if (config == nullptr) return;
  const segue::AttentionConfig defaults;
  *config = {};
  config->size = sizeof(*config);
  config->kv_type = SEGUE_BF16;
  config->io_type = SEGUE_BF16;
  config->page_size = defaults.page_size;
  config->decode_rows = defaults.decode_rows;
}

void segue_limits_init(segue_limits* limits) {
  if (limits == nullptr) return;
  *limits = {};
  limits->size = sizeof(*limits);
  limits->sequences = 1;
  limits->rows_per_sequence = 1;
}

void segue_call_init(segue_call* call) {
  if (call == nullptr) return;
  *call = {};
  call->size = sizeof(*call);
}

void segue_append_init(segue_append* append) {
  if (append == nullptr) return;
  *append = {};
  append->size = sizeof(*append);
}

segue_code segue_attention_create(const segue_attention_config* config, segue_attention** attention,
                                  segue_error* error) {
  return guarded(error, [&] {
    if (attention == nullptr) return report(SEGUE_USAGE, "no place for the handle", error);
    *attention = nullptr;
    segue_attention_config mine;
    segue_attention_config_init(&mine);
    if (!adopt(config, kFirstConfig, mine)) return bad_struct("config", error);
    auto created = segue::Attention::create(config_of(mine));
    if (!created.ok()) return report(created.error(), error);
    *attention = new segue_attention{std::move(created).value()};
    return good(error);
  });
}

void segue_attention_destroy(segue_attention* attention) { delete attention; }

int64_t segue_attention_page_bytes(const segue_attention* attention) {
  if (attention == nullptr) return -1;
  return attention->object->page_bytes();
}
int64_t segue_attention_k_offset(const segue_attention* attention, int32_t kv_head, int32_t token,
                                 int32_t dim) {
  if (attention == nullptr) return -1;
  return attention->object->k_offset(kv_head, token, dim);
}
int64_t segue_attention_v_offset(const segue_attention* attention, int32_t kv_head, int32_t token,
                                 int32_t dim) {
  if (attention == nullptr) return -1;
  return attention->object->v_offset(kv_head, token, dim);
}

segue_code segue_plan_create(const segue_attention* attention, const segue_limits* limits,
                             segue_plan** plan, segue_error* error) {
  return guarded(error, [&] {
    if (attention == nullptr || plan == nullptr)
      return report(SEGUE_USAGE, "no attention, or no place for the handle", error);
    *plan = nullptr;
    segue_limits mine;
    segue_limits_init(&mine);
    if (!adopt(limits, kFirstLimits, mine)) return bad_struct("limits", error);
    segue::AttentionLimits given;
    given.sequences = mine.sequences;
    given.rows_per_sequence = mine.rows_per_sequence;
    given.rows = mine.rows;
    given.kv_len = mine.kv_len;
    given.table_stride = mine.table_stride;
    given.workspace_bytes = static_cast<std::size_t>(mine.workspace_bytes);
    auto made = attention->object->make_plan(given);
    if (!made.ok()) return report(made.error(), error);
    *plan = new segue_plan{std::move(made).value(), {}};
    return good(error);
  });
}

void segue_plan_destroy(segue_plan* plan) { delete plan; }

segue_code segue_plan_update(segue_plan* plan, const segue_sequence* sequences, int32_t count,
                             void* stream, segue_error* error) {
  return guarded(error, [&] {
    if (plan == nullptr || count < 0 || (sequences == nullptr && count > 0))
      return report(SEGUE_USAGE, "no plan, or no sequences", error);
    plan->sequences.clear();
    for (int32_t i = 0; i < count; ++i) {
      plan->sequences.push_back({sequences[i].depth, sequences[i].rows, sequences[i].prefill != 0});
    }
    const segue::Status status = plan->object->update(plan->sequences, stream);
    return status.ok() ? good(error) : report(status.error(), error);
  });
}

uint64_t segue_plan_workspace_bytes(const segue_plan* plan) {
  return plan == nullptr ? 0 : plan->object->workspace_bytes();
}

segue_code segue_plan_append(segue_plan* plan, const segue_append* append, segue_error* error) {
  return guarded(error, [&] {
    if (plan == nullptr) return report(SEGUE_USAGE, "no plan", error);
    segue_append mine;
    segue_append_init(&mine);
    if (!adopt(append, kFirstAppend, mine)) return bad_struct("append", error);
    const segue::Status status = plan->object->append(append_of(mine));
    return status.ok() ? good(error) : report(status.error(), error);
  });
}

segue_code segue_plan_run(segue_plan* plan, const segue_call* call, segue_error* error) {
  return guarded(error, [&] {
    if (plan == nullptr) return report(SEGUE_USAGE, "no plan", error);
    segue_call mine;
    segue_call_init(&mine);
    if (!adopt(call, kFirstCall, mine)) return bad_struct("call", error);
    const segue::Status status = plan->object->run(call_of(mine));
    return status.ok() ? good(error) : report(status.error(), error);
  });
}

uint64_t segue_plan_explain(const segue_plan* plan, char* json, uint64_t capacity) {
  if (json != nullptr && capacity > 0) json[0] = '\0';
  if (plan == nullptr) return 0;
  std::string text;
  if (guarded(nullptr, [&] {
        text = plan->object->explain();
        return segue_code{SEGUE_OK};
      }) != SEGUE_OK) {
    return 0;
  }
  if (json != nullptr && capacity > 0) {
    const std::size_t length = std::min(text.size(), static_cast<std::size_t>(capacity - 1));
    std::memcpy(json, text.data(), length);
    json[length] = '\0';
  }
  return text.size() + 1;
}

}  // extern "C"
