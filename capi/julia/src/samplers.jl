# SPDX-License-Identifier: Apache-2.0
# Samplers: the order of the indices of an epoch. Indices count from 1 here.

"""
    Sampler(kind::Symbol; makes_batches=false, members...)

Yields the indices of an epoch, from 1, in order. A loader copies its definition. One task at a time may use it.

`kind` is the end of the name of a constant `FEEDLANE_SAMPLER_...` in lower case, and `members` are those of
`feedlane_sampler_config` that the kind reads, with indices from 0: `Sampler(:sequential; length=10)`. Functions that
convert their arguments make most kinds: `random_sampler`, `subset_sampler`, `weighted_sampler`, `distributed_sampler`,
`batch_sampler`, `tokens_sampler`, `mixture_sampler`, `sequential_sampler`, and `custom_sampler` for your own order.
"""
mutable struct Sampler
    address::Ptr{L.feedlane_sampler}
    makes_batches::Bool
    order::Any   # of a user-defined sampler; `nothing`: a built-in one
    function Sampler(kind::Int32; makes_batches=false, order=nothing, members...)
        given, out = values(members), Ref{Ptr{L.feedlane_sampler}}(C_NULL)
        GC.@preserve given begin
            config = struct_of(L.feedlane_sampler_config; kind=kind, map(in_config, given)...)
            checked(err -> L.feedlane_sampler_create(config, out, err))
        end
        return finalizer(sampler -> L.feedlane_sampler_destroy(Ref(sampler.address)), new(out[], makes_batches, order))
    end
end

function Sampler(kind::Symbol; arguments...)
    name = Symbol("FEEDLANE_SAMPLER_", uppercase(String(kind)))
    isdefined(L, name) || throw(ArgumentError("there is no sampler of the kind :$kind"))
    return Sampler(getfield(L, name); arguments...)
end

# What a member of feedlane_sampler_config is in C. The library copies arrays and samplers.
in_config(list::Vector) = pointer(list)
in_config(inner::Sampler) = inner.address
in_config(number) = number

Base.show(io::IO, sampler::Sampler) =
    print(io, "Sampler(", length_or_negative(sampler) < 0 ? "" : "$(length(sampler)) an epoch", ")")

const SHUFFLES = (torch=L.FEEDLANE_SHUFFLE_TORCH, feistel=L.FEEDLANE_SHUFFLE_FEISTEL,
                  torch_loader=L.FEEDLANE_SHUFFLE_TORCH_LOADER)
shuffle_of(name::Symbol) = haskey(SHUFFLES, name) ? SHUFFLES[name] :
    throw(ArgumentError("shuffle=:$name: must be one of $(join(keys(SHUFFLES), ", "))"))

"Yields `1:length`, in this order."
sequential_sampler(length::Integer) = Sampler(L.FEEDLANE_SAMPLER_SEQUENTIAL; length=length)

"""
    random_sampler(length; seed=0, num_samples=length, replacement=false, shuffle=:torch)

Yields a permutation of `1:length`, which differs in each epoch. By default it is that of torch's RandomSampler with a
generator seeded with seed + epoch. `replacement`: draws with replacement instead. `shuffle`: `:torch`, `:torch_loader`
(as `DataLoader(shuffle=True)` after `manual_seed(seed)`), or `:feistel` (takes no memory).
"""
random_sampler(length::Integer; seed=0, num_samples=0, replacement=false, shuffle=:torch) =
    Sampler(L.FEEDLANE_SAMPLER_RANDOM; length=length, seed=seed % UInt64, num_samples=num_samples,
            replacement=replacement, shuffle=shuffle_of(shuffle))

"""
    subset_sampler(indices; in_order=false, seed=0)

Yields the given indices, shuffled in each epoch, or with `in_order` in the given order.
"""
function subset_sampler(indices; in_order=false, seed=0)
    list = Int64[index - 1 for index in indices]
    return Sampler(L.FEEDLANE_SAMPLER_SUBSET; indices=list, count=length(list), no_shuffle=in_order, seed=seed % UInt64)
end

"""
    weighted_sampler(weights; num_samples=length(weights), replacement=true, seed=0)

Yields indices with probabilities in proportion to their weights.
"""
function weighted_sampler(weights; num_samples=0, replacement=true, seed=0)
    list = collect(Float64, weights)
    return Sampler(L.FEEDLANE_SAMPLER_WEIGHTED; weights=list, count=length(list), num_samples=num_samples,
                   seed=seed % UInt64, without_replacement=!replacement)
end

"The members for a rank. World 0: the library finds the rank."
function rank_of(rank, world)
    (rank === nothing) == (world === nothing) || throw(ArgumentError("rank and world must be given together"))
    return (rank=something(rank, 0), world=something(world, 0))
end

"""
    distributed_sampler(length; rank=nothing, world=nothing, seed=0, shuffle=:torch, drop_last=false)

Yields every `world`-th index, starting with the `rank`-th (from 0), of an order that all ranks share. Without `rank`
and `world`, the launcher's environment variables determine both. `shuffle`: `:torch`, `:feistel`, or `nothing` for the
order of the data.
"""
distributed_sampler(length::Integer; rank=nothing, world=nothing, seed=0, shuffle=:torch, drop_last=false) =
    Sampler(L.FEEDLANE_SAMPLER_DISTRIBUTED; length=length, rank_of(rank, world)..., seed=seed % UInt64,
            no_shuffle=shuffle === nothing, shuffle=shuffle === nothing ? 0 : shuffle_of(shuffle), drop_last=drop_last)

