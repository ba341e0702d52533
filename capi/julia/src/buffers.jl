# SPDX-License-Identifier: Apache-2.0
# Buffers of pools, registered arrays, and streams that read batches and buffers.

"""
    Feedlane.acquire(pool, T, dims...; timeout=Inf)

An array in a buffer of the pool, which the caller holds until `release!(array)`, or until the array is garbage-collected.
After the release any use throws `E_STALE`. Throws a `FeedlaneError`: `TIMEOUT` if no buffer was released in time,
`E_STATE` if the pool has no buffers, `E_DEVICE` (once) if a stream failed on which a buffer had been released.
"""
function acquire(pool::Pool, ::Type{T}, dims::Integer...; timeout=Inf) where {T}
    isbitstype(T) || throw(ArgumentError("a buffer has no elements of type $T: must be a bits type"))
    any(dim -> dim < 0, dims) && throw(ArgumentError("dimensions are $dims: must not be negative"))
    out, report = struct_of(L.feedlane_buffer), Report(0)
    status = GC.@preserve pool out report in_slices(timeout) do first, ns
        arguments = (open_address(pool), ns, address_of(out), address_of(report.raw))
        first ? L.feedlane_pool_acquire_gc_safe(arguments...) :
                in_thread(L.feedlane_pool_acquire_threaded, L.feedlane_pool_acquire_gc_safe, arguments...)
    end
    check_ok(status, report)
    token = finalizer(release, Token(out[].token, C_NULL, pool))
    needed = sizeof(T) * prod(Int.(dims))
    if needed > out[].bytes
        release(token)
        throw(ArgumentError("an array of $needed bytes does not fit into a buffer of $(out[].bytes): " *
                            "raise buffer_bytes of the pool"))
    end
    return BatchArray{T,length(dims)}(token, Ptr{T}(out[].data), Int.(dims))
end

"""
    release!(batch; stream=nothing)
    release!(array; stream=nothing)

Gives the memory of a batch back to the workers, or an array of `Feedlane.acquire` back to its pool. Any use of the arrays
afterwards is an error. With a `stream`, a `Ptr` to a stream of the pool's device, the memory is free when the stream has
completed all work enqueued so far, or has failed. Throws `E_STALE` if it was already released. `E_DEVICE`,
`E_UNSUPPORTED` and `E_STATE` (the loader is not `pinned`): the caller still holds it. Any task may call it.
"""
release!(batch::Batch; stream=nothing) = release_on(token(batch), stream)

function release!(array::BatchArray; stream=nothing)
    array.token.owner isa Pool || throw(ArgumentError("this array belongs to a batch: release the batch"))
    return release_on(array.token, stream)
end

release_on(token::Token, ::Nothing) = release(token) ? nothing : throw_released()

function release_on(token::Token, stream::Ptr)
    claim(token) || throw_released()
    token.live = false
    try
        checked(err -> token.owner isa Pool ? L.feedlane_pool_release(token.owner.address, token.number, stream, err) :
                       L.feedlane_batch_release_on(token.address, token.number, stream, err))
    catch
        token.live, token.released = true, false
        rethrow()
    end
    return nothing
end

"""
    Feedlane.record_stream(batch, stream)

Records that `stream`, a `Ptr`, uses the batch: after the release, its memory is kept until the stream has completed all
work enqueued before. For tensors exported with `Feedlane.dlpack`. Throws a `FeedlaneError`: `E_LIMIT` after four streams
of one batch, `E_STATE` if the loader is not `pinned`, `E_STALE`, `E_UNSUPPORTED`. Any task may call it.
"""
function record_stream(batch::Batch, stream::Ptr)
    held = token(batch)
    held.live || throw_released()
    GC.@preserve batch checked(err -> L.feedlane_batch_record_stream(held.address, held.number, stream, err))
    return nothing
end

bytes_in(array::DenseArray) = sizeof(eltype(array)) * length(array)

"""
    Feedlane.copy_to_device(pool, device_memory, array; stream)

Enqueues a copy of the array to device memory, a `Ptr`, on `stream`, a `Ptr`. With the backends `"none"` and `"mlock"`,
device memory is memory of this process. The caller keeps the array unchanged and reachable until the copy is complete.
Throws a `FeedlaneError`: `E_DEVICE` or `E_UNSUPPORTED`, and nothing was enqueued.
"""
function copy_to_device(pool::Pool, device_memory::Ptr, array::DenseArray; stream::Ptr)
    GC.@preserve array checked() do err
        L.feedlane_pool_copy(open_address(pool), device_memory, pointer(array), bytes_in(array), stream, err)
    end
    return nothing
end

"""
    Feedlane.register(f, pool, array)

Calls `f()` while the array's memory, including all of each page that it touches, is registered with the pool's device,
and returns its result. No copy of the array may be in progress when `f` returns. Throws a `FeedlaneError`: `E_STATE` if a
part of these pages is registered already, `E_LIMIT`, `E_DEVICE`.
"""
function register(f, pool::Pool, array::DenseArray)
    address = open_address(pool)
    GC.@preserve array begin
        checked(err -> L.feedlane_pool_register(address, pointer(array), bytes_in(array), err))
        try
            return f()
        finally
            checked(err -> L.feedlane_pool_unregister(address, pointer(array), err))
        end
    end
end

"""
    Feedlane.stats(pool)

The pool's counters: a named tuple with the members of `feedlane_pool_stats`.
"""
function stats(pool::Pool)
    out = struct_of(L.feedlane_pool_stats)
    GC.@preserve pool check(L.feedlane_pool_get_stats(open_address(pool), out))
    return named(out[])
end
