# SPDX-License-Identifier: Apache-2.0
# Batches a second of one 4 KiB sample each, copied from memory that is there. See tools/bench/languages.py.
# Usage: julia --project=capi/julia rate.jl BATCHES; a worker is this script, started again.
using Feedlane

struct Ready
    length::Int
    sample::Vector{Int64}
end
Base.length(r::Ready) = r.length
Base.getindex(r::Ready, i) = (x=r.sample,)

const DATA = Ready(parse(Int, ARGS[1]), vcat(1, zeros(Int64, 511)))
Feedlane.worker_main(DATA)   # a worker goes no further

function epoch(loader)
    batches, sum = 0, 0
    for batch in loader
        sum += batch.x[1, 1]
        batches += 1
    end
    sum == batches || error("wrong contents")
    return batches
end

const LOADER = Loader(DATA; batchsize=1, workers=1, prefetch=8)
epoch(LOADER)   # the worker starts, and Julia compiles
const TOOK = @timed epoch(LOADER)
println(round(Int, TOOK[1] / TOOK[2]))
close(LOADER)
