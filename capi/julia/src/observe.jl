# SPDX-License-Identifier: Apache-2.0
# The speed of a run: stamps, timings, the trace, the bottleneck, and a report.

"""
    Feedlane.stamps(batch)

The times of the steps of the batch: a named tuple of `dispatched_ns`, `begun_ns`, `committed_ns`, `swept_ns` and
`yielded_ns` (CLOCK_MONOTONIC), which never decrease. `exposed_ns` is how long the loader waited for the batch.
"""
stamps(batch::Batch) = stamps_of(raw(batch))
stamps_of(r) = (dispatched_ns=Int(r.dispatched_ns), begun_ns=Int(r.begun_ns), committed_ns=Int(r.committed_ns),
                swept_ns=Int(r.swept_ns), yielded_ns=Int(r.yielded_ns), exposed_ns=Int(r.exposed_ns))

histogram(h::L.feedlane_histogram) = (count=Int(h.count), sum_ns=Int(h.sum_ns), buckets=collect(Int, h.buckets))

"""
    Feedlane.timings(monitor; worker=-1)
    Feedlane.timings(loader; worker=-1)

Durations of the steps of the batches that one worker made or, with -1, of all batches: a named tuple with the members
of `feedlane_timings`. Each is a histogram with `count`, `sum_ns` and `buckets`. The first bucket counts durations of 0
ns, bucket b (from 1) durations of 2^(b-2) to 2^(b-1) - 1 ns, the last bucket all longer durations. `nothing`: there are
fewer workers. Any task may call it.
"""
timings(observed::Observed; worker=-1) = reading(observed) do address
    out = struct_of(L.feedlane_timings)
    check(L.feedlane_monitor_get_timings(address, worker, out)) == L.FEEDLANE_END && return nothing
    t = out[]
    return (exposed=histogram(t.exposed), start=histogram(t.start), queue=histogram(t.queue), work=histogram(t.work),
            ready=histogram(t.ready), hold=histogram(t.hold))
end

"""
    Feedlane.trace(monitor; from=1)
    Feedlane.trace(loader; from=1)

Records of the trace whose sequence is at least `from`, oldest first: named tuples with the members of
`feedlane_batch_record`. A record is written when the batch's slot is reused or the epoch ends. `Loader(...;
trace=1000)` sets the number of records that the trace keeps. Throws `E_STATE` if the trace is off. Any task may call
it.
"""
trace(observed::Observed; from=1) =
    reading(address -> records_of(address, from, max(info_of(address).trace, 1)), observed)

function records_of(address, from, room)
    records = [struct_of(L.feedlane_batch_record)[] for _ in 1:room]
    count = Ref{UInt64}(0)
    check(L.feedlane_monitor_get_trace(address, from, records, length(records), count))
    return map(named, records[1:count[]])
end

"""
    Feedlane.slots(monitor)
    Feedlane.slots(loader)

For each slot, the batch in it or, if its `released_ns` is not 0, the last batch that was there: named tuples with the
members of `feedlane_batch_record`. `task` is 0 if the slot was not used yet or is being reused. Any task may call it.
"""
slots(observed::Observed) = reading(observed) do address
    out = struct_of(L.feedlane_stats)
    check(L.feedlane_monitor_get_stats(address, out))
    return records_of(address, L.FEEDLANE_SLOTS, out[].slots)
end

"""
    Feedlane.errors(monitor)
    Feedlane.errors(loader)

The distinct errors and events, whose texts differ in more than numbers, in the order of their first occurrence: named
tuples with the members of `feedlane_error_record`. `kind` is a symbol as in `Feedlane.events`, or `:error` for what the
loader has thrown; `sample` counts from 1 or is `nothing`. The loader keeps 32. Any task may call it.
"""
errors(observed::Observed) = reading(observed) do address
    list, out = NamedTuple[], struct_of(L.feedlane_error_record)
    while check(L.feedlane_monitor_get_error(address, length(list), out)) == L.FEEDLANE_OK
        record = out[]
        push!(list, merge(named(record), (kind=record.kind == 0 ? :error : event_kind(record.kind),
                                          sample=record.sample < 0 ? nothing : Int(record.sample) + 1)))
    end
    return list
end

"The library's struct of facts, for the address of a monitor."
function info_of(address)
    out = struct_of(L.feedlane_loader_info)
    check(L.feedlane_monitor_get_info(address, out))
    return out[]
end

"""
    Feedlane.info(monitor)
    Feedlane.info(loader)

Facts about the loader, and its position in the epoch: a named tuple with the members of `feedlane_loader_info`. `start`
is `:spawn`, `:fork`, `:thread` or `:external`. `prefetch_factor` is the current number of batches in flight per worker,
also if the loader chooses it. Any task may call it.
"""
function info(observed::Observed)
    raw = reading(info_of, observed)
    return merge(named(raw), (start=0 <= raw.start < length(STARTS) ? keys(STARTS)[raw.start + 1] : :unknown,))
end

const BOUNDS = (:nothing, :trainer, :data, :worker, :slots, :starting, :processors)

"""
    Feedlane.diagnose(monitor)
    Feedlane.diagnose(loader)

The bottleneck of the current epoch since its beginning, or of the newest epoch: a named tuple with the members of
`feedlane_diagnosis`. `bound` is `:nothing`, `:trainer`, `:data`, `:worker`, `:slots`, `:starting` or `:processors`. Any
task may call it.
"""
diagnose(observed::Observed) = reading(observed) do address
    out = struct_of(L.feedlane_diagnosis)
    check(L.feedlane_monitor_diagnose(address, out))
    bound = out[].bound
    return merge(named(out[]), (bound=bound < length(BOUNDS) ? BOUNDS[bound + 1] : :unknown,))
end

"""
    Feedlane.report(monitor)
    Feedlane.report(loader)

A short report for people about the current or newest epoch: rates, each worker, the bottleneck, advice, and the errors
that occurred. The format may change; programs use `diagnose`. Any task may call it.
"""
report(observed::Observed) = reading(observed) do address
    buffer, bytes, failure = Vector{UInt8}(undef, 4096), Ref{UInt64}(0), Report()
    while true
        status = GC.@preserve failure L.feedlane_monitor_report(address, buffer, length(buffer), bytes, failure.raw)
        status == L.FEEDLANE_E_LIMIT && bytes[] > length(buffer) || (check(status, failure); break)
        resize!(buffer, bytes[])
    end
    return String(resize!(buffer, bytes[]))
end
