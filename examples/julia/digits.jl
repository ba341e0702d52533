# SPDX-License-Identifier: Apache-2.0
# Trains a small network on handwritten digits; worker processes, this script again, make the batches. See capi/julia/README.md.
# Usage: julia --project=capi/julia examples/julia/digits.jl [--workers N] [--epochs N] [--kill-worker-at-batch N]
#        ... --digest [--workers N] [--worker COMMAND | --feed PATH [--consumers N] | --join PATH]
# COMMAND: workers in another language. --feed: delivers the batches to other programs at a Unix socket. --join: takes them from one.
using Feedlane
using Random

text(name) = (at = findfirst(isequal(name), ARGS); at === nothing ? nothing : ARGS[at + 1])
option(name, default) = (found = text(name); found === nothing ? default : parse(Int, found))

const FOLDER = joinpath(@__DIR__, "..", "data")
const HELD_OUT, BATCH = 360, 32
const IMAGES = reshape(read(joinpath(FOLDER, "optdigits-images-idx3-ubyte"))[17:end], 8, 8, :)   # (x, y, digit)
const LABELS = Int64.(read(joinpath(FOLDER, "optdigits-labels-idx1-ubyte"))[9:end])
const ORDER = sortperm(rand(MersenneTwister(7), 1797))

# To train on: those that are not held out, in [0, 1], moved by up to a pixel each way as the sample's seed says.
struct Moved end
Base.length(::Moved) = length(LABELS) - HELD_OUT
function Base.getindex(::Moved, i)
    digit, padded, seed = ORDER[HELD_OUT + i], zeros(Float32, 10, 10), Feedlane.sample_seed()
    padded[2:9, 2:9] .= view(IMAGES, :, :, digit) ./ 16f0
    x, y = seed % 3, seed ÷ 3 % 3
    return (image=padded[x+1:x+8, y+1:y+8], label=LABELS[digit])
end

const DIGEST = "--digest" in ARGS
const DATA = DIGEST ? (image=IMAGES, label=LABELS) : Moved()   # as they are in the files, or moved
Feedlane.worker_main(DATA)   # a worker goes no further

mutable struct Network
    weights::Vector{Array{Float32}}
    speeds::Vector{Array{Float32}}
end
function Network(draw)
    layer(rows, columns) = (2 .* rand(draw, Float32, rows, columns) .- 1) .* sqrt(6f0 / columns)
    weights = Array{Float32}[layer(128, 64), zeros(Float32, 128), layer(10, 128), zeros(Float32, 10)]
    return Network(weights, zero.(weights))
end

function forward(network, images)   # 64 × n
    w1, b1, w2, b2 = network.weights
    hidden = max.(w1 * images .+ b1, 0)
    scores = w2 * hidden .+ b2
    scores = exp.(scores .- maximum(scores; dims=1))
    return hidden, scores ./ sum(scores; dims=1)
end

function learn!(network, images, labels, rate)
    hidden, chances = forward(network, images)
    hits = [CartesianIndex(label + 1, column) for (column, label) in enumerate(labels)]
    loss = -sum(log.(chances[hits] .+ 1f-30)) / length(labels)
    chances[hits] .-= 1
    upper = chances ./ length(labels)
    lower = (network.weights[3]' * upper) .* (hidden .> 0)
    gradients = (lower * images', vec(sum(lower; dims=2)), upper * hidden', vec(sum(upper; dims=2)))
    for (weight, speed, gradient) in zip(network.weights, network.speeds, gradients)
        speed .= 0.9f0 .* speed .- rate .* gradient
        weight .+= speed
    end
    return loss
end

function train(workers, epochs, kill_at)
    network, test, count, accuracy = Network(MersenneTwister(1)), ORDER[1:HELD_OUT], 0, 0.0
    images, labels = reshape(IMAGES[:, :, test], 64, :) ./ 16f0, LABELS[test]
    loader = Loader(DATA; batchsize=BATCH, shuffle=true, seed=1, workers=workers)
    for epoch in 1:epochs
        loss = 0.0
        for batch in loader
            loss += learn!(network, reshape(batch.image, 64, :), batch.label, 0.2f0 * 0.96f0^(epoch - 1))
            (count += 1) == kill_at && ccall(:kill, Cint, (Cint, Cint), first(Feedlane.workers(loader)).pid, 9)
        end
        accuracy = sum(vec(map(i -> i[1] - 1, argmax(forward(network, images)[2]; dims=1))) .== labels) / HELD_OUT
        println("epoch $epoch: loss $(round(loss / length(loader); digits=4)), test accuracy $(round(accuracy; digits=3))")
    end
    println("restarts: $(Feedlane.stats(loader).restarts)\ntest accuracy: $(round(accuracy; digits=3))")
    close(loader)
end

fnv1a(hash, bytes) = foldl((h, byte) -> (h ⊻ byte) * 0x00000100000001b3, bytes; init=hash)

const FIELDS = (image=(UInt8, (8, 8)), label=(Int64, ()))

# The loader of the digest: see ../README.md.
function digest_loader(workers)
    text("--join") === nothing || return join_feeder(text("--join"); fields=FIELDS)
    made_by = text("--worker") === nothing ? NamedTuple() : (worker=split(text("--worker")), worker_config=abspath(FOLDER))
    shared = text("--feed") === nothing ? NamedTuple() :
             (share=:every, consumers=option("--consumers", 1), share_path=text("--feed"))
    return Loader(DATA; batchsize=64, sampler=random_sampler(1797; seed=1), workers=workers, fields=FIELDS, made_by..., shared...)
end

function feed(loader)
    println("listening")
    flush(stdout)
    Feedlane.serve(loader)   # until all consumers have joined
    for epoch in 0:9
        begin!(loader, epoch)
        Feedlane.serve(loader)
    end
    Feedlane.serve(loader)   # until the last consumer has left
    close(loader)
end

# Ten epochs' bytes in one number.
function digest(loader)
    hash = 0xcbf29ce484222325
    for epoch in 1:10, batch in loader, array in batch
        hash = fnv1a(hash, reinterpret(UInt8, vec(copy(array))))
    end
    println("digest: ", string(hash; base=16, pad=16))
    close(loader)
end

DIGEST ? (text("--feed") === nothing ? digest : feed)(digest_loader(option("--workers", 2))) :
    train(option("--workers", 2), option("--epochs", 40), option("--kill-worker-at-batch", 0))
