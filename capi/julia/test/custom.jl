# SPDX-License-Identifier: Apache-2.0
# User-defined and live samplers.

countdown(; options...) = custom_sampler((epoch, seed) -> 10 + epoch:-1:1; options...)

@testset "custom samplers" begin
    sampler = countdown(length=10)
    @test length(sampler) == 10
    @test take!(sampler, 4) == [10, 9, 8, 7] && take!(sampler, 100) == 6:-1:1 && isempty(take!(sampler, 1))
    @test take!(Feedlane.restart!(sampler, 2), 3) == [12, 11, 10]
    @test take!(batch_sampler(countdown(), 3), 3) == [10, 9, 8]
    @test thrown(() -> length(countdown())).name == "E_UNSUPPORTED" && sprint(show, countdown()) == "Sampler()"

    seeds = UInt64[]
    order = custom_sampler((epoch, seed) -> (push!(seeds, seed); (2i for i in 1:5)))
    @test [Feedlane.indices(batch) for batch in Loader(Squares(10); batchsize=2, sampler=order, seed=7)] == [[2, 4], [6, 8], [10]]
    @test seeds == [7]

    loader = spawned(Squares(9); sampler=custom_sampler((epoch, seed) -> [[3, 1], [9]]; max_rows=2, length=2))
    order = nothing
    GC.gc()   # the loader keeps its order
    @test length(loader) == 2 && [Feedlane.indices(batch) for batch in loader] == [[3, 1], [9]]
    close(loader)
end

@testset "custom samplers that fail" begin
    text(items; options...) = thrown(() -> take!(custom_sampler((epoch, seed) -> items; options...), 2)).text
    @test occursin("yielded the index 0: must be", text([0, 1]))
    @test occursin("yielded the index 1.5", text([1.5]))
    @test occursin("batch of 3 indices: must have 1 to 2", text([[1, 2, 3]]; max_rows=2))
    @test occursin("batch of 0 indices", text([Int[]]; max_rows=2))
    @test occursin("only a sampler with a descriptor", text([nothing]))
    @test thrown(() -> custom_sampler(identity; descriptor=0)) isa ArgumentError

    loader = Loader(Squares(9); batchsize=2, sampler=custom_sampler((epoch, seed) -> (i == 3 ? error("no third") : i for i in 1:4)))
    begin!(loader)
    @test Feedlane.indices(next!(loader)) == [1, 2]
    failed = thrown(() -> next!(loader))
    @test occursin("no third", failed.text) && occursin("custom.jl", failed.detail)
end

@testset "custom samplers are saved" begin
    order() = custom_sampler((epoch, seed) -> (7i % 20 + 1 for i in 1:19); saves=true)
    whole = [7i % 20 + 1 for i in 1:19]
    loader = Loader(Squares(20); batchsize=4, sampler=order(), seed=1)
    begin!(loader)
    batches = [next!(loader) for _ in 1:2]
    saved = Feedlane.state(loader, batches[1])
    resumed = spawned(Squares(20); batchsize=4, sampler=order(), state=saved, seed=1)
    @test reduce(vcat, [Feedlane.indices(batch) for batch in resumed]) == whole[5:end]
    close(resumed)
    foreach(release!, batches)
    unsaved = Loader(Squares(20); batchsize=4, sampler=countdown())
    begin!(unsaved)
    @test thrown(() -> Feedlane.state(unsaved, next!(unsaved))).name == "E_UNSUPPORTED"
end

"The indices of the next batch, of which another task adds the last when this one waits."
function woken(loader, add)
    @test thrown(() -> next!(loader; timeout=0)).name == "TIMEOUT"
    adding = @async add()
    batch = next!(loader; timeout=PATIENCE)
    wait(adding)
    indices = copy(Feedlane.indices(batch))
    release!(batch)
    return indices
end

@testset "live samplers" begin
    for make in (Loader, (data; options...) -> spawned(data; options...))
        live = Live()
        loader = make(Squares(9); batchsize=2, sampler=live)
        begin!(loader)
        put!(live, 4)
        @test woken(loader, () -> put!(live, 2)) == [4, 2]
        @test woken(loader, () -> (put!(live, 9); put!(live, 9))) == [9, 9]
        put!(live, 1)
        @test woken(loader, () -> Feedlane.end_epoch!(live)) == [1]
        put!(live, 5)
        @test next!(loader) === nothing
        Feedlane.end_epoch!(live)
        @test [copy(Feedlane.indices(batch)) for batch in loader] == [[5]]
        close(loader)
    end
    live = Live(max_rows=4)
    loader = Loader(Squares(9); sampler=live)
    begin!(loader)
    @test woken(loader, () -> put!(live, [3, 1])) == [3, 1]
    put!(live, [1, 2, 3, 4, 5])
    @test occursin("batch of 5 indices: must have 1 to 4", thrown(() -> next!(loader)).text)
    @test occursin("pass a Live", thrown(() -> Loader(Squares(9); sampler=Channel{Int}(1))).msg)
    live = Live()
    put!(live, 1)
    @test isempty(take!(Feedlane.sampler_of(live), 2))
end

"Yields the bytes of a pipe as indices, and `nothing` if there are none now."
struct Bytes
    fd::RawFD
end
function Base.iterate(bytes::Bytes, _=nothing)
    byte = Ref{UInt8}()
    count = ccall(:read, Cssize_t, (RawFD, Ref{UInt8}, Csize_t), bytes.fd, byte, 1)
    count == 0 && return nothing
    return count < 0 ? nothing : Int(byte[]), nothing
end

@testset "live samplers with a descriptor" begin
    ends = Vector{Cint}(undef, 2)
    @test ccall(:pipe2, Cint, (Ptr{Cint}, Cint), ends, 0o2004000) == 0
    send(byte) = ccall(:write, Cssize_t, (Cint, Ref{UInt8}, Csize_t), ends[2], UInt8(byte), 1)
    order = custom_sampler((epoch, seed) -> Bytes(RawFD(ends[1])); descriptor=RawFD(ends[1]))
    loader = Loader(Squares(9); batchsize=2, sampler=order)
    begin!(loader)
    send(8)
    @test woken(loader, () -> send(3)) == [8, 3]
    @test woken(loader, () -> (send(1); ccall(:close, Cint, (Cint,), ends[2]))) == [1]
    @test next!(loader) === nothing
    close(loader)
    ccall(:close, Cint, (Cint,), ends[1])
end

@testset "a feeder with a live sampler" begin
    live = Live()
    feeder = spawned(Squares(9); batchsize=2, sampler=live, share=:every)
    place = Feedlane.open_consumer(feeder)
    consumer = join_feeder(place.fd; fields=(x=(Float32, (4, 3)), y=(Int64, ())))
    begin!(feeder)
    serving = @async (Feedlane.serve(feeder); Feedlane.serve(feeder))
    begin!(consumer)
    adding = @async (put!(live, 6); put!(live, 2); Feedlane.end_epoch!(live))
    batch = next!(consumer)
    @test Feedlane.indices(batch) == [6, 2]
    release!(batch)
    @test next!(consumer) === nothing
    close(consumer)
    wait(serving)
    close(feeder)
end
