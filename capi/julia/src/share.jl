# SPDX-License-Identifier: Apache-2.0
# One loader, many trainers: a feeder's places for consumers and its loop, and consumers' loaders.

const SHARES = (none=L.FEEDLANE_SHARE_NONE, every=L.FEEDLANE_SHARE_EVERY, deal=L.FEEDLANE_SHARE_DEAL)
const LAGS = (block=L.FEEDLANE_LAG_BLOCK, evict=L.FEEDLANE_LAG_EVICT, observe=L.FEEDLANE_LAG_OBSERVE)
const CONSUMER_STATES = (:none, :offered, :attached, :evicted, :left)
const JOIN_SECONDS = 60

"The value of a symbol in `choices`, or an error that names the argument."
choice(what, choices::NamedTuple, name::Symbol) = haskey(choices, name) ? choices[name] :
    throw(ArgumentError("$what=:$name: must be one of $(join(keys(choices), ", "))"))

consumer_config(id, lag, evict_after, pool=nothing) =
    struct_of(L.feedlane_consumer_config; id=something(id, -1), lag=choice("lag", LAGS, lag),
              evict_after_ns=nanoseconds(evict_after), pinned=pool === nothing ? C_NULL : open_address(pool))

"""
A place that was opened for another process: its number `id`, and the descriptor `fd` to pass to that process. Call
`close` when the process has it; after that nobody else can join with it.
"""
mutable struct Place
    id::Int
    fd::RawFD
end

function Base.close(place::Place)
    fd, place.fd = place.fd, RawFD(-1)
    fd == RawFD(-1) || ccall(:close, Cint, (RawFD,), fd)
    return nothing
end

"""
    Feedlane.open_consumer(loader; id=nothing, lag=:block, evict_after=0)

Opens a place of a loader with `share` for one consumer and returns it: `place.id`, and `place.fd` to pass to the
process that calls `join_feeder`. From now on batches are kept for the place. `id` is the place, with `share=:deal` the
rank. With `share=:deal`, call this again to replace a consumer that has ended.

`lag` is how the feeder acts when it has no free slot because this consumer has not released its batches. `:block`
waits. `:evict` waits, then evicts a consumer that took and returned no batch for `evict_after` seconds (0: 60).
`:observe` revokes batches that the consumer has not taken yet (`Feedlane.missed`; not allowed with `:deal`). Throws a
`FeedlaneError`: `E_LIMIT` if all places have a consumer, `E_ARGUMENT` if `id` is out of range or this place has a
consumer, `E_STATE` if the loader is not shared.
"""
function open_consumer(loader::Loader; id=nothing, lag=:block, evict_after=0)
    config, number, fd = consumer_config(id, lag, evict_after), Ref{Int32}(-1), Ref{Int32}(-1)
    driving(loader.handle) do address
        check(L.feedlane_loader_open_consumer(address, config, number, fd, loader.report.raw), loader.report)
    end
    return Place(number[], RawFD(fd[]))
end

"""
    Feedlane.serve(loader; timeout=Inf)

The feeder's loop: delivers batches to the consumers, receives released slots, admits consumers and detects their ends.
It returns `true` when every batch of the epoch was delivered. Before the first epoch it returns `true` when `consumers`
consumers have joined; call it then if consumers join by a path and none may miss a batch. After an epoch it returns
`true` when all consumers have left. `false`: `timeout` seconds have passed. Other tasks run while it waits.

Throws a `FeedlaneError`: `E_PEER_DEAD` if there is no consumer, or with `share=:deal` if a place has none and the
batches kept for it prevent progress (see `Feedlane.open_consumer`); `E_HUNG` if consumers that were evicted or have
left hold every slot; `INTERRUPTED`.
"""
serve(loader::Loader; timeout=Inf) = GC.@preserve loader driving(address -> serve(loader, address, timeout), loader.handle)

function serve(loader::Loader, address, timeout)
    deadline = timeout == Inf ? Inf : time() + timeout
    while true
        err = address_of(loader.report.raw)
        status = calls_back(loader.handle) ? L.feedlane_loader_serve(address, POLL_NS, err) :
                 L.feedlane_loader_serve_gc_safe(address, Int64(POLL_NS), err)
        if status == L.FEEDLANE_INTERRUPTED && loader.report.raw[].os_errno != 0
            yield()   # a signal: Julia delivers it
        elseif status != L.FEEDLANE_TIMEOUT
            status == L.FEEDLANE_END && return true
            throw(error_of(status, loader.report))
        else
            left = deadline == Inf ? Inf : deadline - time()
            left <= 0 && return false
            sleep_on(loader.handle, address, left)
        end
    end
