/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * @brief A program in C99, as a user writes it: attention in one call, over a cache that grows, and by heads, with the same
 * bits; a merge; a refusal.
 */
#include "distributed/interface/tree_attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, QUERIES = 3, KEYS = 200, DIM = 8 };

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "consumer: %s; the last error: %s\n", what, ta_error());
  exit(1);
}

/** Elements in memory of exactly their size, and their tensor. */
typedef struct {
  float* elements;
  size_t n_bytes;
  int64_t shape[4];
  DLManagedTensor tensor;
} Array;

static void make(Array* array, int n_axes, int64_t a, int64_t b, int64_t c, int64_t d) {
  static unsigned seed = 1;
  const int64_t shape[4] = {a, b, c, d};
  size_t i, n = 1;
  for (i = 0; i < (size_t)n_axes; ++i) n *= (size_t)(array->shape[i] = shape[i]);
  array->n_bytes = n * sizeof(float);
  array->elements = malloc(array->n_bytes);
  check(array->elements != NULL, "no memory");
  for (i = 0; i < n; ++i) array->elements[i] = (float)((seed = seed * 1103515245u + 12345u) >> 16 & 0xffff) / 32768 - 1;
  memset(&array->tensor, 0, sizeof array->tensor);
  array->tensor.dl_tensor.data = array->elements;
  array->tensor.dl_tensor.device.device_type = kDLCPU;
  array->tensor.dl_tensor.ndim = n_axes;
  array->tensor.dl_tensor.dtype.code = kDLFloat;
  array->tensor.dl_tensor.dtype.bits = 32;
  array->tensor.dl_tensor.dtype.lanes = 1;
  array->tensor.dl_tensor.shape = array->shape;
}

static int same(const Array* a, const Array* b) { return memcmp(a->elements, b->elements, a->n_bytes) == 0; }

int main(void) {
  Array q, k, v, out[4], lse[4];
  ta_setup setup;
  ta_seen seen;
  ta_attention* layer = NULL;
  const int64_t end = INT64_MAX;
  int64_t length = 0;
  int i, done = 0;
  make(&q, 4, 1, HEADS, QUERIES, DIM), make(&k, 4, 1, KV_HEADS, KEYS, DIM), make(&v, 4, 1, KV_HEADS, KEYS, DIM);
  for (i = 0; i < 4; ++i) make(&out[i], 4, 1, HEADS, QUERIES, DIM), make(&lse[i], 3, 1, HEADS, QUERIES, 0);
  memset(&seen, 0, sizeof seen);
  seen.causal = 1;
  check(ta_attend(&q.tensor, &k.tensor, &v.tensor, 0, &seen, &out[0].tensor, &lse[0].tensor, 0) == TA_OK, "ta_attend");

  memset(&setup, 0, sizeof setup);
  setup.size = sizeof setup;
  setup.batch = 1, setup.heads = HEADS, setup.kv_heads = KV_HEADS, setup.head_dim = DIM, setup.value_dim = DIM;
  setup.range_ends = &end; /* one range of keys: the bits of ta_attend() */
  check(ta_open(&setup, &layer) == TA_OK && layer != NULL, "ta_open");
  check(ta_append(layer, 0, KEYS, &k.tensor, &v.tensor) == TA_OK, "ta_append");
  check(ta_length(layer, 0, &length) == TA_OK && length == KEYS, "ta_length");
  check(ta_step(layer, &q.tensor, &seen, &out[1].tensor, &lse[1].tensor) == TA_OK, "ta_step");
  check(ta_step_by_heads(layer, &q.tensor, &seen, &out[2].tensor, &lse[2].tensor) == TA_OK, "ta_step_by_heads");
  check(ta_start(layer, &q.tensor, &seen) == TA_OK && ta_progress(layer, &done) == TA_OK && done, "ta_start");
  check(ta_finish(layer, &out[3].tensor, &lse[3].tensor) == TA_OK, "ta_finish");
  for (i = 1; i < 4; ++i) check(same(&out[0], &out[i]) && same(&lse[0], &lse[i]), "other bits");

  /* No keys: the empty part of a merge is the identity. */
  check(ta_truncate(layer, 0, 0) == TA_OK, "ta_truncate");
  check(ta_step(layer, &q.tensor, NULL, &out[1].tensor, &lse[1].tensor) == TA_OK, "a step without keys");
  check(ta_merge(&out[0].tensor, &lse[0].tensor, &out[1].tensor, &lse[1].tensor, TA_NATURAL, &out[2].tensor,
                 &lse[2].tensor) == TA_OK,
        "ta_merge");
  check(same(&out[0], &out[2]) && same(&lse[0], &lse[2]), "a merge with an empty part");

  q.shape[1] = 3;
  check(ta_step(layer, &q.tensor, NULL, &out[1].tensor, NULL) == TA_INVALID, "other heads are refused");
  check(strstr(ta_error(), "q is [1, 3, 3, 8]") != NULL, "the line of the refusal");
  check(ta_truncate(layer, 1, 0) == TA_RANGE, "another entry is refused");
  ta_close(layer);
  ta_close(NULL);
  free(q.elements), free(k.elements), free(v.elements);
  for (i = 0; i < 4; ++i) free(out[i].elements), free(lse[i].elements);
  printf("consumer: the same bits in one call, from a cache, by heads and in parts\n");
  return 0;
}
