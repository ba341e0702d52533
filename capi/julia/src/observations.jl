# SPDX-License-Identifier: Apache-2.0
# Data sets by MLUtils' conventions, without a dependency on it: `numobs` and `getobs`.

const MLCORE = Base.PkgId(Base.UUID("c2834f40-e789-41da-a90e-33b280584a8c"), "MLCore")
const MLUTILS = Base.PkgId(Base.UUID("f1d291b0-491e-4a28-83b9-f70985020b54"), "MLUtils")

"MLCore or MLUtils, if the program has loaded one of them; their functions know the types that implement them."
function conventions()
    for id in (MLCORE, MLUTILS)
        loaded = get(Base.loaded_modules, id, nothing)
        loaded === nothing || return loaded
    end
    return nothing
end

"""
    Feedlane.numobs(data)

The number of observations: the last dimension of an array, that of each part of a tuple, named tuple or `Dict`. Of another
type what `MLUtils.numobs` returns, if MLUtils is loaded, otherwise its `length`. May be given methods.
"""
function numobs(data)
    loaded = conventions()
    return loaded === nothing ? length(data) : Base.invokelatest(loaded.numobs, data)
end
numobs(data::AbstractArray) = size(data, ndims(data))
function numobs(data::Union{Tuple,NamedTuple})
    counts = map(numobs, Tuple(data))
    all(isequal(first(counts)), counts) ||
        throw(DimensionMismatch("the parts of the data have different numbers of observations: $(join(counts, ", "))"))
    return first(counts)
end

"""
    Feedlane.getobs(data, index)

Observation number `index`, from 1: a number, an array of numbers, or a tuple or named tuple of them. Of an array it is a view
of the last dimension. Of a type that is neither array nor tuple it is what `MLUtils.getobs` returns, if MLUtils is
loaded, otherwise `data[index]`. May be given methods.
"""
function getobs(data, index)
    loaded = conventions()
    return loaded === nothing ? data[index] : Base.invokelatest(loaded.getobs, data, index)
end
getobs(data::AbstractVector, index) = data[index]
getobs(data::AbstractArray{T,N}, index) where {T,N} = view(data, ntuple(_ -> :, Val(N - 1))..., index)
getobs(data::Union{Tuple,NamedTuple}, index) = map(part -> getobs(part, index), data)
