/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * @brief The C interface: attention, merges of (o, lse), and attention over ranks, on DLPack tensors that are not copied.
 *
 * Tensors lie in memory of the host, or those of ta_append(), ta_step(), ta_start(), ta_finish() and ta_combine() on the
 * device of the backend: kDLCUDA for "cuda", with the index of the device that was current at ta_open(), and kDLExtDev
 * for "emulated", in memory of the emulator. All tensors of a step, and of ta_combine(), lie in the same memory, but for
 * learned sinks, which lie on the host. Then no other element passes through the host: Attention says what does. What was
 * queued on the default stream before is seen, and tensors have been read and written when a call returns, unless
 * ta_use_stream() says otherwise. Elements are F64, F32, F16, BF16 or F8_E4M3; strides are at least 0 and that of the
 * last axis is 1, in q, k, v, o and out. A tensor that does not fit is refused before anything is read. Tensors that are
 * written must not overlap others, nor themselves. The caller keeps all tensors: no deleter is called.
 *
 * Every function that returns an int returns a ta_status; ta_error() has the line. Functions on the handles of one
 * communicator are called by one thread at a time, and collective ones by all of its ranks in the same order.
 */
#ifndef TREE_ATTN_H
#define TREE_ATTN_H

#include "distributed/interface/dlpack_tensor.h"

/** Marks an export of the shared library. */
#if defined(__GNUC__)
#define TREE_ATTN_API __attribute__((visibility("default")))
#else
#define TREE_ATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a call. */
typedef enum {
  TA_OK = 0,
  TA_INVALID = 1,   /**< an argument is refused, or a call out of its turn; nothing was changed */
  TA_RANGE = 2,     /**< an index, a length or a position is out of range; nothing was changed */
  TA_TRANSPORT = 3, /**< a message is late or wrong, or another rank has failed: close the handle */
  TA_NO_MEMORY = 4, /**< memory ran out */
  TA_INTERNAL = 5,  /**< a fault of the library */
  TA_CALLBACK = 6   /**< a function of a ta_comm has failed: close the handle, and drop the group behind the ta_comm */
} ta_status;

/** The base of an lse, and what +inf says there: LseForm. */
typedef enum { TA_NATURAL = 0, TA_BASE_TWO = 1, TA_NATURAL_OR_INF_EMPTY = 2 } ta_lse_form;

/** Rule of the keys that a query sees, as SeenRule, and of its scores; null: all of them, as they are. */
typedef struct {
  int32_t causal;              /**< whether query j of l sees the keys up to position n - l + j alone */
  int64_t window;              /**< it sees the last `window` of those; 0: all */
  int64_t sinks;               /**< and the first `sinks` keys of the sequence; 0 without a window */
  const DLManagedTensor* sink; /**< learned natural logits F32 [n_h], one key of value 0 for each head; null: none */
  const DLManagedTensor* mask; /**< [b or 1, n_h or 1, l, n] of all positions, on the host: boolean, false where a key is not
                                  seen, or F32 that is added to natural scores; null: none */
  double softcap;              /**< c of the scores c tanh(s / c), which come before the mask; 0: none */
} ta_seen;

/**
 * Messages of one rank by functions of the program: a process group of PyTorch, an MPI that the library was not built with.
 * They are called one at a time, on the thread that has called the library, and return 0, or another number to fail: then
 * the call of the library returns TA_CALLBACK, and the program knows why. Those that start a message do not wait, and write
 * a request that is not 0, or 0 if the message is complete. Memory stays until then, for ever if need be. Messages from one
 * rank to another keep their order, and all ranks start gathers in the same order. After a wait that was too long or a
 * failure no function is called again, and the group is not used again: some of its messages were never received.
 */
typedef struct {
  int64_t struct_size; /**< sizeof(ta_comm): another one is refused */
  int32_t rank, size;
  void* context; /**< passed to every function */
  /** Starts to concatenate n_bytes of every rank, by rank. @param[out] all size x n_bytes */
  int (*all_gather)(void* context, const void* mine, int64_t n_bytes, void* all, int64_t* request);
  /** Starts to send. */
  int (*post_send)(void* context, const void* data, int64_t n_bytes, int32_t to, int64_t* request);
  /** Starts to receive as many bytes as are sent. */
  int (*post_receive)(void* context, void* data, int64_t n_bytes, int32_t from, int64_t* request);
  /** Waits until n requests are complete, or none has become so for a number of seconds, which may be infinite: that is no
   * failure. @param[in,out] requests those that are complete become 0 */
  int (*wait)(void* context, int64_t n, int64_t* requests, double seconds);
} ta_comm;

