# SPDX-License-Identifier: Apache-2.0
"""
Feeds training loops: worker processes make batches in shared memory, and a `Loader` yields their arrays in place.

    loader = Loader(data; batchsize=32, shuffle=true, seed=1, workers=2)
    for epoch in 1:3, batch in loader
        learn(batch.x, batch.y)
    end
"""
module Feedlane

using FileWatching
using Libdl
using Serialization

include("LibFeedlane/LibFeedlane.jl")
using .LibFeedlane

include("memory.jl")
include("errors.jl")
include("observations.jl")
include("handle.jl")
include("pool.jl")
include("arrays.jl")
include("broadcast.jl")
include("fields.jl")
include("batch.jl")
include("rows.jl")
include("making.jl")
include("shards.jl")
include("samplers.jl")
include("start.jl")
include("custom.jl")
include("config.jl")
include("loader.jl")
include("epochs.jl")
include("arena.jl")
include("entries.jl")
include("monitor.jl")
include("observe.jl")
include("share.jl")
include("worker.jl")
include("threads.jl")
include("external.jl")
include("buffers.jl")
include("dlpack.jl")
include("ring.jl")
include("others.jl")

export Loader, Shards, Transient, Arena, Ring, Pool, Batch, BatchArray, FeedlaneError, Sampler
export keep, release!, next!, begin!, join_feeder, join_arena, join_ring
export sequential_sampler, random_sampler, subset_sampler, weighted_sampler, distributed_sampler, batch_sampler,
       tokens_sampler, mixture_sampler, custom_sampler, Live

__init__() = LibFeedlane.load_library()

end
