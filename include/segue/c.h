/* SPDX-License-Identifier: Apache-2.0
 * segue/attention.h as a C ABI: opaque handles, plain structs, pointers of the device, no exception
 * and no exit. What the fields mean, what memory may hold, which strides can work and how graphs
 * are replayed stands there.
 *
 * Structs start with their size, so that a program built against an older header keeps working:
 * fields behind it take their defaults. Fill a struct with its _init function, then set fields.
 * segue_error and segue_sequence have neither, because their layout stays as it is.
 * Every call that can fail returns a code and writes a message into `error` unless that is null.
 * A null handle or struct is SEGUE_USAGE, or what the function's comment says; _init functions
 * leave a null struct alone.
 */
#ifndef SEGUE_C_H
#define SEGUE_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SEGUE_API __attribute__((visibility("default")))
#else
#define SEGUE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with additions. The library serves every program built for its version or an earlier one.
 */
#define SEGUE_ABI_VERSION 1

typedef int32_t segue_code;
enum {
  SEGUE_OK = 0,
  SEGUE_USAGE = 1,        /* a value that can never work */
  SEGUE_UNSUPPORTED = 2,  /* well-formed, but not something that this build or machine can run */
  SEGUE_NO_MEMORY = 3,    /* a buffer or the machine is too small; the message has the sizes */
  SEGUE_DEVICE_ERROR = 4, /* the GPU failed */
  SEGUE_INTERNAL = 5      /* anything else; please report it */
};

enum { SEGUE_DEVICE_CPU = 0, SEGUE_DEVICE_CUDA = 1 };
enum { SEGUE_F32 = 0, SEGUE_F16 = 1, SEGUE_BF16 = 2 };
/* token-major: [page][token][kv_head][head_dim]; head-major: [page][kv_head][token][head_dim]; both
 * with strides of the caller, on the same kernels and with the same bytes as DEVICE. On the CPU the
 * slow reference serves SWIZZLED8. */
enum {
  SEGUE_LAYOUT_DEVICE = 0,
  SEGUE_LAYOUT_TOKEN_MAJOR = 1,
  SEGUE_LAYOUT_HEAD_MAJOR = 2,
  SEGUE_LAYOUT_TILED16 = 3,
  SEGUE_LAYOUT_SWIZZLED8 = 4
};

typedef struct segue_error {
  segue_code code;
  char message[1020]; /* ends with a zero byte */
} segue_error;

typedef struct segue_attention segue_attention;
typedef struct segue_plan segue_plan;

typedef struct segue_attention_config {
  uint64_t size;
  int32_t device;
  int32_t threads;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t window;
  float scale;
  float softcap;
  int32_t kv_type;
  int32_t io_type;
  int32_t layout;
  int32_t page_size;
  int32_t decode_rows;
  int32_t reserved;
  const char* policy; /* null: "segue" */
  const char* kernel; /* null: the library's choice */
} segue_attention_config;

typedef struct segue_limits {
  uint64_t size;
  int32_t sequences;
  int32_t rows_per_sequence;
  int64_t rows;
  int64_t kv_len;
  uint64_t workspace_bytes;
  int32_t table_stride;
  int32_t reserved;
} segue_limits;

typedef struct segue_sequence {
  int64_t depth;
  int32_t rows;
  int32_t prefill;
} segue_sequence;

typedef struct segue_call {
  uint64_t size;
  const void* q;
  void* out;
  float* lse;
  const float* sinks;
  void* k;
  void* v;
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
  int32_t pages;
  int32_t early_reads;
  const int32_t* page_tables;
  void* workspace;
  uint64_t workspace_bytes;
  void* stream;
} segue_call;

typedef struct segue_append {
  uint64_t size;
  const void* k_rows;
  const void* v_rows;
  int64_t k_row_stride;
  int64_t v_row_stride;
  void* k;
  void* v;
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
  int32_t pages;
  int32_t reserved;
  const int32_t* page_tables;
  void* stream;
} segue_append;

/* SEGUE_ABI_VERSION of the library; a program refuses one that is smaller than its own. */
SEGUE_API uint32_t segue_abi_version(void);
/* Version, commit and compiler; static. */
SEGUE_API const char* segue_build(void);

SEGUE_API void segue_attention_config_init(segue_attention_config* config);
SEGUE_API void segue_limits_init(segue_limits* limits);
SEGUE_API void segue_call_init(segue_call* call);
SEGUE_API void segue_append_init(segue_append* append);

SEGUE_API segue_code segue_attention_create(const segue_attention_config* config,
                                            segue_attention** attention, segue_error* error);
/* Plans outlive it. Null is allowed. */
SEGUE_API void segue_attention_destroy(segue_attention* attention);
/* These three are -1 of a null handle, the offsets also of a head, token or dim that a page lacks.
 */
SEGUE_API int64_t segue_attention_page_bytes(const segue_attention* attention);
SEGUE_API int64_t segue_attention_k_offset(const segue_attention* attention, int32_t kv_head,
                                           int32_t token, int32_t dim);
SEGUE_API int64_t segue_attention_v_offset(const segue_attention* attention, int32_t kv_head,
                                           int32_t token, int32_t dim);

SEGUE_API segue_code segue_plan_create(const segue_attention* attention, const segue_limits* limits,
                                       segue_plan** plan, segue_error* error);
/* Null is allowed. No run of it may be in flight. */
SEGUE_API void segue_plan_destroy(segue_plan* plan);
SEGUE_API segue_code segue_plan_update(segue_plan* plan, const segue_sequence* sequences,
                                       int32_t count, void* stream, segue_error* error);
/* 0 of a null handle. */
SEGUE_API uint64_t segue_plan_workspace_bytes(const segue_plan* plan);
SEGUE_API segue_code segue_plan_append(segue_plan* plan, const segue_append* append,
                                       segue_error* error);
/* A stack of 64 KiB is enough for the caller. */
SEGUE_API segue_code segue_plan_run(segue_plan* plan, const segue_call* call, segue_error* error);
/* JSON, ended by a zero byte, cut to `capacity`; returns the bytes that all of it needs. `json` may
 * be null. Of a null handle, or without memory: 0, and an empty text. */
SEGUE_API uint64_t segue_plan_explain(const segue_plan* plan, char* json, uint64_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* SEGUE_C_H */
