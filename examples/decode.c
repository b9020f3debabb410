/* SPDX-License-Identifier: Apache-2.0
 * One decode step with the C ABI, on a cache in the head-major layout that many engines have: the
 * kernel that explain names is the device's fast one. Checked against a plain loop in double.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segue/c.h"

enum { Q_HEADS = 4, KV_HEADS = 2, HEAD_DIM = 64, PAGE = 16, PAGES = 8, KEYS = 100 };

static void require(segue_code code, const segue_error* error) {
  if (code == SEGUE_OK) return;
  fprintf(stderr, "segue error %d: %s\n", (int)code, error->message);
  exit(1);
}

static float number(void) { return (float)rand() / (float)RAND_MAX * 2.0f - 1.0f; }

static size_t at(int page, int head, int token, int dim) {
  return (((size_t)page * KV_HEADS + (size_t)head) * PAGE + (size_t)token) * HEAD_DIM + (size_t)dim;
}

int main(void) {
  static float k[PAGES * KV_HEADS * PAGE * HEAD_DIM], v[PAGES * KV_HEADS * PAGE * HEAD_DIM];
  static float q[Q_HEADS * HEAD_DIM], out[Q_HEADS * HEAD_DIM];
  const int32_t table[PAGES] = {3, 1, 7, 0, 2, 6, 5, -1}; /* 100 keys need seven pages */
  for (size_t i = 0; i < sizeof(k) / sizeof(k[0]); ++i) k[i] = v[i] = NAN;
  for (int t = 0; t < KEYS; ++t)
    for (int h = 0; h < KV_HEADS; ++h)
      for (int d = 0; d < HEAD_DIM; ++d) {
        k[at(table[t / PAGE], h, t % PAGE, d)] = number();
        v[at(table[t / PAGE], h, t % PAGE, d)] = number();
      }
  for (int i = 0; i < Q_HEADS * HEAD_DIM; ++i) q[i] = number();

  segue_error error;
  segue_attention_config config;
  segue_attention* attention = NULL;
  segue_plan* plan = NULL;
  segue_limits limits;
  segue_call call;
  if (segue_abi_version() < SEGUE_ABI_VERSION) return 1;
  segue_attention_config_init(&config);
  config.q_heads = Q_HEADS;
  config.kv_heads = KV_HEADS;
  config.head_dim = HEAD_DIM;
  config.kv_type = SEGUE_F32;
  config.io_type = SEGUE_F32;
  config.layout = SEGUE_LAYOUT_HEAD_MAJOR;
  config.page_size = PAGE;
  require(segue_attention_create(&config, &attention, &error), &error);
  segue_limits_init(&limits);
  limits.kv_len = PAGES * PAGE;
  require(segue_plan_create(attention, &limits, &plan, &error), &error);

  const segue_sequence step = {KEYS - 1, 1, 0};
  require(segue_plan_update(plan, &step, 1, NULL, &error), &error);
  segue_call_init(&call);
  call.q = q;
  call.out = out;
  call.k = k;
  call.v = v;
  call.pages = PAGES;
  call.page_tables = table;
  call.workspace_bytes = segue_plan_workspace_bytes(plan);
  call.workspace = malloc((size_t)call.workspace_bytes + 1);
  require(segue_plan_run(plan, &call, &error), &error);

  double worst = 0;
  for (int h = 0; h < Q_HEADS; ++h) {
    const int kv = h / (Q_HEADS / KV_HEADS);
    double expected[HEAD_DIM] = {0}, sum = 0;
    for (int t = 0; t < KEYS; ++t) {
      double score = 0;
      for (int d = 0; d < HEAD_DIM; ++d)
        score += (double)q[h * HEAD_DIM + d] * k[at(table[t / PAGE], kv, t % PAGE, d)];
      const double p = exp(score / sqrt((double)HEAD_DIM));
      sum += p;
      for (int d = 0; d < HEAD_DIM; ++d) expected[d] += p * v[at(table[t / PAGE], kv, t % PAGE, d)];
    }
    for (int d = 0; d < HEAD_DIM; ++d)
      worst = fmax(worst, fabs(out[h * HEAD_DIM + d] - expected[d] / sum));
  }
  char json[4096];
  segue_plan_explain(plan, json, sizeof(json));
  printf("%s\n%s\nlargest difference from a loop in double: %.2g\n", segue_build(), json, worst);
  free(call.workspace);
  segue_plan_destroy(plan);
  segue_attention_destroy(attention);
  return worst < 1e-5 ? 0 : 1;
}
