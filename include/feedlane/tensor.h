/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h
 * Types, shapes and strides: the fields that a trainer declares and the tensors that it receives.
 */
#ifndef FEEDLANE_TENSOR_H
#define FEEDLANE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The largest number of dimensions of a tensor, the batch dimension included. */
#define FEEDLANE_MAX_NDIM 8
/** The largest number of tensors in a batch. */
#define FEEDLANE_MAX_TENSORS 64

/** An element's type in DLPack's numbers: code 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool. */
typedef struct feedlane_dtype {
  uint8_t code;   /**< DLPack's type code */
  uint8_t bits;   /**< bits of each vector lane */
  uint16_t lanes; /**< lanes of a vector type; 0: 1 */
} feedlane_dtype;

/** One field of a sample, as the trainer declares it. `shape` is WITHOUT the batch dimension, so ndim is at most 7. */
typedef struct feedlane_field {
  size_t size;
  const char *name;                 /**< up to 31 bytes, unique within the sample; copied */
  feedlane_dtype dtype;             /**< type of an element */
  int32_t ndim;                     /**< dimensions of one sample, 0 .. 7 */
  int64_t shape[FEEDLANE_MAX_NDIM]; /**< only the first `ndim` entries are used */
} feedlane_field;

/** A row-major tensor, read or written in place. The library fills in this struct. Its pointers are valid as long as
 *  the batch or the task. */
typedef struct feedlane_tensor {
  const char *name;                   /**< name of the field */
  void *data;                         /**< 256-byte aligned */
  uint64_t bytes;                     /**< size of all rows together */
  uint64_t offset;                    /**< of `data` in the data segment, equal on both sides; staged: in its buffer */
  feedlane_dtype dtype;               /**< type of an element */
  int32_t ndim;                       /**< number of dimensions, with the batch dimension if there is one */
  int64_t shape[FEEDLANE_MAX_NDIM];   /**< shape[0]: number of rows, unless unbatched or shaped by the data set */
  int64_t strides[FEEDLANE_MAX_NDIM]; /**< in elements */
} feedlane_tensor;

#ifdef __cplusplus
}
#endif
#endif
