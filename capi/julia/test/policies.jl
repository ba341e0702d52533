# SPDX-License-Identifier: Apache-2.0
# Samples that fail: retries, substitutes, skips; in every kind of worker.

const MODES = ((workers=0,), (workers=2, setup=SETUP), (workers=2, start=:thread))

kinds_of(loader) = [event.kind for event in Feedlane.events(loader)]

@testset "retries" begin
    for mode in MODES
        DataSets.attempts[] = 0
        loader = Loader(Flaky(20, 7, 2); batchsize=5, retries=2, retry_backoff=1e-6, mode...)
        @test last.(contents_of_epoch(loader)) == [((1:5) .+ 5k) .^ 2 for k in 0:3]
        event = only(Feedlane.events(loader))
        @test (event.kind, event.sample, event.batch, event.retries) == (:sample_retried, 7, 1, 2)
        @test occursin("7 is busy", event.text)
        @test Feedlane.stats(loader).retried == 1
        close(loader)
        DataSets.attempts[] = 0
        loader = Loader(Flaky(20, 7, 2); batchsize=5, retries=1, retry_backoff=1e-6, mode...)
        begin!(loader)
        release!(next!(loader))
        reason = thrown(() -> next!(loader))
        @test reason.name == "E_SAMPLE" && reason.sample == 7 && occursin("sample 7 is busy", reason.text)
        close(loader)
    end
end

@testset "substitutes" begin
    for mode in MODES
        loader = Loader(Replaced(20, (7, 9)); batchsize=5, substitute=true, mode...)
        batches = contents_of_epoch(loader)
        @test batches[2][2] == [6, 11, 8, 11, 10] .^ 2 && batches[2][1][1, 1, :] == [6, 11, 8, 11, 10]
        events = Feedlane.events(loader)
        @test [(event.sample, event.substitute) for event in events] == [(7, 11), (9, 11)]
        @test all(event -> event.kind == :sample_substituted, events)
        close(loader)
        none = Loader(Replaced(20, (7, 20)); batchsize=5, substitute=true, mode...)
        @test thrown(() -> contents_of_epoch(none)).sample == 20   # `substitute` returned nothing
        close(none)
    end
end

@testset "skips" begin
    for mode in MODES
        loader = Loader(Replaced(20, (7, 16, 17, 18, 19, 20)); batchsize=5, skip_budget=6, mode...)
        rows = [(copy(batch.y), Feedlane.skipped(batch)) for batch in loader]
        @test rows == [((1:5) .^ 2, Int[]), ([6, 8, 9, 10] .^ 2, [7]), ((11:15) .^ 2, Int[])]   # no batch without rows
        @test Feedlane.stats(loader).skipped == 6 && all(isequal(:sample_skipped), kinds_of(loader))
        close(loader)
        strict = Loader(Replaced(20, (7, 9)); batchsize=5, skip_budget=1, mode...)
        @test thrown(() -> contents_of_epoch(strict)).name == "E_SAMPLE"
        close(strict)
    end
end

@testset "ahead" begin
    loader = Loader(Looking(40, 20); batchsize=5, workers=1, prefetch=3, setup=SETUP, fields=(y=(Int, ()), next=(Int, ())))
    batches = [(copy(batch.y), copy(batch.next)) for batch in loader]
    @test [y for (y, _) in batches[1:4]] == [fill(5k + 1, 5) for k in 1:4]
    @test all(k -> all(in((-1, k + 1)), batches[k][2]), 1:4)   # the task after that one, if it is queued
    close(loader)
    @test first(Loader(Looking(10, 0); batchsize=5)).y == zeros(5)   # inline
    @test Feedlane.ahead() === nothing
end

@testset "scratch" begin
    for mode in MODES
        loader = Loader(Scratching(20); batchsize=5, mode...)
        batches = contents_of_epoch(loader)
        @test [x[1, 1, :] for (x, _) in batches] == [(1:5) .+ 5k for k in 0:3]
        # Of the second batch of a process, only the first sample finds the array of an earlier task.
        mode.workers == 2 && !haskey(mode, :start) && @test sum(sum(y) for (_, y) in batches) >= 2
        close(loader)
    end
    @test Feedlane.scratch(Float32, 3) isa Vector{Float32}
    @test occursin("bits type", thrown(() -> Feedlane.scratch(String, 3)).msg)
end