"""
    batch_sampler(inner, batchsize; partial=true)

Yields batches of the indices of another sampler. A loader with it takes no `batchsize`.
"""
batch_sampler(inner::Sampler, batchsize::Integer; partial=true) =
    Sampler(L.FEEDLANE_SAMPLER_BATCH; makes_batches=true, order=inner.order, inner=inner, batch_size=batchsize, drop_last=!partial)

"""
    tokens_sampler(lengths, max_tokens, max_rows; seed=0, window=0, padded=false, shuffle=true, drop_last=false,
                   drop_long=false, rank=nothing, world=nothing)

Yields batches of at most `max_rows` samples, which have at most `max_tokens` tokens together. `lengths` has the number
of tokens of each sample. `padded`: tokens are counted as rows * the longest length. `window`: number of shuffled
samples that are sorted by length together; 0: 8192. All ranks get the same number of batches: some batches are split
or, with `drop_last`, omitted. `drop_long`: omits samples with more than `max_tokens` tokens instead of refusing them.
Without `rank` and `world`, the launcher's environment variables determine both.
"""
function tokens_sampler(lengths, max_tokens::Integer, max_rows::Integer; seed=0, window=0, padded=false, shuffle=true,
                        drop_last=false, drop_long=false, rank=nothing, world=nothing)
    list = collect(Int64, lengths)
    return Sampler(L.FEEDLANE_SAMPLER_TOKENS; makes_batches=true, lengths=list, count=length(list), max_tokens=max_tokens,
                   max_rows=max_rows, seed=seed % UInt64, window=window, padded=padded, no_shuffle=!shuffle,
                   drop_last=drop_last, drop_long=drop_long, rank_of(rank, world)...)
end

"""
    mixture_sampler(lengths, weights; num_samples=0, seed=0, window=0, stages=[0], shuffle=true, drop_last=false,
                    rank=nothing, world=nothing)

Mixes sources in proportion to weights. Source i has `lengths[i]` indices, which follow those of source i - 1. `weights`
has one number per source or, with several `stages`, one column of such numbers per stage. `stages` are the samples of
the training at which the stages begin; the first is 0. An epoch has `num_samples` indices over all ranks. Each source
continues where it stopped in the epoch before. `window`: number of samples that are shuffled together; 0: 1024. Without
`rank` and `world`, the launcher's environment variables determine both.
"""
function mixture_sampler(lengths, weights; num_samples=0, seed=0, window=0, stages=[0], shuffle=true, drop_last=false,
                         rank=nothing, world=nothing)
    sizes, shares, from = collect(Int64, lengths), vec(collect(Float64, weights)), collect(Int64, stages)
    length(shares) == length(sizes) * length(from) ||
        throw(ArgumentError("$(length(shares)) weights for $(length(from)) stages of $(length(sizes)) sources: " *
                            "each stage must have one weight per source"))
    return Sampler(L.FEEDLANE_SAMPLER_MIXTURE; lengths=sizes, count=length(sizes), weights=shares, from=from,
                   stages=length(from), num_samples=num_samples, seed=seed % UInt64, window=window, no_shuffle=!shuffle,
                   drop_last=drop_last, rank_of(rank, world)...)
end

"Converts the argument `sampler`: a `Sampler`, a `Live`, or indices in the order in which they are to be yielded."
sampler_of(sampler::Sampler) = sampler
sampler_of(indices) = subset_sampler(indices; in_order=true)

function length_or_negative(sampler::Sampler)
    out = Ref{Int64}(-1)
    GC.@preserve sampler check(L.feedlane_sampler_length(sampler.address, out))
    return Int(out[])
end

function Base.length(sampler::Sampler)
    known = length_or_negative(sampler)
    known < 0 && throw(FeedlaneError(L.FEEDLANE_E_UNSUPPORTED, "the sampler's length is unknown"))
    return known
end

"Starts an epoch from its beginning."
function restart!(sampler::Sampler, epoch::Integer)
    GC.@preserve sampler checked(err -> L.feedlane_sampler_restart(sampler.address, epoch, err))
    return sampler
end

"""
The next indices of the epoch, from 1, at most `count`; empty at its end. A batch sampler returns one batch. Also empty if
a live sampler has too few indices now; it keeps them.
"""
function Base.take!(sampler::Sampler, count::Integer)
    list, got = Vector{Int64}(undef, count), Ref{UInt64}(0)
    GC.@preserve sampler checked(err -> L.feedlane_sampler_next(sampler.address, list, count, got, err))
    return resize!(list, got[]) .+ 1
end

"The position of the sampler in its epoch, as bytes for `load!`."
save(sampler::Sampler) =
    GC.@preserve sampler written((buffer, cap, bytes, err) -> L.feedlane_sampler_save(sampler.address, buffer, cap, bytes, err))

"Continues after a saved position. Call `restart!` with the same epoch first."
function load!(sampler::Sampler, state::Vector{UInt8})
    GC.@preserve sampler checked(err -> L.feedlane_sampler_load(sampler.address, state, length(state), err))
    return sampler
end

"The bytes that a function writes. The first call of `f` asks for their number."
function written(f)
    bytes, report = Ref{UInt64}(0), Report()
    status = GC.@preserve report f(C_NULL, 0, bytes, report.raw)
    status == L.FEEDLANE_E_LIMIT || check(status, report)
    buffer = Vector{UInt8}(undef, bytes[])
    GC.@preserve report check(f(buffer, length(buffer), bytes, report.raw), report)
    return resize!(buffer, bytes[])
end
