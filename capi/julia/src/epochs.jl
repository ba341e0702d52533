# SPDX-License-Identifier: Apache-2.0
# The epochs of a loader, their batches, and the position in an epoch.

# A wait polls in C for this long before the task sleeps in Julia's event loop. A batch that comes soon costs no system
# call.
const POLL_NS = 20_000

"""
    begin!(loader[, epoch])

Starts an epoch (from 0; by default the next one), and workers that are not running. An epoch in progress is abandoned.
A `for` loop calls this function itself; call it before `next!`.
"""
function begin!(loader::Loader, epoch::Integer=loader.next_epoch)
    let_go(loader)
    driving(loader.handle) do address
        err = address_of(loader.report.raw)
        status = GC.@preserve loader calls_back(loader.handle) ? L.feedlane_loader_begin(address, epoch, err) :
                                     L.feedlane_loader_begin_gc_safe(address, Int64(epoch), err)
        loader.handle.crew === nothing || start_missing(loader.handle.crew, address)   # also after a failure
        check(status, loader.report)
    end
    loader.next_epoch = epoch + 1
    return loader
end

"Releases the batch that the loop holds, unless the user has kept it."
function let_go(loader::Loader)
    current = loader.handle.current
    current === nothing && return
    loader.handle.current = nothing
    (current::Token).kept || release(current)
    return nothing
end

"""
Repeats a call of the library until its outcome is not TIMEOUT, or the time is over. It never sleeps in C, so other
tasks run, and garbage collections in other threads do not wait for it.
"""
function wait_next(loader::Loader, address, timeout)
    deadline = timeout == Inf ? Inf : time() + timeout
    never_waits = loader.handle.is_inline && !is_live(loader.handle.order)
    poll_ns = never_waits ? L.FEEDLANE_FOREVER : timeout == 0 ? 0 : POLL_NS
    while true
        status = L.feedlane_loader_next(address, poll_ns, loader.raw, loader.report.raw)
        if status == L.FEEDLANE_INTERRUPTED && loader.report.raw[].os_errno != 0
            yield()   # a signal: Julia delivers it
        elseif status != L.FEEDLANE_TIMEOUT
            return status
        else
            left = deadline == Inf ? Inf : deadline - time()
            left <= 0 && return status
            sleep_on(loader.handle, address, left)
        end
    end
end

const COLLECTIONS = 4

"Calls `f` until its outcome is not SLOTS_HELD. Before each further call it collects batches that are unreachable."
function collecting(f)
    status = f()
    for round in 1:COLLECTIONS
        status == L.FEEDLANE_SLOTS_HELD || break
        GC.gc(round > 1)
        round > 1 && sleep(0.001)   # time for finalizers of other threads
        status = f()
    end
    return status
end

"The status of the next batch. If it is OK, the loader's `raw` is filled in."
take_next(loader::Loader, timeout) =
    GC.@preserve loader driving(address -> collecting(() -> wait_next(loader, address, timeout)), loader.handle)

function batch_of(loader::Loader{names,A}) where {names,A}
    raw = loader.raw[]
    token = Token(raw.token, loader.handle.address, loader.handle)
    return Batch{names,A}(token, arrays_held(A, token, raw), raw)
end

"The arrays. A batch that lacks declared tensors, or has other ones, is released."
function arrays_held(::Type{A}, token, raw) where {A}
    try
        raw.tensor_count >= fieldcount(A) || throw(FeedlaneError(L.FEEDLANE_E_UNSUPPORTED, "the batch lacks declared fields"))
        return arrays_of(A, token, raw.tensors)
    catch
        release(token)
        rethrow()
    end
end

"Returns true for a batch and false for END. Throws for any other status, also for SLOTS_HELD and INTERRUPTED."
function outcome(loader::Loader, status)
    status == L.FEEDLANE_OK && return true
    status == L.FEEDLANE_END && return false
    throw(error_of(status, loader.report))
end

"""
    next!(loader; timeout=Inf)

The next batch of the epoch that `begin!` has started, or `nothing` at its end. The caller holds the batch until
`release!`, or until it is garbage-collected. Throws a `FeedlaneError`: `TIMEOUT` if no batch came within `timeout`
seconds, `SLOTS_HELD` if batches in use occupy every slot, `E_SAMPLE` if an observation could not be made. After these
three, the next call continues with the epoch.
"""
function next!(loader::Loader; timeout=Inf)
    outcome(loader, take_next(loader, timeout)) || return nothing
    return keep(batch_of(loader))
end

function Base.iterate(loader::Loader)
    begin!(loader)
    return iterate(loader, nothing)
end

function Base.iterate(loader::Loader, _)
    let_go(loader)
    outcome(loader, take_next(loader, Inf)) || return nothing
    batch = batch_of(loader)
    loader.handle.current = token(batch)
    return batch, nothing
end

"""
    Feedlane.poll(loader)

Replaces dead workers and dispatches tasks, without waiting. Call it while a device computes. True: a batch is ready.
"""
poll(loader::Loader) = GC.@preserve loader driving(loader.handle) do address
    check(L.feedlane_loader_poll(address, loader.report.raw), loader.report) == L.FEEDLANE_AGAIN
end

"Ends the current or the next wait for a batch, which throws INTERRUPTED. Any task may call it."
interrupt(loader::Loader) = (calling(address -> check(L.feedlane_loader_interrupt(address)), loader.handle); nothing)

"""
    close(loader)

Ends the workers and waits for them. A task that waits for a batch gets `E_STATE`. Held batches stay readable. A second
call has no effect. If a loader is not closed, its finalizer ends it without waiting, and busy workers are killed. Any
task may call `close`.
"""
Base.close(loader::Loader) = close(loader.handle)

"""
    Feedlane.state(loader[, batch])

The position in the epoch just after `batch`, or after the newest batch, as bytes. `Loader(...; state=bytes)` resumes
there, with any number of workers.
"""
state(loader::Loader) = state_after(loader, 0)
state(loader::Loader, batch::Batch) = state_after(loader, token(batch).number)
state_after(loader, number) = driving(loader.handle) do address
    written((buffer, cap, bytes, err) -> L.feedlane_loader_state(address, number, buffer, cap, bytes, err))
end

"The contents of a state: epoch, batch, samples, base_seed, and whether the epoch has ended."
function state_info(state::Vector{UInt8})
    info = struct_of(L.feedlane_state_info)
    checked(err -> L.feedlane_state_read(state, length(state), info, err))
    raw = info[]
    return (epoch=Int(raw.epoch), batch=Int(raw.batch), samples=Int(raw.samples), base_seed=raw.base_seed, ended=raw.ended != 0)
end
