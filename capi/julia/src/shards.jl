# SPDX-License-Identifier: Apache-2.0
# Iterable data sets: shards that workers iterate, and the callbacks with which the library does so.

"""
    Shards(open; length=0, saves=false)

An iterable data set: its samples come one after another instead of by index. Each worker iterates its own shard:
`open(shard)` returns any iterable of observations, for each epoch anew. `shard` is a named tuple:
- `shard`, `shards`: the number of this shard, from 1, and of all shards
- `epoch`: the epoch, from 0; `seed`: the loader's seed plus the shard's number from 0, equal in all epochs
- `worker`, `workers`, `generation`: this worker from 0 (-1: inline), their number, and how many came before it
- `rank`, `world`: of the loader
- `config`: the text of `worker_config`

    data = Shards() do shard
        (decode(file) for file in files[shard.shard:shard.shards:end])
    end

An exception in the body of such a generator fails that sample, and the shard continues with the next one. Any other
exception fails a sample and ends the shard, unless it is `Transient` and is retried.

- `length`: the expected number of samples of all shards, 0: unknown.
- `saves`: the position in a shard is saved after each batch. It is the iteration state of the iterable (of a generator:
  of what it iterates over), which is serialized, at most 64 KiB. A replacement of a dead worker and a resumed loader
  call `open` and continue there. For iterables whose state says everything: ranges, arrays, generators over them. A
  file or a channel is not one. Otherwise see `deterministic` of `Loader`.
"""
struct Shards
    open::Any
    length::Int
    saves::Bool
end
Shards(open; length=0, saves=false) = Shards(open, length, saves)

"The facts that a shard's `open` gets."
shard_facts(info::L.feedlane_worker_info) =
    (shard=Int(info.shard) + 1, shards=Int(info.shards), epoch=Int(info.epoch), seed=info.seed, worker=Int(info.id),
     workers=Int(info.count), generation=Int(info.generation), rank=Int(info.rank), world=Int(info.world),
     config=String(config_of(info)))

config_of(info) = info.config == C_NULL ? UInt8[] : copy(unsafe_wrap(Array, Ptr{UInt8}(info.config), Int(info.config_bytes)))

"The first sample of the data set, for a loader without `fields`."
first_sample(data) = getobs(data, 1)
function first_sample(data::Shards)
    alone = (shard=1, shards=1, epoch=0, seed=UInt64(0), worker=-1, workers=0, generation=0, rank=0, world=1, config="")
    for sample in data.open(alone)
        return sample
    end
    throw(ArgumentError("the shard 1 of 1 has no sample to take the fields from: pass fields to Loader"))
end

"The shard of one worker or of an inline loader. The library has a pointer to this object."
mutable struct Walk
    opens::Any                 # config -> Shards
    saves::Bool
    data::Union{Nothing,Shards}
    facts::Any                 # see `shard_facts`
    names::Any                 # Val of the names
    specs::Tuple
    source::Any                # what is iterated
    make::Any                  # of an item of `source`: the sample
    step::Any                  # what `iterate` returned last; `nothing` before the first item
    index::Int                 # of the sample of this item; -1: the item was used
    failed::Int                # index of a sample for which `iterate` threw; -1: none
    making::Making
end
Walk(opens, saves) = Walk(opens, saves, nothing, nothing, Val(nothing), (), (), identity, nothing, -1, -1, Making())

answering(f, walk::Walk, err, status) = answering(err, status) do
    newest[] = walk.making
    return f()
end

open_shards(walk::Walk, info, self, err) = answering(walk, err, L.FEEDLANE_E_INIT) do
    facts = unsafe_load(info)
    names, specs = specs_of(facts.fields, Int(facts.field_count))
    walk.names, walk.specs, walk.facts = Val(names), specs, shard_facts(facts)
    data = walk.opens(config_of(facts))
    data isa Shards ||
        throw(ArgumentError("the loader expects an iterable data set, but the worker has a $(typeof(data)): pass Shards"))
    walk.data = data
    unsafe_store!(self, pointer_from_objref(walk))
    return L.FEEDLANE_OK
end

restart_shard(walk::Walk, epoch::Int64, err) = answering(walk, err, L.FEEDLANE_E_INIT) do
    opened = walk.data.open(merge(walk.facts, (epoch=Int(epoch),)))
    # The body of a generator is kept apart, so that the iteration can continue after an exception in it.
    walk.source, walk.make = opened isa Base.Generator ? (opened.iter, opened.f) : (opened, identity)
    walk.step, walk.index, walk.failed = nothing, -1, -1
    return L.FEEDLANE_OK
end

"Moves to the item of sample `index`, unless it is this one already. False: the shard has ended."
function advance!(walk::Walk, index)
    walk.index == index && return true
    walk.failed in (-1, index) || return false
    walk.failed = index   # until `iterate` has returned
    next = walk.step === nothing ? iterate(walk.source) : iterate(walk.source, walk.step[2])
    walk.failed = -1
    next === nothing && return false
    walk.step, walk.index = next, index
    return true
end

next_sample(walk::Walk, row::Ptr{L.feedlane_row}, err) = answering(walk, err, L.FEEDLANE_E_SAMPLE) do
    try
        place = row_of(walk.names, walk.specs, row, walk.making)
        index = Int(unsafe_load(member(row, Val(:index))))
        advance!(walk, index) || return L.FEEDLANE_END
        store!(place, walk.make(walk.step[1]))
        return L.FEEDLANE_OK
    finally
        leave_row(walk.making)
    end
end

save_shard(walk::Walk, buffer, room, bytes, err) = answering(walk, err, L.FEEDLANE_E_SAMPLE) do
    position = serialized(walk.step === nothing ? nothing : Some(walk.step[2]))
    length(position) <= room || throw(ArgumentError(
        "the position in the shard takes $(length(position)) bytes, but at most $room are allowed: " *
        "iterate over something with a smaller state"))
    GC.@preserve position unsafe_copyto!(buffer, pointer(position), length(position))
    unsafe_store!(bytes, length(position))
    return L.FEEDLANE_OK
end

load_shard(walk::Walk, buffer::Ptr{UInt8}, bytes::UInt64, err) = answering(walk, err, L.FEEDLANE_E_INIT) do
    position = deserialized(copy(unsafe_wrap(Array, buffer, Int(bytes))))
    walk.step = position === nothing ? nothing : (nothing, something(position))
    return L.FEEDLANE_OK
end

save_callback() = @cfunction(save_shard, Int32, (Ref{Walk}, Ptr{UInt8}, UInt64, Ptr{UInt64}, Ptr{L.feedlane_error}))
load_callback() = @cfunction(load_shard, Int32, (Ref{Walk}, Ptr{UInt8}, UInt64, Ptr{L.feedlane_error}))

"The table of callbacks of an iterable data set. `walk` must live as long as its user."
function table_of(walk::Walk)
    return struct_of(L.feedlane_dataset; user_data=pointer_from_objref(walk),
        open=@cfunction(open_shards, Int32, (Ref{Walk}, Ptr{L.feedlane_worker_info}, Ptr{Ptr{Cvoid}}, Ptr{L.feedlane_error})),
        next=@cfunction(next_sample, Int32, (Ref{Walk}, Ptr{L.feedlane_row}, Ptr{L.feedlane_error})),
        restart=@cfunction(restart_shard, Int32, (Ref{Walk}, Int64, Ptr{L.feedlane_error})),
        save=walk.saves ? save_callback() : C_NULL, load=walk.saves ? load_callback() : C_NULL)
end
