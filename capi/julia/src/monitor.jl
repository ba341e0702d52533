# SPDX-License-Identifier: Apache-2.0
# Counters and events of a loader.

"A struct of counters as a named tuple, without its size. Arrays of characters become strings."
function named(raw::T) where {T}
    names = Tuple(name for name in fieldnames(T) if name != :size && name != :reserved)
    values = map(name -> getfield(raw, name), names)
    return NamedTuple{names}(map(value -> value isa Tuple ? text_of(value) : Int(value), values))
end

"""
    Feedlane.stats(loader)

Totals over the loader's life, and its current state: a named tuple with the members of `feedlane_stats`. Any task may
call it.
"""
function stats(loader::Loader)
    out = struct_of(L.feedlane_stats)
    calling(address -> check(L.feedlane_loader_get_stats(address, out)), loader.handle)
    return named(out[])
end

const WORKER_STATES = (:none, :starting, :opening, :ready, :stopping, :failed)

"""
    Feedlane.workers(loader)

A named tuple for each worker, with the members of `feedlane_worker_stats`; `state` is a symbol. Any task may call it.
"""
workers(loader::Loader) = calling(loader.handle) do address
    list = []
    while true
        out = struct_of(L.feedlane_worker_stats)
        check(L.feedlane_loader_get_worker_stats(address, length(list), out)) == L.FEEDLANE_END && return identity.(list)
        push!(list, merge(named(out[]), (state=WORKER_STATES[out[].state + 1],)))
    end
end

const EVENTS = (:warning, :worker_died, :worker_started, :worker_wanted, :quarantined, :invalid, :sample_retried,
                :sample_substituted, :sample_skipped, :worker_hung, :device_failed,
                :consumer_left, :consumer_lags, :consumer_evicted)

"""
    Feedlane.events(loader)

The events since the last call, oldest first: named tuples of `kind` (a symbol), `text`, `worker`, `batch`, `sample`
(from 1, or `nothing`), `time_ns` and `lost`. Any task may call it.
"""
events(loader::Loader) = calling(loader.handle) do address
    list = NamedTuple[]
    out = struct_of(L.feedlane_event)
    while check(L.feedlane_loader_event(address, out)) == L.FEEDLANE_OK
        event, what = out[], out[].what
        push!(list, (kind=event.kind <= length(EVENTS) ? EVENTS[event.kind] : :unknown, text=text_of(what.text), worker=Int(what.worker),
                     batch=Int(what.batch), sample=what.sample < 0 ? nothing : Int(what.sample) + 1,
                     time_ns=event.time_ns, lost=event.lost))
    end
    return list
end

"The rank of this process and the number of ranks, from the launcher's environment variables."
function rank_detect()
    out = struct_of(L.feedlane_rank)
    checked(err -> L.feedlane_rank_detect(out, err))
    return named(out[])
end
