# SPDX-License-Identifier: Apache-2.0
# The same bytes as in other languages, and where they lie.

fnv1a(hash, bytes) = foldl((h, byte) -> (h ⊻ byte) * 0x00000100000001b3, bytes; init=hash)
const FNV_START = 0xcbf29ce484222325
hex(hash) = string(hash; base=16, pad=16)
bytes_of(array) = reinterpret(UInt8, vec(copy(array)))

@testset "checksum" begin
    if have_c_examples()
        trainer, worker = joinpath.(C_EXAMPLES, ("trainer", "worker"))
        expected = readchomp(`$trainer $worker`)
        script = joinpath(@__DIR__, "checksum_worker.jl")
        @test readchomp(`$trainer $(Feedlane.julia_command()) $script`) == expected
        loader = Loader(nothing; worker=`$worker`, workers=2, batchsize=32, seed=7, sampler=random_sampler(1000; seed=7),
                        fields=(x=(Float32, (64,)), label=(Int64, ())))
        hash = FNV_START
        for epoch in 1:3, batch in loader, array in batch
            hash = fnv1a(hash, bytes_of(array))
        end
        close(loader)
        @test "checksum: " * hex(hash) == expected
    else
        @test_skip "examples/c is not built: set FEEDLANE_C_EXAMPLES"
    end
end

@testset "digest" begin
    example = joinpath(SOURCE, "examples", "julia", "digits.jl")
    expected = have_c_examples() ? readchomp(`$(joinpath(C_EXAMPLES, "digest")) $(joinpath(SOURCE, "examples", "data"))`) :
               "digest: 35fb9f954d8f3e3d"   # what it prints
    for workers in (0, 2)
        @test readchomp(`$(Feedlane.julia_command()) $example --digest --workers $workers`) == expected
    end
    output = readchomp(`$(Feedlane.julia_command()) $example --kill-worker-at-batch 60`)
    @test parse(Float64, last(split(output))) >= 0.95
    @test parse(Int, match(r"restarts: (\d+)", output)[1]) >= 1
    @test countlines(example) < 120
end

"Whether the address lies in a mapping of shared memory."
function is_shared(address)
    for line in eachline("/proc/self/maps")
        from, to = parse.(UInt, match(r"^(\w+)-(\w+)", line).captures; base=16)
        from <= UInt(address) < to && return occursin("/memfd:", line) && occursin(r"^\S+ rw-s", line)
    end
    return false
end

@testset "zero_copy" begin
    loader = spawned(Rewriting(20); batchsize=5, sampler=[7, 3, 1, 2, 9, 10])
    for batch in loader
        tensor = unsafe_load(Feedlane.raw(batch).tensors)
        @test pointer(batch.x) == tensor.data
        @test is_shared(pointer(batch.x)) && is_shared(pointer(batch.y))
        @test batch.y == Feedlane.indices(batch) .^ 2            # the last of what was written
        @test batch.x[4, 3, :] == Feedlane.indices(batch)
        @test size(batch.x) == (4, 3, length(batch.y))           # C has [batch, 3, 4]
        @test tensor.shape[1:3] == (length(batch.y), 3, 4)
        unsafe_store!(pointer(batch.x), 99f0)
        @test batch.x[1] == 99 && Feedlane.unsafe_array(batch.x)[1] == 99
    end
    close(loader)
end
