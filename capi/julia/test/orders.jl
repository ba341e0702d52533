# SPDX-License-Identifier: Apache-2.0
# Samplers, states, and data of all kinds.

epoch_of(sampler, epoch, count=1000) = take!(Feedlane.restart!(sampler, epoch), count)
indices_of(loader) = reduce(vcat, [Feedlane.indices(batch) for batch in loader])

@testset "samplers" begin
    @test epoch_of(sequential_sampler(5), 0) == 1:5
    @test epoch_of(Sampler(:sequential; length=5), 0) == 1:5
    @test_throws ArgumentError Sampler(:random_order; length=5)
    shuffled = random_sampler(100; seed=3)
    @test sort(epoch_of(shuffled, 0)) == 1:100 && epoch_of(shuffled, 0) != epoch_of(shuffled, 1)
    @test epoch_of(random_sampler(100; seed=3), 1) == epoch_of(shuffled, 1)
    @test sort(epoch_of(random_sampler(100; shuffle=:feistel), 0)) == 1:100
    @test length(random_sampler(10; num_samples=25, replacement=true)) == 25
    @test epoch_of(subset_sampler([5, 2, 9]; in_order=true), 4) == [5, 2, 9]
    @test sort(epoch_of(subset_sampler([5, 2, 9]), 4)) == [2, 5, 9]
    @test unique(epoch_of(weighted_sampler([0, 1, 0]; num_samples=8), 0)) == [2]
    @test sort(epoch_of(weighted_sampler([1, 2, 3]; replacement=false), 0)) == 1:3
    ranks = [epoch_of(distributed_sampler(10; rank=rank, world=2), 1) for rank in 0:1]
    @test sort(vcat(ranks...)) == 1:10
    @test epoch_of(distributed_sampler(10; rank=1, world=2, shuffle=nothing), 0) == 2:2:10
    batches = batch_sampler(sequential_sampler(5), 2; partial=false)
    @test take!(batches, 2) == [1, 2] && length(batches) == 2
    budget = tokens_sampler([9, 1, 5, 5], 10, 4; rank=0, world=1)
    @test sort(vcat((take!(budget, 4) for _ in 1:length(budget))...)) == 1:4 && isempty(take!(budget, 4))
    stages = mixture_sampler([5, 2], [1 0; 0 1]; num_samples=6, window=1, stages=[0, 4], shuffle=false, rank=0, world=1)
    @test take!(stages, 6) == [1, 2, 3, 4, 6, 7]
    @test Feedlane.rank_detect().world >= 1
    first_half = epoch_of(shuffled, 7, 40)
    saved = Feedlane.save(shuffled)
    other = Feedlane.load!(Feedlane.restart!(random_sampler(100; seed=3), 7), saved)
    @test sort(vcat(first_half, take!(other, 1000))) == 1:100
end

@testset "orders" begin
    data = Squares(23)
    @test indices_of(Loader(data; batchsize=4)) == 1:23
    @test indices_of(Loader(data; batchsize=4, partial=false)) == 1:20
    cut = Loader(data; batchsize=4, max_batches=2)
    @test indices_of(cut) == 1:8 && length(cut) == 2
    @test indices_of(Loader(data; batchsize=4, sampler=[3, 1, 20])) == [3, 1, 20]
    @test indices_of(Loader(data; sampler=batch_sampler(sequential_sampler(6), 4))) == 1:6
    loader = Loader(data; batchsize=4, shuffle=true, seed=1)
    @test length(loader) == 6
    @test indices_of(loader) != indices_of(loader)   # the next epoch
    single = first(Loader(data; batchsize=0))
    @test size(single.x) == (4, 3) && single.y[] == 1
    with_workers = spawned(data; batchsize=4, shuffle=true, seed=1)
    @test contents_of_epoch(with_workers) == contents_of_epoch(Loader(data; batchsize=4, shuffle=true, seed=1))
    close(with_workers)
end

@testset "state" begin
    data, whole = Squares(40), indices_of(Loader(Squares(40); batchsize=4, shuffle=true, seed=9))
    loader = Loader(data; batchsize=4, shuffle=true, seed=9)
    seen, saved = Int[], UInt8[]
    for batch in loader
        append!(seen, Feedlane.indices(batch))
        saved = Feedlane.state(loader, batch)
        length(seen) == 12 && break
    end
    info = Feedlane.state_info(saved)
    @test (info.epoch, info.batch, info.samples, info.ended) == (0, 3, 12, false)
    resumed = spawned(data; batchsize=4, shuffle=true, seed=9, state=saved)
    @test vcat(seen, indices_of(resumed)) == whole
    close(resumed)
    @test thrown(() -> Loader(data; state=saved[1:end-1], batchsize=4)).name == "E_CORRUPT"
end

@testset "data" begin
    matrix = reshape(collect(1f0:12f0), 3, 4)
    for batch in Loader(matrix; batchsize=2)
        @test batch[1] == matrix[:, Feedlane.indices(batch)]
    end
    named = first(Loader((a=matrix, b=1:4); batchsize=4))
    @test named.a == matrix && named.b == 1:4 && NamedTuple(named).b == 1:4
    @test propertynames(named) == (:a, :b)
    @test first(Loader([ComplexF32(1, 2), ComplexF32(3, 4)]; batchsize=2))[1] == [1 + 2im, 3 + 4im]
    @test first(Loader([[1, 2], [3, 4]]; batchsize=2))[1] == [1 3; 2 4]
    # Serialized, with a closure: the worker needs no setup.
    loader = Loader((a=matrix, b=[4, 3, 2, 1]); batchsize=2, workers=1)
    @test [copy(batch.b) for batch in loader] == [[4, 3], [2, 1]]
    @test occursin("a 3×2 Float32", sprint(show, first(loader)))
    close(loader)
    @test sprint(show, loader) == "Loader(closed)"
end

"Loads a package, written to `folder`, that a project does not name."
function package(folder, name, uuid, text)
    mkpath(joinpath(folder, name, "src"))
    write(joinpath(folder, name, "Project.toml"), "name = \"$name\"\nuuid = \"$uuid\"\n")
    write(joinpath(folder, name, "src", name * ".jl"), "module $name\n$text\nend\n")
    push!(LOAD_PATH, joinpath(folder, name))
    return Base.require(Base.PkgId(Base.UUID(uuid), name))
end

@testset "packages" begin
    mktempdir() do folder
        # A data set's type out of a package: workers load it by themselves.
        photos = package(folder, "Photos", "5c7b0f66-1f5b-4e0f-8f4e-0b1f6a1b7a10", """
            struct Folder; count::Int; end
            Base.length(data::Folder) = data.count
            Base.getindex(::Folder, i) = (y=i,)""")
        loader = Base.invokelatest(Loader, Base.invokelatest(photos.Folder, 6); batchsize=3, workers=1)
        @test [copy(batch.y) for batch in loader] == [[1, 2, 3], [4, 5, 6]]
        close(loader)
        # The generic functions that data sets for MLUtils have methods of, in a package of its name.
        core = package(folder, "MLCore", "c2834f40-e789-41da-a90e-33b280584a8c", "function numobs end; function getobs end")
        Core.eval(Main, :(struct Observed end; $core.numobs(::Observed) = 4; $core.getobs(::Observed, i) = 10i))
        @test Base.invokelatest(() -> first(Loader(Main.Observed(); batchsize=4))[1]) == [10, 20, 30, 40]
    end
end