/** Attention over a cache that grows. */
typedef struct ta_attention ta_attention;

/** Setup of a ta_attention; all but n_threads the same on every rank. Null and 0 are the defaults, but for the size. */
typedef struct {
  int64_t size; /**< sizeof(ta_setup): another one is refused, since the program was compiled for another version */
  int64_t batch, heads, kv_heads, head_dim, value_dim; /**< no defaults */
  int64_t most_queries; /**< a step of up to so many queries takes no memory, and finds the pages of its window; 0: 1 has its
                             pages, and memory is taken when a step needs it */
  DLDataType key_type,
      value_type;         /**< of what is appended, to F8_E4M3 also others; bits of 0: F32, and the type of the keys */
  double scale;           /**< factor of q.k; 0: 1 / sqrt(head_dim), see has_scale */
  const char* algorithm;  /**< "two-level" */
  const char* backend;    /**< "cpu" */
  int32_t n_threads;      /**< 1 */
  int32_t ranks_per_node; /**< ranks that share memory form a node */
  const void* comm; /**< the address of an MPI_Comm, which is duplicated once for all handles on it: one of them at a time
                       has a step under way, and an error that ends one ends all; null: alone, or over the functions of
                       `callbacks` */
  double timeout;   /**< seconds that one wait may take without progress: 60 */
  const DLManagedTensor *k_scale, *v_scale; /**< [batch, kv_heads] of F8_E4M3, from 2^-100 to 2^100, on the host; null: 1 */
  int64_t n_pages;                 /**< of 64 positions, for all sequences of this rank; 0: rows lie one after the other */
  int64_t page_window, page_sinks; /**< most keys that a step sees, as in ta_seen: other pages are given back; 0: none are */
  int32_t values_in_keys; /**< values are the first value_dim components of the keys, stored once: ta_append() takes no v */
  int32_t has_scale;      /**< whether a scale of 0 is a scale */
  int64_t capacity;       /**< positions of each sequence that memory is taken for at once; not with pages */
  const char*
      refusal; /**< a line: the caller refuses what it was to open, and all ranks return TA_INVALID; null: it does not */
  const ta_comm* callbacks;  /**< copied, its functions and context outlive the handle; handles over the same functions and
                                context share their messages, as those on one communicator do; null: comm says */
  const int64_t* range_ends; /**< [ranks] where the ranges of positions end, the last at INT64_MAX for no end: then a rank
                                holds a range, with the bits of ta_attend(); null: leaves are dealt */
  int32_t no_shared_memory;  /**< whether ranks of a node send as to others, not through memory that they share: there a wait
                                calls no function of the program, so a signal or a lost process is met at the deadline */
  int32_t skips_comparison;  /**< whether a step does not compare the lengths of all ranks and what queries see: an argument
                                that one rank refuses is then refused by it alone, and its group has to be given up */
  const char* transport;     /**< "nccl": NCCL sends from the memory of devices; null: messages lie in host memory */
  int32_t portable; /**< whether a GPU has the bits of the CPU: then no tensor core multiplies; F32 always has them */
} ta_setup;

/** The version of the library, "0.2.0". */
TREE_ATTN_API const char* ta_version(void);
/** The MPI that `comm` of a ta_setup is of, as MPI_Get_library_version() names it; empty: the library was built without one.
 */
TREE_ATTN_API const char* ta_mpi(void);
/** Returns the line of the last call of this thread that failed; valid until the next one. Empty before the first. */
TREE_ATTN_API const char* ta_error(void);

/**
 * Attention in one call, in F32 on the CPU: every query over all keys, heads of a group over the same.
 * @param[in] q [b, n_h, l, d_h] @param[in] k [b, n_kv, n, d_h] @param[in] v [b, n_kv, n, d_v]
 * @param scale factor of q.k; 0: 1 / sqrt(d_h), unless has_scale @param[in] seen may be null
 * @param[out] out [b, n_h, l, d_v] @param[out] lse natural [b, n_h, l]; may be null
 * @param has_scale whether a scale of 0 is a scale: all weights are equal
 * Bits: leaves of 64 positions lie one after the other. A ta_attention deals them, unless it has range_ends, so its outputs
 * differ in the last bits beyond 128 keys.
 */