end

"""
    Feedlane.consumers(loader)

The consumers of a feeder, including the ones that have ended and still hold batches: named tuples with the members of
`feedlane_consumer_stats`. `state` and `lag` are symbols.
"""
consumers(loader::Loader) = driving(loader.handle) do address
    list = []
    while true
        out = struct_of(L.feedlane_consumer_stats)
        check(L.feedlane_loader_get_consumer(address, length(list), out)) == L.FEEDLANE_END && return identity.(list)
        push!(list, merge(named(out[]), (state=CONSUMER_STATES[out[].state + 1], lag=keys(LAGS)[out[].lag + 1])))
    end
end

"""
    join_feeder(place; fields, batchsize=1, pool=nothing, timeout=60)
    join_feeder(path; fields, id=nothing, lag=:block, evict_after=0, batchsize=1, pool=nothing, timeout=60)

The `Loader` of a consumer, which yields the batches of a feeder in another process. The first form takes the descriptor
(a `RawFD`) of the feeder's `Feedlane.open_consumer`, and closes it in every case. The second form takes the feeder's
`share_path` and the options of `open_consumer`; the feeder opens the place at its next `serve` or `poll`.

`fields` are the feeder's, in the form that `Loader` takes: `(x=(Float32, (4, 3)), y=(Int64, ()))`. `batchsize` must be
0 if the feeder's is 0. A `pool` registers the batches' memory for reading; keep it until they are released. The first epoch is the feeder's epoch at the time of the join.

A consumer's arrays are read-only memory: a write throws a `ReadOnlyMemoryError` (x86-64), and a write in C code ends
the process. A consumer's loader works like any `Loader`, except that only the feeder has workers.

Throws a `FeedlaneError`: `E_PEER_DEAD` if the feeder has ended or no feeder listens at the path, `TIMEOUT` if it did
not answer in time, `E_CORRUPT` or `E_ABI` if the descriptor is not connected to a feeder or the feeder's library is of
another version. A loop over the loader throws `E_PEER_DEAD` after the feeder's end, `E_HUNG` after this consumer was
evicted, and `E_STATE` if the feeder is in a later epoch or has stopped this one.
"""
function join_feeder(fd::RawFD; fields, batchsize=1, pool=nothing, timeout=JOIN_SECONDS)
    config = consumer_config(nothing, :block, 0, pool)
    return GC.@preserve config consumer_of(fields, batchsize, pool) do out, err
        L.feedlane_loader_join_gc_safe(reinterpret(Int32, fd), Cstring(C_NULL), address_of(config), nanoseconds(timeout), out, err)
    end
end

function join_feeder(path::AbstractString; fields, batchsize=1, timeout=JOIN_SECONDS, id=nothing, lag=:block, evict_after=0,
                     pool=nothing)
    config, place = consumer_config(id, lag, evict_after, pool), Base.cconvert(Cstring, String(path))
    return GC.@preserve config place consumer_of(fields, batchsize, pool) do out, err
        L.feedlane_loader_join_gc_safe(Int32(-1), Cstring(pointer(place)), address_of(config), nanoseconds(timeout), out, err)
    end
end

"The loader of the handle that `join` writes."
function consumer_of(join, fields, batchsize, pool)
    names, specs = declared(fields)
    out, report = Ref{Ptr{L.feedlane_loader}}(C_NULL), Report()
    status = GC.@preserve out report join(address_of(out), address_of(report.raw))
    status == L.FEEDLANE_OK || throw(error_of(status, report))
    kinds = Tuple{map(spec -> array_type(spec, batchsize != 0), specs)...}
    loader = Loader{names,kinds}(Handle(out[], false, nothing, pool), struct_of(L.feedlane_batch), report, 0)
    loader.next_epoch = reading(info_of, loader).next_epoch
    return loader
end

"Number of batches just before this one that the feeder revoked, on a consumer with `lag=:observe`."
missed(batch::Batch) = Int(raw(batch).missed)
