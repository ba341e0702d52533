# SPDX-License-Identifier: Apache-2.0
# User-defined samplers: iterables of indices, which may be live, and the callbacks with which the library iterates them.

"The order of a user-defined sampler. The library has a pointer to this object, which all copies of the sampler share."
mutable struct Order
    open::Any       # (epoch, seed) -> what is iterated
    rows::Int       # > 0: each item is a batch of at most this many indices
    is_live::Bool   # an item may be `nothing`
    source::Any     # what is iterated in this epoch
    step::Any       # what `iterate` returned last; `nothing` before the first item
end

is_live(order) = order !== nothing && order.is_live

restart_order(order::Order, epoch::Int64, seed::UInt64, err) = answering(err, L.FEEDLANE_E_SAMPLE) do
    order.source, order.step = order.open(Int(epoch), seed), nothing
    return L.FEEDLANE_OK
end

next_indices(order::Order, indices::Ptr{Int64}, room::UInt64, got::Ptr{UInt64}, err) = answering(err, L.FEEDLANE_E_SAMPLE) do
    next = order.step === nothing ? iterate(order.source) : iterate(order.source, order.step[2])
    next === nothing && return L.FEEDLANE_END
    order.step = next
    if next[1] === nothing
        order.is_live && return L.FEEDLANE_AGAIN
        throw(ArgumentError("the sampler yielded `nothing`: only a sampler with a descriptor may have no index now"))
    end
    batch = order.rows > 0 ? next[1] : (next[1],)
    1 <= length(batch) <= room ||
        throw(ArgumentError("the sampler yielded a batch of $(length(batch)) indices: must have 1 to $(order.rows)"))
    for (k, index) in enumerate(batch)
        index isa Integer && index >= 1 ||
            throw(ArgumentError("the sampler yielded the index $(repr(index)): must be an integer of at least 1"))
        unsafe_store!(indices, Int64(index) - 1, k)
    end
    unsafe_store!(got, length(batch))
    return L.FEEDLANE_OK
end

save_order(order::Order, buffer::Ptr{UInt8}, room::UInt64, bytes::Ptr{UInt64}, err) = answering(err, L.FEEDLANE_E_SAMPLE) do
    position = serialized(order.step === nothing ? nothing : Some(order.step[2]))
    unsafe_store!(bytes, length(position))
    length(position) <= room || return L.FEEDLANE_E_LIMIT   # the library calls again with more room
    GC.@preserve position unsafe_copyto!(buffer, pointer(position), length(position))
    return L.FEEDLANE_OK
end

load_order(order::Order, buffer::Ptr{UInt8}, bytes::UInt64, err) = answering(err, L.FEEDLANE_E_SAMPLE) do
    position = deserialized(copy(unsafe_wrap(Array, buffer, Int(bytes))))
    order.step = position === nothing ? nothing : (nothing, something(position))
    return L.FEEDLANE_OK
end

# Without `drop`: each Sampler and each loader keeps the order, so no callback comes after its end.
callbacks_of(order::Order, saves, length, descriptor) = struct_of(L.feedlane_sampler_callbacks;
    user_data=pointer_from_objref(order), length=length, batch_rows=order.rows, wake_fd=descriptor,
    restart=@cfunction(restart_order, Int32, (Ref{Order}, Int64, UInt64, Ptr{L.feedlane_error})),
    next=@cfunction(next_indices, Int32, (Ref{Order}, Ptr{Int64}, UInt64, Ptr{UInt64}, Ptr{L.feedlane_error})),
    save=saves ? @cfunction(save_order, Int32, (Ref{Order}, Ptr{UInt8}, UInt64, Ptr{UInt64}, Ptr{L.feedlane_error})) : C_NULL,
    load=saves ? @cfunction(load_order, Int32, (Ref{Order}, Ptr{UInt8}, UInt64, Ptr{L.feedlane_error})) : C_NULL)

