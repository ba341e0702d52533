# SPDX-License-Identifier: Apache-2.0
# Monitors, counters and events of a loader.

"Observes a loader, see `Feedlane.monitor`."
mutable struct Monitor
    address::Ptr{L.feedlane_monitor}   # NULL: closed
    lock::ReentrantLock                # held during each call, so that none begins while another task closes the monitor
    Monitor(address) = finalizer(destroy, new(address, ReentrantLock()))
end

function Monitor(loader::Loader)
    out = Ref{Ptr{L.feedlane_monitor}}(C_NULL)
    calling(address -> checked(err -> L.feedlane_monitor_of(address, out, err)), loader.handle)
    return Monitor(out[])
end

"What the getters take."
const Observed = Union{Monitor,Loader}

"""
    Feedlane.monitor(loader)

Opens a monitor of a loader of this process. `Feedlane.stats`, `workers`, `info`, `timings`, `trace`, `slots`, `errors`,
`diagnose` and `report` take a monitor. They also take a loader, and then open a monitor for one call.

A monitor keeps the loader's memory until `close(monitor)`, or until the monitor is garbage-collected. After
`close(loader)` it returns the last values. A consumer of a feeder has only `Feedlane.stats` and `Feedlane.info`; the
other functions throw `E_STATE`. Any task may use a monitor.
"""
monitor(loader::Loader) = Monitor(loader)

function destroy(monitor::Monitor)
    address, monitor.address = monitor.address, Ptr{L.feedlane_monitor}(C_NULL)
    L.feedlane_monitor_destroy(Ref(address))
    return nothing
end

"""
    close(monitor)

Frees the monitor. Later calls throw `E_STATE`; a second `close` has no effect. Any task may call it.
"""
Base.close(monitor::Monitor) = lock(() -> destroy(monitor), monitor.lock)

Base.show(io::IO, monitor::Monitor) = print(io, "Monitor(", monitor.address == C_NULL ? "closed" : "open", ")")

"Runs `f` with the address of the monitor or, for a loader, of a monitor for this call."
reading(f, monitor::Monitor) = lock(monitor.lock) do
    monitor.address == C_NULL && throw(FeedlaneError(L.FEEDLANE_E_STATE, "the monitor is closed"))
    return GC.@preserve monitor f(monitor.address)
end

function reading(f, loader::Loader)
    opened = monitor(loader)
    try
        return reading(f, opened)
    finally
        close(opened)
    end
end

"A struct of counters as a named tuple, without its size. Arrays of characters become strings."
function named(raw::T) where {T}
    names = Tuple(name for name in fieldnames(T) if name != :size && name != :reserved)
    values = map(name -> getfield(raw, name), names)
    return NamedTuple{names}(map(value -> value isa Tuple ? text_of(value) : Int(value), values))
end

"""
    Feedlane.stats(monitor)
    Feedlane.stats(loader)

Totals over the loader's life, and its current state: a named tuple with the members of `feedlane_stats`. Any task may
call it.
"""
stats(observed::Observed) = reading(observed) do address
    out = struct_of(L.feedlane_stats)
    check(L.feedlane_monitor_get_stats(address, out))
    return named(out[])
end

const WORKER_STATES = (:none, :starting, :opening, :ready, :stopping, :failed)

"""
    Feedlane.workers(monitor)
    Feedlane.workers(loader)

A named tuple for each worker, with the members of `feedlane_worker_stats`; `state` is a symbol. Any task may call it.
"""
workers(observed::Observed) = reading(observed) do address
    list = []
    while true
        out = struct_of(L.feedlane_worker_stats)
        check(L.feedlane_monitor_get_worker_stats(address, length(list), out)) == L.FEEDLANE_END && return identity.(list)
        push!(list, merge(named(out[]), (state=WORKER_STATES[out[].state + 1],)))
    end
end

const EVENTS = (:warning, :worker_died, :worker_started, :worker_wanted, :quarantined, :invalid, :sample_retried,
                :sample_substituted, :sample_skipped, :worker_hung, :device_failed,
                :consumer_left, :consumer_lags, :consumer_evicted)

const SAMPLE_EVENTS = (L.FEEDLANE_EVENT_SAMPLE_RETRIED, L.FEEDLANE_EVENT_SAMPLE_SUBSTITUTED, L.FEEDLANE_EVENT_SAMPLE_SKIPPED)
event_kind(number) = number <= length(EVENTS) ? EVENTS[number] : :unknown

"""
    Feedlane.events(loader)
    Feedlane.events(arena)

The events since the last call, oldest first: named tuples of `kind` (a symbol), `text`, `worker`, `batch`, `sample`
(from 1, or `nothing`), `retries` and `substitute` (of a sample that failed; from 1, or `nothing`), `time_ns` and `lost`.
Any task may call it.
"""
events(source::Union{Loader,Arena}) = calling(source.handle) do address
    list = NamedTuple[]
    out = struct_of(L.feedlane_event)
    while check(L.feedlane_loader_event(address, out)) == L.FEEDLANE_OK
        event, what = out[], out[].what
        push!(list, (kind=event_kind(event.kind), text=text_of(what.text), worker=Int(what.worker),
                     batch=Int(what.batch), sample=what.sample < 0 ? nothing : Int(what.sample) + 1,
                     retries=event.kind in SAMPLE_EVENTS ? Int(what.found) : 0,
                     substitute=event.kind == L.FEEDLANE_EVENT_SAMPLE_SUBSTITUTED ? Int(what.needed) + 1 : nothing,
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
