# SPDX-License-Identifier: Apache-2.0
# The place of a sample in its batch, and how a sample is copied there.

"""
The place of one sample: its fields as arrays in shared memory, to be written, by name or by number. Numbers are arrays
without dimensions: `row.label[] = 3`.
"""
struct Row{names,S<:Tuple,A<:Tuple}
    specs::S
    addresses::A
    token::Token
end

Row{names}(specs::S, addresses::A, token) where {names,S,A} = Row{names,S,A}(specs, addresses, token)

@inline function Base.getindex(row::Row, number::Int)
    return field_array(getfield(row, :specs)[number], getfield(row, :addresses)[number], getfield(row, :token))
end
field_array(spec::Spec{T,N}, address, token) where {T,N} = BatchArray{T,N}(token, Ptr{T}(address), spec.dims)
Base.propertynames(::Row{names}) where {names} = names === nothing ? () : names
Base.getproperty(row::Row{names}, name::Symbol) where {names} = row[findfirst(isequal(name), names)::Int]

"""
    Feedlane.getobs!(row, data, index)

Writes observation number `index` into its row of the batch (`row.image .= ...`, `row.label[] = ...`). By default it
copies the result of `getobs(data, index)`. A method for a user-defined data set avoids that copy.
"""
getobs!(row::Row, data, index) = store!(row, getobs(data, index))

"Copies a sample into its row. If the sample differs from the declaration, throws an error that names the field."
@inline function store!(row::Row{names}, sample::NamedTuple{own}) where {names,own}
    if names !== nothing
        own === names || Set(own) == Set(names) || throw(ArgumentError(
            "the fields $(join(names, ", ")) were declared, but the sample has $(join(own, ", "))"))
        return store_each!(getfield(row, :specs), getfield(row, :addresses), Tuple(NamedTuple{names}(sample)))
    end
    return store!(row, Tuple(sample))
end
@inline store!(row::Row{names,S}, sample::Tuple) where {names,S<:Tuple} =
    length(sample) == fieldcount(S) ? store_each!(getfield(row, :specs), getfield(row, :addresses), sample) :
    throw(ArgumentError("$(fieldcount(S)) fields were declared, but the sample has $(length(sample))"))
@inline store!(row::Row, sample) = store!(row, (sample,))

store_each!(::Tuple{}, ::Tuple{}, ::Tuple{}) = nothing
@inline function store_each!(specs::Tuple, addresses::Tuple, values::Tuple)
    store_field!(first(specs), first(addresses), first(values))
    return store_each!(Base.tail(specs), Base.tail(addresses), Base.tail(values))
end

@inline store_field!(::Spec{T,0}, address, value::T) where {T} = unsafe_store!(Ptr{T}(address), value)
@inline store_field!(::Spec{T,0}, address, value::AbstractArray{T,0}) where {T} = unsafe_store!(Ptr{T}(address), value[])
@inline function store_field!(spec::Spec{T,N}, address, value::AbstractArray{T,N}) where {T,N}
    size(value) == spec.dims || throw_other_field(spec, value)
    return copy_elements!(Ptr{T}(address), value)
end
store_field!(spec::Spec, address, value) = throw_other_field(spec, value)

copy_elements!(to::Ptr{T}, from::Union{Array{T},Base.FastContiguousSubArray{T,N,<:Array} where N}) where {T} =
    GC.@preserve from unsafe_copyto!(to, pointer(from), length(from))
function copy_elements!(to::Ptr, from::AbstractArray)
    for (number, value) in enumerate(from)
        unsafe_store!(to, value, number)
    end
end

@noinline function throw_other_field(spec::Spec{T,N}, value) where {T,N}
    found = value isa AbstractArray ? "$(eltype(value)) $(size(value))" : string(typeof(value))
    throw(ArgumentError("field $(spec.name) was declared as $T $(spec.dims), but the sample has $found"))
end
