/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * @brief DLManagedTensor, as version 0.8 of DLPack lays it out: https://github.com/dmlc/dlpack. A program that includes
 * dlpack.h itself includes that first.
 */
#ifndef TREE_ATTN_DLPACK_TENSOR_H
#define TREE_ATTN_DLPACK_TENSOR_H
#ifndef DLPACK_DLPACK_H_

#include <stdint.h>

/** Kinds of memory; those of other numbers are refused. */
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLExtDev = 12 } DLDeviceType;
/** Device on which a tensor lies. */
typedef struct {
  int32_t device_type; /**< a DLDeviceType */
  int32_t device_id;   /**< index among the devices of this type */
} DLDevice;
/** Kinds of elements; those of other numbers are refused. */
typedef enum { kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6, kDLFloat8_e4m3fn = 10 } DLDataTypeCode;
/** The type of an element. */
typedef struct {
  uint8_t code;   /**< a DLDataTypeCode */
  uint8_t bits;   /**< of one element */
  uint16_t lanes; /**< 1 */
} DLDataType;
/** A view of memory. */
typedef struct {
  void* data;           /**< the memory; elements begin byte_offset bytes further */
  DLDevice device;      /**< where it lies */
  int32_t ndim;         /**< number of axes */
  DLDataType dtype;     /**< of the elements */
  int64_t* shape;       /**< lengths of the axes [ndim] */
  int64_t* strides;     /**< in elements [ndim]; null: dense, last axis fastest */
  uint64_t byte_offset; /**< of the first element */
} DLTensor;
/** A view with an owner. */
typedef struct DLManagedTensor {
  DLTensor dl_tensor;                       /**< the view */
  void* manager_ctx;                        /**< the owner */
  void (*deleter)(struct DLManagedTensor*); /**< frees the memory */
} DLManagedTensor;

#endif
#endif
