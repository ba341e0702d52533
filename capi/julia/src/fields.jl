# SPDX-License-Identifier: Apache-2.0
# The fields of a sample: element types, shapes and names, in Julia's form and in the library's.

"One field: elements of type T, and `dims` in Julia's order, without the batch dimension."
struct Spec{T,N}
    name::String
    dims::NTuple{N,Int}
end

const DTYPES = Pair{DataType,L.feedlane_dtype}[
    T => L.feedlane_dtype(code, bits, 1) for (T, code, bits) in
    ((Int8, 0, 8), (Int16, 0, 16), (Int32, 0, 32), (Int64, 0, 64), (UInt8, 1, 8), (UInt16, 1, 16), (UInt32, 1, 32),
     (UInt64, 1, 64), (Float16, 2, 16), (Float32, 2, 32), (Float64, 2, 64), (ComplexF32, 5, 64), (ComplexF64, 5, 128),
     (Bool, 6, 8))]

@generated function dtype_of(::Type{T}) where {T}
    found = findfirst(pair -> pair.first === T, DTYPES)
    found === nothing && return :(throw(ArgumentError(
        "elements of type $T are not supported: use Bool, or a real or complex number type of Base")))
    return DTYPES[found].second
end

function type_of(dtype::L.feedlane_dtype)
    found = findfirst(pair -> pair.second.code == dtype.code && pair.second.bits == dtype.bits && dtype.lanes <= 1, DTYPES)
    found === nothing && throw(FeedlaneError(L.FEEDLANE_E_UNSUPPORTED, "elements of dtype $dtype have no Julia type"))
    return DTYPES[found].first
end

"""
The names of a sample's fields (`nothing` for a tuple or a single value), and a `Spec` for each field. All other samples
must have the same fields as this one.
"""
specs_of(sample::NamedTuple{names}) where {names} = names, map(spec_of, String.(names), Tuple(sample))
specs_of(sample::Tuple) = nothing, ntuple(k -> spec_of(string(k), sample[k]), length(sample))
specs_of(sample) = nothing, (spec_of("1", sample),)

spec_of(name, value::Number) = (dtype_of(typeof(value)); Spec{typeof(value),0}(name, ()))
spec_of(name, value::AbstractArray{T,N}) where {T,N} = (dtype_of(T); Spec{T,N}(name, size(value)))
spec_of(name, value) =
    throw(ArgumentError("field $name of the sample is a $(typeof(value)): must be a number or an array of numbers"))

"Fields in the user's form: `(x=(Float32, (64,)), label=(Int64, ()))`, or a tuple of such pairs."
declared(fields::NamedTuple{names}) where {names} = names, map(declare, String.(names), Tuple(fields))
declared(fields::Tuple) = nothing, ntuple(k -> declare(string(k), fields[k]), length(fields))
declare(name, (T, dims)) = (dtype_of(T); Spec{T,length(dims)}(name, Tuple(dims)))

"The field in the library's form: row-major, so the dimensions are reversed. `name` is terminated."
function field_of(spec::Spec{T,N}, name::Ptr{UInt8}) where {T,N}
    shape = ntuple(k -> k <= N ? Int64(spec.dims[N - k + 1]) : Int64(0), 8)
    return L.feedlane_field(sizeof(L.feedlane_field), name, dtype_of(T), N, shape)
end

"The names and specs of the fields that the trainer declared, from the worker's info, or of the tensors of an entry."
function specs_of(fields::Ptr, count)
    list = [unsafe_load(fields, k) for k in 1:count]
    texts = [unsafe_string(field.name) for field in list]
    specs = map(texts, list) do text, field
        Spec{type_of(field.dtype),Int(field.ndim)}(text, ntuple(k -> Int(field.shape[field.ndim - k + 1]), field.ndim))
    end
    names = all(text -> all(isdigit, text), texts) || !allunique(texts) ? nothing : Tuple(Symbol.(texts))
    return names, Tuple(specs)
end

bytes_of(spec::Spec{T}) where {T} = sizeof(T) * prod(spec.dims)

"The type of a batch's array. It has a dimension for the samples, unless samples are not batched."
array_type(::Spec{T,N}, is_batched) where {T,N} = BatchArray{T,N + is_batched}

@inline function array_of(::Type{BatchArray{T,M}}, token::Token, tensor::Ptr{L.feedlane_tensor}) where {T,M}
    dtype, ndim = unsafe_load(member(tensor, Val(:dtype))), unsafe_load(member(tensor, Val(:ndim)))
    (dtype == dtype_of(T) && ndim == M) || throw_other_tensor(tensor, T, M)
    shape = Ptr{Int64}(member(tensor, Val(:shape)))
    dims = ntuple(k -> Int(unsafe_load(shape, M - k + 1)), Val(M))
    return BatchArray{T,M}(token, Ptr{T}(unsafe_load(member(tensor, Val(:data)))), dims)
end

@noinline function throw_other_tensor(address, T, M)
    tensor = unsafe_load(address)
    throw(FeedlaneError(L.FEEDLANE_E_UNSUPPORTED, "field $(unsafe_string(tensor.name)) was declared with elements of " *
        "$T and $M dimensions, but the data set wrote $(type_of(tensor.dtype)) and $(tensor.ndim)"))
end

"The arrays of the tensors at `tensors`, one for each type in A."
@generated function arrays_of(::Type{A}, token::Token, tensors::Ptr{L.feedlane_tensor}) where {A<:Tuple}
    arrays = [:(array_of($T, token, tensors + $((k - 1) * sizeof(L.feedlane_tensor)))) for (k, T) in enumerate(A.parameters)]
    return :(tuple($(arrays...)))
end
