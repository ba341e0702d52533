# SPDX-License-Identifier: Apache-2.0
# Broadcasting and reductions of complete batches. They check once whether a batch was released, not at each element, so
# their loops are as fast as those of an Array.
using Base.Broadcast: AbstractArrayStyle, Broadcasted, broadcasted, instantiate

struct BatchStyle{N} <: AbstractArrayStyle{N} end
BatchStyle{N}(::Val{M}) where {N,M} = BatchStyle{M}()
Base.BroadcastStyle(::Type{<:BatchArray{T,N}}) where {T,N} = BatchStyle{N}()
Base.similar(bc::Broadcasted{<:BatchStyle}, ::Type{T}) where {T} = similar(Array{T}, axes(bc))
Base.similar(bc::Broadcasted{<:BatchStyle}, ::Type{Bool}) = similar(BitArray, axes(bc))

"The same expression over arrays that do not keep their batches: the caller must preserve `bc`."
bare(argument) = argument
bare(a::BatchArray) = unsafe_array(a)
bare(bc::Broadcasted) = broadcasted(bc.f, map(bare, bc.args)...)

Base.copyto!(to::AbstractArray, bc::Broadcasted{<:BatchStyle}) = GC.@preserve bc copyto!(to, instantiate(bare(bc)))

Base.mapreduce(f, op, a::BatchArray; options...) = GC.@preserve a mapreduce(f, op, unsafe_array(a); options...)
