# SPDX-License-Identifier: Apache-2.0
# Arrays in shared memory: of a batch that the trainer holds, and of rows that a worker writes.

"""
A reference to a batch, to a buffer of a pool, or to the task of a worker. Arrays refer to their token, so the memory
remains while one of them is reachable. A token refers to the loader's handle or to the pool, so these are not finalized
before the token.
"""
mutable struct Token <: AnyToken
    live::Bool                       # arrays check this
    kept::Bool                       # the loop does not release it
    released::Bool                   # or being released: see `claim`
    number::UInt64                   # the library's token; 0: a worker's task
    address::Ptr{L.feedlane_loader}  # stays valid for the release
    owner::Union{Nothing,Handle,Pool} # keeps the memory; a pool: `number` is a buffer's
end

Token(number, address, owner) = Token(true, false, false, number, address, owner)
"The memory of a worker's task. `live` until the task is over."
Token() = Token(0, C_NULL, nothing)

# Held for a few instructions that allocate nothing, so a finalizer can wait for it.
const claiming = Threads.SpinLock()

"True for one of the tasks that want to release."
function claim(token::Token)
    lock(claiming)
    is_first, token.released = !token.released, true
    unlock(claiming)
    return is_first
end

"Gives the memory back to the workers. Returns false if that was done before. Any task or finalizer may call it."
function release(token::Token)
    claim(token) || return false
    token.live = false
    owner = token.owner
    owner isa Pool ? L.feedlane_pool_release(owner.address, token.number, L.FEEDLANE_NO_STREAM, C_NULL) :
                     L.feedlane_batch_release(token.address, token.number)
    return true
end

@noinline throw_released() =
    throw(FeedlaneError(L.FEEDLANE_E_STALE, "this batch was released by the next iteration or by release!; " *
                                            "use keep(batch) or copy(array)"))

"""
    BatchArray{T,N} <: DenseArray{T,N}

One field of all samples of a batch, in shared memory, without a copy, or memory of a pool or of a worker. The last
dimension counts the samples. The array keeps its batch as long as the array is reachable, unless the batch is released.
Any use after the release throws a `FeedlaneError` (`E_STALE`). The holder of the batch may write to the array.
`pointer(array)` and calls into C are valid while the batch is held.
"""
struct BatchArray{T,N} <: DenseArray{T,N}
    token::Token
    address::Ptr{T}
    dims::NTuple{N,Int}
end

Base.size(a::BatchArray) = a.dims
Base.IndexStyle(::Type{<:BatchArray}) = IndexLinear()
Base.elsize(::Type{<:BatchArray{T}}) where {T} = sizeof(T)

@inline address(a::BatchArray) = a.token.live ? a.address : throw_released()
Base.unsafe_convert(::Type{Ptr{T}}, a::BatchArray{T}) where {T} = address(a)

@inline function Base.getindex(a::BatchArray, i::Int)
    @boundscheck checkbounds(a, i)
    return GC.@preserve a unsafe_load(address(a), i)
end

@inline function Base.setindex!(a::BatchArray{T}, value, i::Int) where {T}
    @boundscheck checkbounds(a, i)
    GC.@preserve a unsafe_store!(address(a), convert(T, value)::T, i)
    return a
end

"Copies out of a batch in one step, instead of element by element."
function Base.copyto!(to::Array{T}, from::BatchArray{T}) where {T}
    length(to) >= length(from) || throw(BoundsError(to, length(from)))
    GC.@preserve to from unsafe_copyto!(pointer(to), address(from), length(from))
    return to
end
Base.Array(a::BatchArray{T,N}) where {T,N} = copyto!(Array{T,N}(undef, a.dims), a)
Base.copy(a::BatchArray) = Array(a)

"""
    Feedlane.unsafe_array(array)

The same memory as an `Array`, for loops in which the check of each access takes too long. It does not keep the batch:
use it only while the batch is held (with `GC.@preserve array`, or inside the loop that yielded the batch).
"""
unsafe_array(a::BatchArray{T,N}) where {T,N} = unsafe_wrap(Array, address(a), a.dims)
