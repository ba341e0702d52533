# SPDX-License-Identifier: Apache-2.0
# The trainer's side: a loader and its configuration.

const STARTS = (spawn=L.FEEDLANE_START_SPAWN, fork=L.FEEDLANE_START_FORK, thread=L.FEEDLANE_START_THREAD,
                external=L.FEEDLANE_START_EXTERNAL, host=L.FEEDLANE_START_HOST)
const DISPATCHES = (least_loaded=L.FEEDLANE_DISPATCH_LEAST_LOADED, round_robin=L.FEEDLANE_DISPATCH_ROUND_ROBIN)

"""
    Loader(data; batchsize=1, shuffle=false, partial=true, workers=0, ...)

Yields the batches of `data`, which worker processes make in shared memory. Each iteration is an epoch.

`data` is anything with `numobs` and `getobs` as in MLUtils: an array, whose last dimension counts the observations; a
tuple or named tuple of arrays; anything with `length` and `getindex`; or `Shards`, which workers iterate. Observations
consist of numbers and arrays of numbers. All observations have the same fields, with equal types and sizes.

The order and the batches:
- `batchsize`: observations per batch; 0: single observations, without a batch dimension.
- `shuffle`, `seed`: a different order in each epoch. Equal seeds give equal batches with any number of workers.
- `sampler`: a `Sampler`, a `Live` or a vector of indices, instead of `shuffle`.
- `partial`: false drops an incomplete last batch.
- `fields`: `(image=(UInt8, (8, 8)), label=(Int64, ()))`; by default the fields of the first observation.
- `out_of_order`: batches are yielded as they become ready.
- `state`: from `Feedlane.state`; the loader resumes after it.

`Shards` have no sampler. For them:
- `iterable`: true also without `data`, if a `worker` command or external workers iterate shards.
- `deterministic`: a shard that is opened again yields the same observations, so the replacement of a dead worker leaves
  out the ones that were delivered. Otherwise, unless the `Shards` save their position, the rest of its shard is lost,
  which is the error `E_PEER_DEAD` once.
- `rank`, `world`: this rank and the number of ranks that share the data set.

The workers:
- `workers`: number of workers; 0: observations are made in the trainer's task.
- `worker`: a command (`Cmd`) that runs a worker in any language. By default a worker is this script, started again, if
  the script has called `Feedlane.worker_main`. Otherwise it is this Julia with the same project, which receives the
  data set serialized. Types that the script or the REPL has defined in `Main` must then be defined by `setup`: a file
  or an expression for the worker's `Main`.
- `worker_config`: a text for the worker program.
- `start`: `:spawn`; `:thread`: tasks in Julia's threads, which share `data` and call its `getobs` at the same time (not for
  `Shards`); `:external`: processes that the program starts, see `Feedlane.open_worker`.
- `lifeline`: false: the trainer's death does not kill workers, which then end after their current batch.
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

Samples that fail. These apply in this order, and each such sample is an event:
- `retries`: retries of a sample after a `Transient` exception. `retry_backoff`: seconds before the first one, doubled
  before each further one (0: 0.01).
- `substitute`: true: `Feedlane.substitute` names a sample to use instead.
- `skip_budget`: samples that an epoch may leave out, see `Feedlane.skipped`; -1: no limit.

Devices:
- `pinned`: a `Pool`, which registers the batches' memory. `staged`: copies batches ahead into this many buffers of the
  pool instead; more than `held`.

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
                share=:none, consumers=0, share_path="", share_tail=false, arena_bytes=0, worker_cpus="", memory_nodes="",
                iterable=data isa Shards, deterministic=false, rank=0, world=0, start=:spawn, lifeline=true,
                retries=0, retry_backoff=0, substitute=false, skip_budget=0, pinned=nothing, staged=0)
    refuse_combination(data, iterable, start, sampler, shuffle, workers, staged)
    names, specs = fields === nothing ? specs_of(first_sample(data)) : declared(fields)
    order = iterable ? nothing : order_of(data, sampler, shuffle, something(seed, rand(UInt64)))
    makes_batches = order !== nothing && order.makes_batches
    batch_size = makes_batches && batchsize == 1 ? 0 : batchsize == 0 ? L.FEEDLANE_UNBATCHED : batchsize
    maker = iterable ? Walk(config -> data, data isa Shards && data.saves) : Maker(data, Val(names), specs)
    argv, config = workers != 0 && start === :spawn ? start_of(data, worker, worker_config, setup) :
                   (nothing, bytes_of_config(worker_config))
    prefetch isa Symbol && prefetch !== :auto && throw(ArgumentError("prefetch=:$prefetch: must be a number or :auto"))
    handle = create(specs, order, workers == 0 ? maker : nothing, argv, config, env, state, pinned,
        (name=name, share_path=share_path, worker_cpus=worker_cpus, memory_nodes=memory_nodes);
        batch_size=batch_size, drop_last=!partial, out_of_order=out_of_order,
        seed=something(seed, 0) % UInt64, has_seed=seed !== nothing, workers=workers, start=choice("start", STARTS, start),
        prefetch_factor=prefetch === :auto ? L.FEEDLANE_PREFETCH_AUTO : prefetch, arena_bytes=arena_bytes,
        dispatch=choice("dispatch", DISPATCHES, dispatch), keep_workers=keep_workers, held=held, trace=trace,
        max_batches=max_batches, iterable=iterable, iterable_length=data isa Shards ? data.length : 0,
        deterministic=deterministic, rank=rank, world=world, no_lifeline=!lifeline, retries=retries,
        retry_backoff_ns=nanoseconds(retry_backoff), substitute=substitute, skip_budget=skip_budget, staged=staged,
        share=choice("share", SHARES, share), consumers=consumers, share_tail=share_tail,
        max_restarts=max_restarts, max_kills_per_batch=max_kills_per_batch, task_timeout_ns=nanoseconds(task_timeout),
        start_timeout_ns=nanoseconds(start_timeout), stop_timeout_ns=nanoseconds(stop_timeout))
    start === :thread && workers > 0 && (handle.crew = Crew(workers, stop_timeout, data, Val(names), specs))
    staged > 0 && workers > 0 && stage(handle)
    kinds = Tuple{map(spec -> array_type(spec, batchsize != 0), specs)...}
    first_epoch = state === nothing ? 0 : (info = state_info(state); info.epoch + info.ended)
    return Loader{names,kinds}(handle, struct_of(L.feedlane_batch), Report(), first_epoch)
end

"Starts copying batches into the pool's buffers, in a thread of libuv, until the loader is closed."
function stage(handle::Handle)
    address = enter(handle)
    handle.stager = in_background(address) do
        in_thread(L.feedlane_loader_run_stager_threaded, L.feedlane_loader_run_stager_gc_safe, address,
                  Ptr{L.feedlane_error}(C_NULL))
    end
end

"Refuses arguments that exclude each other, which the library does not see."
function refuse_combination(data, iterable, start, sampler, shuffle, workers, staged)
    iterable && (shuffle || sampler !== nothing) &&
        throw(ArgumentError("shuffle and sampler are for samples by index: Shards choose their order themselves"))
    data isa Shards && !iterable && throw(ArgumentError("iterable=false, but the data set has Shards: leave iterable out"))
    iterable && start === :thread && throw(ArgumentError(
        "start=:thread is not allowed for Shards: use worker processes, or workers=0"))
    start === :fork && throw(ArgumentError("start=:fork: Julia cannot fork; must be one of spawn, thread, external"))
    if staged > 0 && workers > 0
        check_served("pass staged=0")
        Threads.threadid() == 1 ||
            throw(ArgumentError("staged=$staged needs a thread of libuv: create this loader in Julia's first thread"))
    end
    return nothing
end

"The sampler of a map-style data set."
order_of(data, sampler, shuffle, seed) = sampler !== nothing ? sampler_of(sampler) :
    shuffle ? random_sampler(numobs(data); seed=seed) : sequential_sampler(numobs(data))

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

function Base.show(io::IO, loader::Loader)
    isclosed(loader) && return print(io, "Loader(closed)")
    batches = reading(info_of, loader).batches
    print(io, "Loader(", batches < 0 ? "" : "$batches batches an epoch, ", "next is epoch ", loader.next_epoch, ")")
end
