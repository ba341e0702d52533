# SPDX-License-Identifier: Apache-2.0
# Data sets with the conventions of MLUtils, `numobs` and `getobs`, without a dependency on MLUtils.

const MLCORE = Base.PkgId(Base.UUID("c2834f40-e789-41da-a90e-33b280584a8c"), "MLCore")
const MLUTILS = Base.PkgId(Base.UUID("f1d291b0-491e-4a28-83b9-f70985020b54"), "MLUtils")

"MLCore or MLUtils, if the program has loaded one of them. Their functions have methods for further types."
function conventions()
    count, found = searched[]
    length(Base.loaded_modules) == count && return found
    found = get(() -> get(Base.loaded_modules, MLUTILS, nothing), Base.loaded_modules, MLCORE)
    searched[] = (length(Base.loaded_modules), found)
    return found
end
# The number of loaded modules at the last search, and its result: a search for each sample would take longer than the sample.
const searched = Ref{Tuple{Int,Union{Nothing,Module}}}((0, nothing))

"""
    Feedlane.numobs(data)

The number of observations. For an array this is the size of its last dimension. All parts of a tuple or named tuple
must have the same number. For other types it is the result of `numobs` of MLCore or MLUtils if one of them is loaded,
otherwise `length(data)`. Data sets may add methods.
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

Observation number `index`, from 1: a number, an array of numbers, or a tuple or named tuple of them. For a vector this
is an element, for an array with more dimensions a view at this index of the last dimension. A tuple or named tuple has
an observation of each part. For other types it is the result of `getobs` of MLCore or MLUtils if one of them is loaded,
otherwise `data[index]`. Data sets may add methods.
"""
function getobs(data, index)
    loaded = conventions()
    return loaded === nothing ? data[index] : Base.invokelatest(loaded.getobs, data, index)
end
getobs(data::AbstractVector, index) = data[index]
getobs(data::AbstractArray{T,N}, index) where {T,N} = view(data, ntuple(_ -> :, Val(N - 1))..., index)
getobs(data::Union{Tuple,NamedTuple}, index) = map(part -> getobs(part, index), data)
