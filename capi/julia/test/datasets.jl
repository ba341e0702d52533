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

"As Failing, but the first `failures` attempts of each process at sample `at` fail for a time only."
struct Flaky
    count::Int
    at::Int
    failures::Int
end
Base.length(data::Flaky) = data.count
function Base.getindex(data::Flaky, i)
    i == data.at && Threads.atomic_add!(attempts, 1) < data.failures && throw(Transient(ErrorException("sample $i is busy")))
    return (x=fill(Float32(i), 4, 3), y=i^2)
end
const attempts = Threads.Atomic{Int}(0)

"As Failing, but the sample after the next one is its substitute, and that of a substitute that fails."
struct Replaced
    count::Int
    at::Tuple
end
Base.length(data::Replaced) = data.count
Base.getindex(data::Replaced, i) = i in data.at ? broken(i) : (x=fill(Float32(i), 4, 3), y=i^2)
Feedlane.substitute(data::Replaced, failed, seed, tries) = failed + 2 <= data.count ? failed + 2 : nothing

"Shards of the numbers 1:100, one of which cannot be made. Shard s of n has s, s + n and so on."
counting(; broken=30, options...) = Shards(; options...) do shard
    ((number=number == broken ? error("$number is broken") : number, seed=Feedlane.sample_seed())
     for number in shard.shard:shard.shards:100)
end

"Numbers whose iteration fails after `last`: for a time only, or for good."
struct Breaking
    last::Int
    reason::Any
end
Base.IteratorSize(::Type{Breaking}) = Base.SizeUnknown()
function Base.iterate(numbers::Breaking, number=0)
    number == numbers.last && Threads.atomic_add!(attempts, 1) == 0 && throw(numbers.reason)
    return number == 10 ? nothing : ((number=number + 1,), number + 1)
end

"y is the first index of the task that is queued behind this one, which the sample waits for, or 0 in the last tasks."
struct Looking
    count::Int
    last::Int
end
Base.length(data::Looking) = data.count
function Base.getindex(data::Looking, i)
    while i <= data.last && Feedlane.ahead() === nothing
        sleep(0.001)
    end
    found = Feedlane.ahead()
    next = found === nothing ? nothing : Feedlane.ahead(found.id)
    return (y=found === nothing ? 0 : found.indices[1], next=next === nothing ? -1 : next.batch)
end

"Makes x in scratch memory. y is 1 if that of the task before can no longer be used."
struct Scratching
    count::Int
end
Base.length(data::Scratching) = data.count
function Base.getindex(::Scratching, i)
    before, x = kept_scratch[], Feedlane.scratch(Float32, 4, 3)
    kept_scratch[] = x
    x .= i
    stale = before isa BatchArray && !before.token.live
    return (x=x, y=Int(stale))
end
const kept_scratch = Ref{Any}(nothing)

end
using .DataSets: Squares, Failing, Slow, Checksum, Rewriting, Uneven, Flaky, Replaced, counting, Breaking, Looking, Scratching