TREE_ATTN_API int ta_attend(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
                            const ta_seen* seen, const DLManagedTensor* out, const DLManagedTensor* lse, int has_scale);
/**
 * The same by the oracle, in double. All that is written is F64.
 * @param[in] zeta sources [b, n_h, l, d_v]; may be null if energy and gradient are
 * @param[out] out, lse as ta_attend(); may be null
 * @param[out] energy F(zeta) [b, n_h, l]; may be null @param[out] gradient dF/dzeta [b, n_h, l, d_v]; may be null
 */
TREE_ATTN_API int ta_oracle(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v,
                            const DLManagedTensor* zeta, double scale, const ta_seen* seen, const DLManagedTensor* out,
                            const DLManagedTensor* lse, const DLManagedTensor* energy, const DLManagedTensor* gradient,
                            int has_scale);
/**
 * The a-priori bound of the rounding errors of a decode with sums in F32, for every component of the output:
 * error_bound.hpp.
 * @param n_additions longest chain of additions; 0: a tree over n keys, as this library has
 * @param n_rescalings most rescalings of a sum by factors that are no powers of two; 0 in this library
 * @param output_roundoff unit roundoff of the type of the output; 0: F32
 * @param[out] bound F64 [b, n_h, l, d_v]
 */
TREE_ATTN_API int ta_error_bound(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v, double scale,
                                 const ta_seen* seen, double n_additions, double n_rescalings, double output_roundoff,
                                 const DLManagedTensor* bound, int has_scale);
/**
 * Mean and covariance of the values under the weights of one query at a source: first and second derivative of the energy.
 * The scale is part of q, as in the paper.
 * @param[in] q [d_h] @param[in] k [n, d_h] @param[in] v [n, d_v] @param[in] zeta [d_v]; null: 0
 * @param[out] mean F64 [d_v] @param[out] covariance F64 [d_v, d_v]
 */
TREE_ATTN_API int ta_moments(const DLManagedTensor* q, const DLManagedTensor* k, const DLManagedTensor* v,
                             const DLManagedTensor* zeta, const DLManagedTensor* mean, const DLManagedTensor* covariance);
/**
 * Merges (o, lse) of two disjoint sets of keys, from any kernel. If one is empty, with an lse of -inf, o and lse of the
 * other are returned as they are.
 * @param[in] o1, o2 [b, n_h, l, d_v] @param[in] lse1, lse2 [b, n_h, l] @param form a ta_lse_form, of both
 * @param[out] out [b, n_h, l, d_v] @param[out] lse natural [b, n_h, l]
 */
TREE_ATTN_API int ta_merge(const DLManagedTensor* o1, const DLManagedTensor* lse1, const DLManagedTensor* o2,
                           const DLManagedTensor* lse2, int form, const DLManagedTensor* out, const DLManagedTensor* lse);

/*
 * If one rank of several refuses its arguments of ta_open(), ta_step(), ta_start(), ta_combine(), ta_reshard() or, in pages,
 * ta_append(), all ranks return TA_INVALID with the same line, which names that rank, and the handle lives on.
 */
/** Opens attention over the ranks of a communicator or of callbacks, or alone. Collective. @param[out] attention null if it
 * fails */
TREE_ATTN_API int ta_open(const ta_setup* setup, ta_attention** attention);
/** Closes it, which may be null. All ranks close the handles on a communicator in the same order, and between the same
 * opens. The last one on a communicator of MPI is collective, and so is the last one of equal nodes and memory, unless a
 * call has failed with TA_TRANSPORT, or after ta_abandon(). A handle that is closed with a step under way gives up the
 * exchange. */
TREE_ATTN_API void ta_close(ta_attention* attention);
/** Gives up the exchange of this rank, of all handles on the communicator, for programs that fail elsewhere: ta_close() then
 * waits for no other rank. */
TREE_ATTN_API int ta_abandon(ta_attention* attention);
/**
 * Lets ta_append(), ta_step(), ta_start(), ta_finish() and ta_combine() read and write tensors on the device in the order of
 * a stream, from now on, without waiting for the device; see Attention::use_stream().
 * @param stream a cudaStream_t; null: the default stream @param waits 1: calls come after the default stream and wait again
 */
