/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dlpack.h
 * Tensors of a held batch for other libraries, in place, by DLPack. Its structs are only named here; see
 * https://dmlc.github.io/dlpack.
 */
#ifndef FEEDLANE_DLPACK_H
#define FEEDLANE_DLPACK_H

#include "batch.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;
/** A flag: report memory that is registered with CUDA as kDLCUDAHost instead of kDLCPU. */
#define FEEDLANE_DLPACK_CUDA_HOST 1

/**
 * Exports tensor number `tensor` of a held batch by DLPack 1.0. `flags`: 0 or FEEDLANE_DLPACK_CUDA_HOST. The export has
 * a reference to the batch until its deleter is called. The deleter may run on any thread, in any order, after
 * feedlane_loader_destroy and at exit; in a forked child it releases nothing.
 *  - E_STALE: the batch was released.
 *  - E_STATE: FEEDLANE_DLPACK_CUDA_HOST, and the memory is not registered with CUDA.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_dlpack(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                           struct DLManagedTensorVersioned **out, feedlane_error *err);
/** The same in the form before DLPack 1.0. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_batch_dlpack_legacy(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                                  struct DLManagedTensor **out, feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
