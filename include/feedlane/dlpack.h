/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dlpack.h
 * Exports tensors of a held batch to other libraries, without a copy, with DLPack. This header only declares the names
 * of DLPack's structs; see https://dmlc.github.io/dlpack.
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
 * Exports tensor number `tensor` of a held batch in the form of DLPack 1.0. `flags`: 0 or FEEDLANE_DLPACK_CUDA_HOST.
 * The export holds a reference to the batch until its deleter is called. Deleters may run on any thread, in any order,
 * after feedlane_loader_destroy and at exit; in a forked child they release nothing.
 *  - E_STALE: the batch was released.
 *  - E_STATE: `flags` is FEEDLANE_DLPACK_CUDA_HOST, but the memory is not registered with CUDA.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_dlpack(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                           struct DLManagedTensorVersioned **out, feedlane_error *err);
/** As feedlane_batch_dlpack, but in the form used before DLPack 1.0. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_batch_dlpack_legacy(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                                  struct DLManagedTensor **out, feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
