# SPDX-License-Identifier: Apache-2.0
# How long batches and their arrays live.

@testset "kept" begin
    loader = spawned(Squares(100); batchsize=5, held=2)
    begin!(loader)
    kept, reason = Batch[], nothing
    reason = thrown() do
        while true
            push!(kept, next!(loader; timeout=20))
        end
    end
    @test reason isa FeedlaneError && reason.name == "SLOTS_HELD"
    @test length(kept) == Feedlane.stats(loader).slots
    release!(kept[1])
    @test next!(loader).y == ((1:5) .+ 5 * length(kept)) .^ 2
    close(loader)
    GC.gc()
    for (number, batch) in enumerate(kept[2:end])
        @test batch.y == ((1:5) .+ 5 * number) .^ 2
    end
end

"The batches of an epoch that nobody keeps a reference to, but that nobody releases either."
function wasteful(loader)
    begin!(loader)
    total = 0
    while true
        batch = next!(loader)
        batch === nothing && return total
        total += sum(batch.y)
    end
end

@testset "collected" begin
    loader = spawned(Squares(500); batchsize=5)
    @test wasteful(loader) == sum((1:500) .^ 2)   # 100 batches through some 6 slots: collected when they are needed
    close(loader)
end

part(loader) = view(first(loader).x, :, 2, :)

@testset "view" begin
    loader = spawned(Squares(20); batchsize=5)
    kept = part(loader)
    GC.gc()
    @test kept == [Float32(i) for _ in 1:4, i in 1:5]
    batch = keep(first(loader))
    parts = (view(batch.x, :, 1, :), reshape(batch.x, 12, 5), vec(batch.y))
    for batch in loader end
    @test all(part -> part[end] in (5, 25), parts)
    @test parts[2] * ones(Float32, 5) == fill(15f0, 12)   # BLAS reads it where it lies
    release!(batch)
    for part in parts
        @test thrown(() -> part[1]).name == "E_STALE"
    end
    close(loader)
end

@testset "arrays" begin
    loader = Loader((reshape(collect(1.0:24.0), 2, 3, 4), [true, false, true, false]); batchsize=4)
    x, y = first(loader)
    @test x isa DenseArray{Float64,3} && y isa AbstractVector{Bool}
    @test strides(x) == (1, 2, 6) && stride(x, 2) == 2
    @test sum(x) == 300 && x .* 2 == collect(2.0:2.0:48.0) |> v -> reshape(v, 2, 3, 4)
    @test reshape(x, 6, 4)' * ones(6) == [21, 57, 93, 129]
    @test x[end, :, 1] == [2, 4, 6] && copy(x) isa Array{Float64,3}
    @test thrown(() -> x[25]) isa BoundsError
    x[1, 1, 1] = 7
    @test x[1] == 7
    close(loader)
end

@testset "broadcast" begin
    x, y = first(Loader((rand(Float32, 2, 3, 4), 1:4); batchsize=4))
    a = copy(x)
    @test x .+ 1 == a .+ 1 && x .* reshape(1:4, 1, 1, 4) == a .* reshape(1:4, 1, 1, 4)
    @test typeof(x .+ x) == typeof(a) && (x .> 1) isa BitArray && string.(y) == ["1", "2", "3", "4"]
    @test sum(x) ≈ sum(a) && sum(x; dims=1) ≈ sum(a; dims=1) && maximum(abs, x) == maximum(abs, a)
    @test view(x, :, 2, :) .* 2 == 2 .* a[:, 2, :]
    x .= 2 .* x
    @test x == 2 .* a
end
