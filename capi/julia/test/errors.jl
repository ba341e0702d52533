# SPDX-License-Identifier: Apache-2.0
# Errors of data sets and of callers.

@testset "error" begin
    for workers in (0, 2)
        loader = Loader(Failing(20, 7); batchsize=5, workers=workers, setup=workers == 0 ? nothing : SETUP)
        begin!(loader)
        @test next!(loader).y == (1:5) .^ 2
        reason = thrown(() -> next!(loader))
        @test reason isa FeedlaneError && reason.name == "E_SAMPLE"
        @test occursin("sample 7 is broken: äöü", reason.text)
        @test occursin("broken", reason.detail) && occursin("datasets.jl", reason.detail)   # the backtrace
        @test (reason.sample, reason.batch) == (7, 1)
        @test occursin("sample 7", sprint(showerror, reason))
        GC.gc()
        @test next!(loader).y == (11:15) .^ 2
        close(loader)
    end
    missing_type = Loader(Squares(10); workers=1, setup=:(1 + 1))   # Main has no DataSets there
    reason = redirect_stderr(() -> thrown(() -> first(missing_type)), open("/dev/null", "w"))
    @test reason.name == "E_INIT" && occursin("DataSets", reason.text)
    close(missing_type)
end

@testset "placement" begin
    @test thrown(() -> Loader(Squares(8); workers=1, worker_cpus="8000")).argument == "config.worker_cpus"
    @test thrown(() -> Loader(Squares(8); workers=1, memory_nodes="first")).argument == "config.memory_nodes"
    @test thrown(() -> Loader(Squares(8); workers=1, prefetch=:auto)).argument == "config.arena_bytes"
    @test thrown(() -> Loader(Squares(8); workers=1, prefetch=:all)) isa ArgumentError
    loader = spawned(Squares(20); batchsize=5, prefetch=:auto, arena_bytes=1 << 20, worker_cpus=string(Sys.CPU_THREADS - 1))
    @test [batch.y[1] for batch in loader] == [1, 36, 121, 256]
    close(loader)
end

@testset "misuse" begin
    loader = Loader(Squares(20); batchsize=5)
    batch = first(loader)
    array = batch.x
    release!(batch)
    for use in (() -> array[1], () -> sum(array), () -> array .+ 1, () -> copy(array), () -> pointer(array),
                () -> (array[1] = 2), () -> release!(batch), () -> keep(batch), () -> Feedlane.indices(batch))
        reason = thrown(use)
        @test reason isa FeedlaneError && reason.name == "E_STALE" && occursin("released", reason.text)
    end
    for (kept, batch) in enumerate(loader)
        kept == 1 && (array = batch.x)
        kept == 2 && @test thrown(() -> array[1]).name == "E_STALE"   # the loop has gone on
    end
    close(loader)
    close(loader)   # does nothing
    for use in (() -> next!(loader), () -> begin!(loader), () -> Feedlane.stats(loader), () -> first(loader))
        reason = thrown(use)
        @test reason isa FeedlaneError && reason.name == "E_STATE" && occursin("closed", reason.text)
    end
    @test thrown(() -> Loader(Squares(20); batchsize=-5)).argument == "config.batch_size"
    @test thrown(() -> Loader(Squares(20); workers=-1, worker=`true`)).argument == "config.workers"
    @test thrown(() -> Loader(Squares(20); dispatch=:best)) isa ArgumentError
    @test thrown(() -> Loader(["a", "b"])) isa ArgumentError
    @test thrown(() -> Loader((zeros(3, 4), zeros(5)))) isa DimensionMismatch
    uneven = thrown(() -> for batch in Loader(Uneven()) end)
    @test uneven.name == "E_SAMPLE" && occursin("field x was declared as Float32 (4,)", uneven.text)
    @test thrown(() -> random_sampler(0)).argument == "config.length"
    @test thrown(() -> tokens_sampler([20], 10, 4; rank=0, world=1)).argument == "config.lengths"
    @test thrown(() -> weighted_sampler([1, -1])).argument == "config.weights"
    @test thrown(() -> batch_sampler(sequential_sampler(4), 0)).argument == "config.batch_size"
    @test thrown(() -> distributed_sampler(4; rank=0)) isa ArgumentError
end