"""
    custom_sampler(open; length=0, max_rows=0, saves=false, descriptor=nothing)

A user-defined sampler. `open(epoch, seed)` returns an iterable of the indices of an epoch (from 0), which count from 1.
`seed` is the loader's, 0 without a loader.

    evens = custom_sampler(length=50) do epoch, seed
        (2i for i in 1:50)
    end

- `length`: number of indices in an epoch; 0: unknown.
- `max_rows`: above 0, each item is a batch, a collection of at most this many indices, and `length` counts batches.
- `saves`: the position is part of `Feedlane.state`. It is the iteration state of the iterable, which is serialized: for
  ranges, arrays, and generators over them. A resumed loader calls `open`, and continues there.
- `descriptor`: makes the sampler live. An item `nothing` then means that there is no index now; the iteration continues
  when the descriptor (a `RawFD`; an eventfd, a pipe, a socket) is readable, or earlier. The iterable first reads what
  made it readable, then looks for indices. Keep it open as long as the sampler and its loader exist. See `Live`.

Use a sampler in one loader at a time. The iterable runs in the task that drives the loader, and must not wait. If it
throws, the loader first yields all earlier batches, then throws a `FeedlaneError` with the exception's text; the next
call continues with the iteration.
"""
function custom_sampler(open; length=0, max_rows=0, saves=false, descriptor=nothing)
    number = descriptor === nothing ? Int32(0) : reinterpret(Int32, RawFD(descriptor))
    descriptor === nothing || number > 0 || throw(ArgumentError("descriptor=$descriptor: must be an open descriptor above 0"))
    order = Order(open, max_rows, descriptor !== nothing, (), nothing)
    table = callbacks_of(order, saves, length, number)
    return GC.@preserve table Sampler(L.FEEDLANE_SAMPLER_CUSTOM; makes_batches=max_rows > 0, order=order, callbacks=address_of(table))
end

const EFD_CLOEXEC_NONBLOCK = 0o2004000

struct EpochEnd end

"""
    Live(; max_rows=0)

A live source of indices, for `Loader(...; sampler=Live())`: requests, sensors, growing files. `put!(live, index)` adds an
index, from 1; a batch waits until it is full or the epoch ends. With `max_rows`, `put!(live, indices)` adds a batch of at
most this many indices, which does not wait for others. `Feedlane.end_epoch!(live)` ends the epoch after what was added
before; what is added afterwards is for the next epoch. Any task may call these two, in any thread; they do not wait.

While there are no indices, the loop over the loader waits in Julia's event loop. Use a `Live` in one loader at a time.
"""
mutable struct Live
    added::Channel{Any}
    fd::RawFD
    max_rows::Int
    function Live(; max_rows=0)
        fd = ccall(:eventfd, Cint, (Cuint, Cint), 0, EFD_CLOEXEC_NONBLOCK)
        Base.systemerror("eventfd", fd < 0)
        return finalizer(live -> ccall(:close, Cint, (RawFD,), live.fd), new(Channel{Any}(Inf), RawFD(fd), max_rows))
    end
end

function add!(live::Live, item)
    put!(live.added, item)
    ccall(:eventfd_write, Cint, (RawFD, UInt64), live.fd, 1)   # after the item, which its reader then finds
    return live
end
Base.put!(live::Live, indices) = add!(live, indices)

"Ends the epoch of a `Live` after what was added so far."
end_epoch!(live::Live) = add!(live, EpochEnd())

function Base.iterate(live::Live, _=nothing)
    if !isready(live.added)
        ccall(:eventfd_read, Cint, (RawFD, Ref{UInt64}), live.fd, Ref{UInt64}())   # before the second look
        isready(live.added) || return nothing, nothing
    end
    item = take!(live.added)
    return item isa EpochEnd ? nothing : (item, nothing)
end

sampler_of(live::Live) = custom_sampler((epoch, seed) -> live; max_rows=live.max_rows, descriptor=live.fd)
sampler_of(::Channel) = throw(ArgumentError("sampler is a Channel: pass a Live, and put! the indices there"))
