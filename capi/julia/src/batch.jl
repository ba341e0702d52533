# SPDX-License-Identifier: Apache-2.0
# A batch that the trainer holds.

"""
    Batch

A batch. Its arrays (`BatchArray`) are accessed by name if samples are named tuples (`batch.image`), otherwise by number
(`batch[1]`), or all together (`image, label = batch`). The last dimension of each array counts the samples.

A `for` loop over a loader releases the batch when it moves on, unless `keep(batch)` was called. A kept batch, and a
batch of `next!`, is released by `release!`, or by a finalizer when the batch and all its arrays are unreachable.

`Feedlane.indices(batch)`, `epoch`, `number`, `worker`, `attempt`, `skipped` and `metadata` return further facts.
"""
struct Batch{names,A<:Tuple}
    token::Token
    arrays::A
    raw::L.feedlane_batch
end

token(batch::Batch) = getfield(batch, :token)
arrays(batch::Batch) = getfield(batch, :arrays)
raw(batch::Batch) = getfield(batch, :raw)

Base.propertynames(::Batch{names}) where {names} = names === nothing ? () : names
function Base.getproperty(batch::Batch{names}, name::Symbol) where {names}
    names === nothing && throw(ArgumentError("the fields of this batch have no names: use batch[1], batch[2], ..."))
    return getfield(NamedTuple{names}(arrays(batch)), name)
end
Base.getindex(batch::Batch, number::Integer) = arrays(batch)[number]
Base.getindex(batch::Batch, name::Symbol) = getproperty(batch, name)
Base.length(batch::Batch) = length(arrays(batch))
Base.firstindex(::Batch) = 1
Base.lastindex(batch::Batch) = length(batch)
Base.iterate(batch::Batch, state...) = iterate(arrays(batch), state...)
Base.eltype(::Type{Batch{names,A}}) where {names,A} = eltype(A)
"The arrays, with their names."
Base.NamedTuple(batch::Batch{names}) where {names} = NamedTuple{names}(arrays(batch))

function Base.show(io::IO, batch::Batch{names}) where {names}
    labels = names === nothing ? (1:length(batch)) : names
    shapes = ["$label $(join(size(array), '×')) $(eltype(array))" for (label, array) in zip(labels, arrays(batch))]
    print(io, "Batch(epoch ", epoch(batch), ", number ", number(batch), ": ", join(shapes, ", "),
          isreleased(batch) ? ", released" : "", ")")
end

"Whether the batch was released."
isreleased(batch::Batch) = !token(batch).live

"""
    keep(batch)

Keeps the batch of a `for` loop when the loop moves on, and returns the batch. Release it later, or drop it and its
arrays: a loader has a fixed number of slots. `held` batches can be kept without fewer batches in preparation. Throws
`E_STALE` if the batch was already released.
"""
function keep(batch::Batch)
    held = token(batch)
    held.live || throw_released()
    if !held.kept
        held.kept = true
        finalizer(release, held)
    end
    return batch
end

"The epoch, as given to `begin!`."
epoch(batch::Batch) = Int(raw(batch).epoch)
"The number of the batch in the epoch, from 0."
number(batch::Batch) = Int(raw(batch).batch)
"The worker that made the batch, from 0; -1: made inline."
worker(batch::Batch) = Int(raw(batch).worker)
"The attempt that made the batch, from 0."
attempt(batch::Batch) = Int(raw(batch).attempt)
"The number of samples."
numrows(batch::Batch) = Int(raw(batch).count)

function shifted(batch::Batch, address, count)
    token(batch).live || throw_released()
    return address == C_NULL ? Int[] : GC.@preserve batch Int[unsafe_load(address, k) + 1 for k in 1:count]
end
"The data set indices of its samples, from 1."
indices(batch::Batch) = shifted(batch, raw(batch).indices, raw(batch).count)
"The data set indices of samples that were left out, from 1."
skipped(batch::Batch) = shifted(batch, raw(batch).skipped, raw(batch).skipped_count)

"The bytes that the data set attached to the batch."
function metadata(batch::Batch)
    token(batch).live || throw_released()
    address, count = Ptr{UInt8}(raw(batch).metadata), raw(batch).metadata_bytes
    return address == C_NULL ? UInt8[] : GC.@preserve batch copy(unsafe_wrap(Array, address, Int(count)))
end
