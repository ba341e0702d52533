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
/** A flag: report the device type of the pool's backend, such as kDLCUDAHost, instead of kDLCPU. */
#define FEEDLANE_DLPACK_PINNED 1
/** A flag: export in the form used before DLPack 1.0, a struct DLManagedTensor. */
#define FEEDLANE_DLPACK_LEGACY 2

/**
 * Exports tensor number `tensor` of a held batch in the form of DLPack 1.0, a struct DLManagedTensorVersioned, unless
 * `flags` has FEEDLANE_DLPACK_LEGACY. `*out` is a pointer to this struct. `flags` is a sum of FEEDLANE_DLPACK_*. The
 * export holds a reference to the batch until its deleter is called. Deleters may run on any thread, in any order,
 * after feedlane_loader_destroy and at exit; in a forked child they release nothing.
 *  - E_STALE: the batch was released.
 *  - E_STATE: `flags` has FEEDLANE_DLPACK_PINNED, but the memory is not registered with a device that DLPack has a type for.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_dlpack(feedlane_loader *l, uint64_t token, int32_t tensor, int32_t flags,
                                           void **out, feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
