# SPDX-License-Identifier: Apache-2.0
# Workers in Julia's threads: one thread in this process, several in a child process.

const THREADS_BODY = """
    options = (batchsize=7, shuffle=true, seed=5)
    epochs(data; more...) = (loader = Loader(data; options..., more...);
                             result = [[map(copy, Tuple(batch)) for batch in loader] for _ in 1:3]; close(loader); result)
    for data in (Squares(100), Checksum())
        println(epochs(data; workers=3, start=:thread) == epochs(data))
    end
    loader = Loader(Squares(100); workers=2, start=:thread, batchsize=1)
    begin!(loader)
    release!(next!(loader))
    begin!(loader)   # abandons the epoch
    println(next!(loader).y == [1], ' ', Feedlane.info(loader).start, ' ', all(pid -> pid in (0, getpid()), pids(loader)))
    close(loader)
    println(loader.handle.crew.running)
    """

@testset "threads" begin
    for flags in (`-t 1`, `-t 3`)
        @test lines_of(program(THREADS_BODY; flags=flags)) == ["true", "true", "true thread true", "0"]
    end
end

@testset "threads_end" begin
    loader = Loader(Slow(1_000_000, 1, 0.001); workers=2, start=:thread)
    begin!(loader)
    waiting = @async thrown(() -> while true; release!(next!(loader)); end)
    @test soon(() -> Feedlane.stats(loader).batches > 2, PATIENCE)
    close(loader)
    @test fetch(waiting).name == "E_STATE" && loader.handle.crew.running == 0
    forgotten = Loader(Squares(100); workers=2, start=:thread)
    begin!(forgotten)
    next!(forgotten)
    crew = forgotten.handle.crew
    finalize(forgotten.handle)
    @test soon(() -> crew.running == 0, PATIENCE)
    failing = Loader(Failing(20, 7); batchsize=5, workers=2, start=:thread)
    begin!(failing)
    release!(next!(failing))
    reason = thrown(() -> next!(failing))
    @test reason.name == "E_SAMPLE" && reason.sample == 7 && occursin("datasets.jl", reason.detail)
    @test next!(failing).y == (11:15) .^ 2
    close(failing)
    @test occursin("cannot fork", thrown(() -> Loader(Squares(4); workers=1, start=:fork)).msg)
    @test occursin("must be one of", thrown(() -> Loader(Squares(4); workers=1, start=:remote)).msg)
end
