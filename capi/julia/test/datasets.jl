# SPDX-License-Identifier: Apache-2.0
# The data sets of the tests. Workers include this file into their Main, so that they know the types.
module DataSets

using Feedlane

"Sample i: x is i in all 4 × 3 places, y is i squared."
struct Squares
    count::Int
end
Base.length(data::Squares) = data.count
Base.getindex(::Squares, i) = (x=fill(Float32(i), 4, 3), y=i^2)

"As Squares, but sample `at` cannot be made."
struct Failing
    count::Int
    at::Int
end
Base.length(data::Failing) = data.count
Base.getindex(data::Failing, i) = i == data.at ? broken(i) : (x=fill(Float32(i), 4, 3), y=i^2)
broken(i) = error("sample $i is broken: äöü")

"Takes `seconds` for each sample from number `from` on."
struct Slow
    count::Int
    from::Int
    seconds::Float64
end
Base.length(data::Slow) = data.count
function Base.getindex(data::Slow, i)
    i >= data.from && Libc.systemsleep(data.seconds)
    return (x=fill(Float32(i), 4, 3), y=i^2)
end

"The samples of examples/c/worker.c."
struct Checksum end
Base.length(::Checksum) = 1000
function Base.getindex(::Checksum, i)
    index, shift = i - 1, Int64(Feedlane.sample_seed() % 5)
    return (x=Float32[((index + k + shift) % 17) / 16f0 for k in 0:63], label=index % 10)
end

"Writes its rows itself, and more than once."
struct Rewriting
    count::Int
end
Feedlane.numobs(data::Rewriting) = data.count
Feedlane.getobs(::Rewriting, i) = (x=zeros(Float32, 4, 3), y=0)
function Feedlane.getobs!(row::Feedlane.Row, ::Rewriting, i)
    for value in (-1, i)
        row.x .= value
        row.y[] = value^2
    end
end

"Samples of another size than the first."
struct Uneven end
Base.length(::Uneven) = 10
Base.getindex(::Uneven, i) = (x=zeros(Float32, i < 6 ? 4 : 5), y=i)

end
using .DataSets: Squares, Failing, Slow, Checksum, Rewriting, Uneven