TREE_ATTN_API int ta_use_stream(ta_attention* attention, void* stream, int waits);
/**
 * Appends n positions to a sequence. Every rank passes the same n; it keeps those that it holds.
 * @param[in] k [n_kv, n, d_h] @param[in] v [n_kv, n, d_v], or with an axis of 1 before these; both null on a rank that holds
 * none of the positions, v also where values are in the keys
 */
TREE_ATTN_API int ta_append(ta_attention* attention, int64_t entry, int64_t n, const DLManagedTensor* k,
                            const DLManagedTensor* v);
/** Removes all positions of a sequence but the first n; 0 ends it. */
TREE_ATTN_API int ta_truncate(ta_attention* attention, int64_t entry, int64_t n);
/** Lets a sequence without keys begin with the first n positions of another one, in the same pages. */
TREE_ATTN_API int ta_share(ta_attention* attention, int64_t from, int64_t to, int64_t n);
/**
 * Moves keys and values, so that n of the ranks hold them, and the keys to come; the order of leaves and all bits stay.
 * Collective, see Attention::reshard(). @param range_ends [n] as in ta_setup; null: leaves are dealt to n ranks
 */
TREE_ATTN_API int ta_reshard(ta_attention* attention, int32_t n, const int64_t* range_ends);
/** The positions of a sequence, over all ranks. */
TREE_ATTN_API int ta_length(const ta_attention* attention, int64_t entry, int64_t* length);
/** Tests whether this rank holds a position: 0 or 1. */
TREE_ATTN_API int ta_holds(const ta_attention* attention, int64_t position, int* holds);
/** Attention of the queries over all that was appended: any l in every step. Collective. Arguments as ta_attend(). */
TREE_ATTN_API int ta_step(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen, const DLManagedTensor* out,
                          const DLManagedTensor* lse);
/**
 * ta_step() of layers that are sharded by heads, see Attention::step_by_heads(): of p ranks, rank r passes the queries of
 * the heads [r n_h / p, (r + 1) n_h / p) and gets their output, with the bits of ta_step(). Collective; on the host.
 * @param[in] q [b, n_h / p, l, d_h] @param[in] seen with sinks and a mask of all heads
 * @param[out] out [b, n_h / p, l, d_v] @param[out] lse natural [b, n_h / p, l]; may be null
 */
TREE_ATTN_API int ta_step_by_heads(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen,
                                   const DLManagedTensor* out, const DLManagedTensor* lse);
/** Begins a step, see Attention::start(): waits for other ranks only to compare it, unless skips_comparison. q is read
 * before it returns. */
TREE_ATTN_API int ta_start(ta_attention* attention, const DLManagedTensor* q, const ta_seen* seen);
/** Moves a step that was begun, without waiting; over callbacks only ta_finish() does. @param[out] done whether nothing is
 * left to wait for; may be null */
TREE_ATTN_API int ta_progress(ta_attention* attention, int* done);
/** Ends a step that was begun. @param[out] out, lse as ta_step() */
TREE_ATTN_API int ta_finish(ta_attention* attention, const DLManagedTensor* out, const DLManagedTensor* lse);
/**
 * Merges what the ranks' own kernels have computed, each for its part of the keys. Collective.
 * @param[in] o [b, n_h, l, d_v] @param[in] lse [b, n_h, l] @param form a ta_lse_form
 * @param by_heads whether rank r of p ends with the heads [r n_h / p, (r + 1) n_h / p) alone
 * @param[out] out [b, n_h or n_h / p, l, d_v] @param[out] out_lse natural [b, n_h or n_h / p, l]
 */
TREE_ATTN_API int ta_combine(ta_attention* attention, const DLManagedTensor* o, const DLManagedTensor* lse, int form,
                             int by_heads, const DLManagedTensor* out, const DLManagedTensor* out_lse);

/** Call of the other ranks in which ta_refuse() takes part. */
typedef enum {
  TA_OF_STEP = 0,   /**< ta_step(), ta_step_by_heads(), ta_start() or ta_combine() */
  TA_OF_APPEND = 1, /**< ta_append() */
  TA_OF_RESHARD = 2 /**< ta_reshard() */
} ta_refused;
/**
 * Takes part in a call of the other ranks, for a caller that refuses its arguments before it can pass them: all ranks
 * return TA_INVALID with the line. @param call a ta_refused
 */
TREE_ATTN_API int ta_refuse(ta_attention* attention, const char* line, int call);

#ifdef __cplusplus
}
#endif
#endif
