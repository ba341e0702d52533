# SPDX-License-Identifier: Apache-2.0
# The trainer's side: a loader, its epochs and their batches.

# A wait polls in C for this long before the task sleeps in Julia's event loop. A batch that comes soon costs no system
# call.
const POLL_NS = 20_000
const DISPATCHES = (least_loaded=L.FEEDLANE_DISPATCH_LEAST_LOADED, round_robin=L.FEEDLANE_DISPATCH_ROUND_ROBIN)

"""
    Loader(data; batchsize=1, shuffle=false, partial=true, workers=0, ...)

Yields the batches of `data`, which worker processes make in shared memory. Each iteration is an epoch.

`data` is anything with `numobs` and `getobs` as in MLUtils: an array, whose last dimension counts the observations; a
tuple or named tuple of arrays; or anything with `length` and `getindex`. Observations consist of numbers and arrays of
numbers. All observations have the same fields, with equal types and sizes.

The order and the batches:
- `batchsize`: observations per batch; 0: single observations, without a batch dimension.
- `shuffle`, `seed`: a different order in each epoch. Equal seeds give equal batches with any number of workers.
- `sampler`: a `Sampler` or a vector of indices, instead of `shuffle`.
- `partial`: false drops an incomplete last batch.
- `fields`: `(image=(UInt8, (8, 8)), label=(Int64, ()))`; by default the fields of the first observation.
- `out_of_order`: batches are yielded as they become ready.
- `state`: from `Feedlane.state`; the loader resumes after it.

The workers:
- `workers`: number of workers; 0: observations are made in the trainer's task.
- `worker`: a command (`Cmd`) that runs a worker in any language. By default a worker is this script, started again, if
  the script has called `Feedlane.worker_main`. Otherwise it is this Julia with the same project, which receives the
  data set serialized. Types that the script or the REPL has defined in `Main` must then be defined by `setup`: a file
  or an expression for the worker's `Main`.
- `worker_config`: a text for the worker program.
- `keep_workers`: workers stay for the next epoch.
- `prefetch`: batches in preparation per worker (2). `:auto` adapts this number to shorten the trainer's waits, within
  `arena_bytes`.
- `held`: batches that the trainer may hold without fewer batches in preparation (1).
- `dispatch`: `:least_loaded` or `:round_robin`. `env`: pairs that form the workers' complete environment.
- `name`: a text of at most 63 bytes that monitors show. `trace`: number of batches that `Feedlane.trace` keeps (0: the
  value of the environment variable FEEDLANE_TRACE, or none).
- `arena_bytes`: a limit for the memory that is reserved for batches; 0: none.
- `worker_cpus`: processors for workers: one list for all, `"0-15"`, or one list per worker, `"0-7;8-15"`.
  `memory_nodes`: memory nodes for the batches' memory: one, `"1"`, or several in turn, `"0-1"`.
- `max_batches`: batches in an epoch, after which it ends; 0: no limit.
- `max_restarts`, `max_kills_per_batch`, `task_timeout`, `start_timeout`, `stop_timeout` (seconds): for workers that die
  or hang.

Consumers in other processes; such a loader has workers. See `Feedlane.serve`, `Feedlane.open_consumer` and
`join_feeder`:
- `share`: `:every` (every consumer gets every batch) or `:deal` (batch k goes to consumer k mod `consumers`).
- `consumers`: with `:every` the maximum number of consumers at a time, with `:deal` the exact number; 0: 1.
- `share_path`: a Unix socket to create, where consumers of this user may join; `""`: none.
- `share_tail`: with `:deal`, for a last round of fewer than `consumers` batches. True: the first consumers get them.
  False: they are left out, so that all consumers get the same number.

If the library refuses an argument, this throws a `FeedlaneError` that names it. One task at a time drives a loader;
another one gets `E_BUSY`. Any task may call `close`, `Feedlane.monitor`, `Feedlane.stats`, `Feedlane.events` and
`Feedlane.interrupt`.
"""
mutable struct Loader{names,A<:Tuple}
    handle::Handle
    raw::Base.RefValue{L.feedlane_batch}
    report::Report
    next_epoch::Int
end

