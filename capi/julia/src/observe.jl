# SPDX-License-Identifier: Apache-2.0
# Why a run is as fast as it is: stamps, timings, the trace, what bounds the run, and a report of it.

"""
    Feedlane.stamps(batch)

When each step of the batch happened: a named tuple of `dispatched_ns`, `begun_ns`, `committed_ns`, `swept_ns` and `yielded_ns`
(CLOCK_MONOTONIC), which never decrease, and `exposed_ns`, for how long the library's `next` waited for it.
"""
stamps(batch::Batch) = stamps_of(raw(batch))
stamps_of(r) = (dispatched_ns=Int(r.dispatched_ns), begun_ns=Int(r.begun_ns), committed_ns=Int(r.committed_ns),
                swept_ns=Int(r.swept_ns), yielded_ns=Int(r.yielded_ns), exposed_ns=Int(r.exposed_ns))

histogram(h::L.feedlane_histogram) = (count=Int(h.count), sum_ns=Int(h.sum_ns), buckets=collect(Int, h.buckets))

"""
    Feedlane.timings(loader; worker=-1)

How long the steps of batches took, of those that one worker made or (-1) of all: a named tuple with the members of
`feedlane_timings`, each a histogram: `count`, `sum_ns`, and `buckets`. The first bucket counts durations of 0 ns, bucket b
(from 1) those of 2^(b-2) to 2^(b-1) - 1 ns, the last one all longer ones. `nothing`: there are fewer workers. Any task.
"""
timings(loader::Loader; worker=-1) = calling(loader.handle) do address
    out = struct_of(L.feedlane_timings)
    check(L.feedlane_loader_get_timings(address, worker, out)) == L.FEEDLANE_END && return nothing
    t = out[]
    return (exposed=histogram(t.exposed), start=histogram(t.start), queue=histogram(t.queue), work=histogram(t.work),
            ready=histogram(t.ready), hold=histogram(t.hold))
end

"""
    Feedlane.trace(loader; from=1)

Records of the trace with a sequence of at least `from`, oldest first: named tuples with the members of
`feedlane_batch_record`. A batch's record is written when its memory is used again, or the epoch ends. The trace keeps as many
as `Loader(...; trace=1000)` says; without it this throws `E_STATE`. Any task.
"""
trace(loader::Loader; from=1) = calling(loader.handle) do address
    info = struct_of(L.feedlane_loader_info)
    check(L.feedlane_loader_get_info(address, info))
    records = [struct_of(L.feedlane_batch_record)[] for _ in 1:max(info[].trace, 1)]
    count = Ref{UInt64}(0)
    check(L.feedlane_loader_get_trace(address, from, records, length(records), count))
    return map(named, records[1:count[]])
end

const STARTS = (:spawn, :fork, :thread, :external)

"""
    Feedlane.info(loader)

What the loader is, and where its epoch is: a named tuple with the members of `feedlane_loader_info`; `start` is one of `:spawn`,
`:fork`, `:thread` and `:external`. `prefetch_factor` is the number of batches in flight for each worker at the moment, also where
the loader chooses it. Any task.
"""
info(loader::Loader) = calling(loader.handle) do address
    out = struct_of(L.feedlane_loader_info)
    check(L.feedlane_loader_get_info(address, out))
    start = out[].start
    return merge(named(out[]), (start=0 <= start < length(STARTS) ? STARTS[start + 1] : :unknown,))
end

const BOUNDS = (:nothing, :trainer, :data, :worker, :slots, :starting, :processors)

"""
    Feedlane.diagnose(loader)

What bounded the present epoch since it began, or the newest one: a named tuple with the members of `feedlane_diagnosis`;
`bound` is one of `:nothing`, `:trainer`, `:data`, `:worker`, `:slots`, `:starting` and `:processors`. Any task.
"""
diagnose(loader::Loader) = calling(loader.handle) do address
    out = struct_of(L.feedlane_diagnosis)
    check(L.feedlane_loader_diagnose(address, out))
    bound = out[].bound
    return merge(named(out[]), (bound=bound < length(BOUNDS) ? BOUNDS[bound + 1] : :unknown,))
end

"""
    Feedlane.report(loader)

A short text for people about the present epoch, or the newest one: rates, each worker, what bounded it, what to change, and the
errors that occurred. Its form may change; `diagnose` is for programs. Any task.
"""
report(loader::Loader) = calling(loader.handle) do address
    buffer, bytes, failure = Vector{UInt8}(undef, 4096), Ref{UInt64}(0), Report()
    while true
        status = GC.@preserve failure L.feedlane_loader_report(address, buffer, length(buffer), bytes, failure.raw)
        status == L.FEEDLANE_E_LIMIT && bytes[] > length(buffer) || (check(status, failure); break)
        resize!(buffer, bytes[])
    end
    return String(resize!(buffer, bytes[]))
end
