# SPDX-License-Identifier: Apache-2.0
# Iterable data sets: shards in order, with a sample that is left out, with deaths, resumed.

numbers_of(loader) = reduce(vcat, [copy(batch.number) for batch in loader]; init=Int[])

"The kinds of loaders that iterate shards."
const SHARD_MODES = ((workers=0,), (workers=2, setup=SETUP))

@testset "iterable" begin
    for mode in SHARD_MODES
        shards = max(mode.workers, 1)
        options = (batchsize=5, seed=3, skip_budget=1, fields=(number=(Int, ()), seed=(UInt64, ())))
        loader, whole = Loader(counting(saves=true); options..., mode...), Int[]
        for epoch in 0:1
            found, state, position = Int[], UInt8[], 0
            for batch in loader
                append!(found, batch.number)
                Feedlane.number(batch) == 7 || continue
                state, position = Feedlane.state(loader, batch), length(found)
                foreach(pid -> kill_process(pid, SIGKILL), pids(loader))   # they continue where they had saved
            end
            isempty(whole) && (whole = found)
            @test sort(found) == setdiff(1:100, 30) && found == whole
            resumed = Loader(counting(saves=true); options..., mode..., state=state)
            @test numbers_of(resumed) == found[position+1:end]
            close(resumed)
        end
        @test mode.workers == 0 || Feedlane.stats(loader).restarts >= 2
        @test first(loader).number == (shards == 1 ? (1:5) : (1:2:9))
        @test sprint(show, loader) == "Loader(next is epoch 3)" && thrown(() -> length(loader)).name == "E_UNSUPPORTED"
        close(loader)
    end
end

@testset "lost_shard" begin
    for deterministic in (true, false)
        loader = Loader(counting(broken=0); batchsize=1, workers=2, setup=SETUP, deterministic=deterministic)
        begin!(loader)
        found, lost = Int[], []
        while true
            batch = try
                next!(loader)
            catch reason
                push!(lost, reason.name)
                continue
            end
            batch === nothing && break
            push!(found, batch.number[])
            Feedlane.number(batch) == 4 && kill_process(pids(loader)[1], SIGKILL)
            release!(batch)
        end
        @test count(iseven, found) == 50 && allunique(found)
        @test deterministic ? length(found) == 100 && isempty(lost) : length(found) < 100 && lost == ["E_PEER_DEAD"]
        close(loader)
    end
end

@testset "shard_seeds" begin
    seeds = map((0, 1)) do workers
        loader = Loader(counting(broken=0); batchsize=10, seed=7, workers=workers, setup=workers == 0 ? nothing : SETUP)
        list = [batch.seed[1] for batch in loader]
        close(loader)
        list
    end
    @test seeds[1] == seeds[2] && allunique(seeds[1])
end

@testset "ranks" begin
    found = map(0:2) do rank
        loader = Loader(counting(broken=0); batchsize=5, rank=rank, world=3)
        cut = Loader(counting(broken=0); batchsize=5, rank=rank, world=3, max_batches=3)
        @test length(numbers_of(cut)) == 15
        numbers_of(loader)
    end
    @test found == [rank:3:100 for rank in 1:3]
    @test thrown(() -> Loader(counting(broken=0); rank=2, world=2)).argument == "config.rank"
end

"What `open` gets, as numbers."
facts(shard) = ((shard.shard, shard.shards, shard.epoch, shard.worker, shard.workers, parse(Int, shard.config)),)

@testset "shard_facts" begin
    fields = ntuple(_ -> (Int, ()), 6)
    for (workers, expected) in (0 => (1, 1, 4, -1, 0, 17), 1 => (1, 1, 4, 0, 1, 17))
        loader = Loader(Shards(facts); workers=workers, setup=:(facts = $facts), fields=fields, worker_config="17")
        begin!(loader, 4)
        @test workers != 0 || map(only, Tuple(next!(loader))) == expected
        close(loader)
    end
end

"An iterable with a state that is too large to be saved."
struct Growing end
Base.IteratorSize(::Type{Growing}) = Base.SizeUnknown()
Base.iterate(::Growing, state=nothing) = ((number=1,), zeros(UInt8, 1 << 20))

@testset "shard_errors" begin
    for (reason, retries, budget, expected) in (
            (ErrorException("no more"), 0, 1, 1:4), (Transient("wait"), 1, 0, 1:10))
        DataSets.attempts[] = 0
        loader = Loader(Shards(_ -> Breaking(4, reason)); retries=retries, skip_budget=budget, fields=(number=(Int, ()),))
        @test numbers_of(loader) == expected
        @test only(Feedlane.events(loader)).kind == (retries == 1 ? :sample_retried : :sample_skipped)
        close(loader)
    end
    DataSets.attempts[] = 0
    loader = Loader(Shards(_ -> Breaking(4, ErrorException("no more"))); fields=(number=(Int, ()),))
    begin!(loader)
    for number in 1:4
        @test next!(loader).number == [number]
    end
    reason = thrown(() -> next!(loader))
    @test reason.name == "E_SAMPLE" && occursin("no more", reason.text) && reason.sample == 5
    @test next!(loader) === nothing   # the shard has ended
    close(loader)
    large = Loader(Shards(_ -> Iterators.take(Iterators.cycle([(number=1,)]), 3); saves=true))   # a state that can be saved
    @test numbers_of(large) == [1, 1, 1]
    large = Loader(Shards(_ -> Growing(); saves=true))
    reason = thrown(() -> numbers_of(large))
    @test reason.name == "E_SAMPLE" && occursin(" are allowed: iterate over something with a smaller state", reason.text)
    @test occursin("shuffle and sampler", thrown(() -> Loader(counting(); shuffle=true)).msg)
    @test occursin("not allowed for Shards", thrown(() -> Loader(counting(); workers=1, start=:thread)).msg)
    @test occursin("no sample", thrown(() -> Loader(Shards(_ -> Int[]))).msg)
    # A worker of the other kind.
    script = "using Feedlane; Feedlane.worker_main(1:10)"
    other = Loader(nothing; iterable=true, fields=((Int, ()),), workers=1, worker=`$(Feedlane.julia_command()) -e $script`)
    reason = redirect_stderr(() -> thrown(() -> first(other)), open("/dev/null", "w"))
    @test reason.name == "E_INIT" && occursin("pass Shards to worker_main", reason.text)
    close(other)
end