function Loader(data; batchsize=1, shuffle=false, partial=true, workers=0, sampler=nothing, fields=nothing, seed=nothing,
                out_of_order=false, state=nothing, worker=nothing, worker_config="", setup=nothing, keep_workers=workers > 0,
                prefetch=0, held=0, dispatch=:least_loaded, env=nothing, max_restarts=0, max_kills_per_batch=0,
                task_timeout=0, start_timeout=0, stop_timeout=0, name="", trace=0, max_batches=0,
                share=:none, consumers=0, share_path="", share_tail=false,
                arena_bytes=0, worker_cpus="", memory_nodes="")
    names, specs = fields === nothing ? specs_of(getobs(data, 1)) : declared(fields)
    haskey(DISPATCHES, dispatch) || throw(ArgumentError("dispatch=:$dispatch: must be one of $(join(keys(DISPATCHES), ", "))"))
    order_seed = something(seed, rand(UInt64))
    order = sampler !== nothing ? sampler_of(sampler) :
            shuffle ? random_sampler(numobs(data); seed=order_seed) : sequential_sampler(numobs(data))
    batch_size = order.makes_batches && batchsize == 1 ? 0 : batchsize == 0 ? L.FEEDLANE_UNBATCHED : batchsize
    maker = workers == 0 ? InlineMaker{names,typeof(data),typeof(specs)}(data, specs) : nothing
    argv, config = workers == 0 ? (nothing, UInt8[]) : start_of(data, worker, worker_config, setup)
    prefetch isa Symbol && prefetch !== :auto && throw(ArgumentError("prefetch=:$prefetch: must be a number or :auto"))
    handle = create(specs, order, maker, argv, config, env, state,
        (name=name, share_path=share_path, worker_cpus=worker_cpus, memory_nodes=memory_nodes);
        batch_size=batch_size, drop_last=!partial, out_of_order=out_of_order,
        seed=something(seed, 0) % UInt64, has_seed=seed !== nothing, workers=workers,
        prefetch_factor=prefetch === :auto ? L.FEEDLANE_PREFETCH_AUTO : prefetch, arena_bytes=arena_bytes,
        dispatch=DISPATCHES[dispatch], keep_workers=keep_workers, held=held, trace=trace, max_batches=max_batches,
        share=choice("share", SHARES, share), consumers=consumers, share_tail=share_tail,
        max_restarts=max_restarts, max_kills_per_batch=max_kills_per_batch, task_timeout_ns=nanoseconds(task_timeout),
        start_timeout_ns=nanoseconds(start_timeout), stop_timeout_ns=nanoseconds(stop_timeout))
    kinds = Tuple{map(spec -> array_type(spec, batchsize != 0), specs)...}
    first_epoch = state === nothing ? 0 : (info = state_info(state); info.epoch + info.ended)
    return Loader{names,kinds}(handle, struct_of(L.feedlane_batch), Report(), first_epoch)
end

Base.IteratorSize(::Type{<:Loader}) = Base.SizeUnknown()   # a resumed epoch, or one with errors, yields fewer batches
Base.eltype(::Type{Loader{names,A}}) where {names,A} = Batch{names,A}

"""
    length(loader)

The number of batches in an epoch.
"""
function Base.length(loader::Loader)
    batches = reading(info_of, loader).batches
    batches < 0 && throw(FeedlaneError(L.FEEDLANE_E_UNSUPPORTED, "the sampler's length is unknown"))
    return Int(batches)
end

isclosed(loader::Loader) = loader.handle.address == C_NULL

Base.show(io::IO, loader::Loader) =
    print(io, "Loader(", isclosed(loader) ? "closed" : "$(length(loader)) batches an epoch, next is epoch $(loader.next_epoch)", ")")

"""
    begin!(loader[, epoch])

Starts an epoch (from 0; by default the next one), and workers that are not running. An epoch in progress is abandoned.
A `for` loop calls this function itself; call it before `next!`.
"""
function begin!(loader::Loader, epoch::Integer=loader.next_epoch)
    let_go(loader)
    driving(loader.handle) do address
        err = address_of(loader.report.raw)
        status = GC.@preserve loader loader.handle.is_inline ? L.feedlane_loader_begin(address, epoch, err) :
                                     L.feedlane_loader_begin_gc_safe(address, Int64(epoch), err)
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
    poll_ns = loader.handle.is_inline ? L.FEEDLANE_FOREVER : timeout == 0 ? 0 : POLL_NS
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
