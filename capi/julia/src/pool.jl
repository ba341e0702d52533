# SPDX-License-Identifier: Apache-2.0
# Pools: memory that is registered with a device.

"""
    Pool(; backend="none", device=0, buffers=0, buffer_bytes=0, budget_bytes=0)

Memory that is registered with a device (pinned), so that the device can copy it without a detour: the batches of
`Loader(...; pinned=pool)`, buffers of the pool (`Feedlane.acquire`), and arrays (`Feedlane.register`).

- `backend`: `"none"` registers nothing; `"mlock"` keeps pages resident, within RLIMIT_MEMLOCK; `"cuda"` uses the driver.
- `device`: the number of the device.
- `buffers`: number of buffers, which are made at once. `buffer_bytes`: their size, rounded up to pages.
- `budget_bytes`: a limit for all memory registered at the same time; 0: none.

Throws a `FeedlaneError`: `E_UNSUPPORTED` if there is no driver or no such backend, `E_DEVICE` if the driver failed,
`E_LIMIT` if a limit is too low, `E_MEMORY`. Any task may call all functions of pools.
"""
mutable struct Pool
    address::Ptr{L.feedlane_pool}   # NULL: closed
    function Pool(; backend="none", device=0, buffers=0, buffer_bytes=0, budget_bytes=0)
        text, out = Base.cconvert(Cstring, String(backend)), Ref{Ptr{L.feedlane_pool}}(C_NULL)
        GC.@preserve text begin
            config = struct_of(L.feedlane_pool_config; backend=pointer(text), device=device, buffers=buffers,
                               buffer_bytes=buffer_bytes, budget_bytes=budget_bytes)
            checked(err -> L.feedlane_pool_create(config, out, err))
        end
        return finalizer(finish, new(out[]))
    end
end

"The finalizer. A loader of the pool may be finalized after it, and a stream may not have finished: then tries again."
function finish(pool::Pool)
    destroy(pool) == L.FEEDLANE_E_STATE && finalizer(finish, pool)
    return nothing
end

function destroy(pool::Pool)
    reference = Ref(pool.address)
    status = L.feedlane_pool_destroy(reference)
    pool.address = reference[]
    return status
end

"The pool's address, for a call."
function open_address(pool::Pool)
    pool.address == C_NULL && throw(FeedlaneError(L.FEEDLANE_E_STATE, "the pool is closed"))
    return pool.address
end

"""
    close(pool)

Unregisters all memory and frees the pool. Throws `E_STATE` if a buffer is held, or if a loader of the pool is open, or a
batch or monitor of such a loader exists; the pool is then unchanged. A second call has no effect. No other task may be
in a call on the pool.
"""
function Base.close(pool::Pool)
    destroy(pool) == L.FEEDLANE_E_STATE && throw(FeedlaneError(L.FEEDLANE_E_STATE, "the pool is in use: release its buffers, " *
        "and close its loaders and their monitors and release their batches, before closing it"))
    return nothing
end

Base.show(io::IO, pool::Pool) = print(io, "Pool(", pool.address == C_NULL ? "closed" : "open", ")")
