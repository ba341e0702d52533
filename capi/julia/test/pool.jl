# SPDX-License-Identifier: Apache-2.0
# Pools, their buffers, loaders that use them, streams, and DLPack. On every machine: with the backend "none".
const STREAM = C_NULL   # of "none", whose work is always complete

@testset "pool_buffers" begin
    pool = Pool(buffers=2, buffer_bytes=5000)
    a = Feedlane.acquire(pool, Float32, 10, 20)
    @test a isa BatchArray{Float32,2} && size(a) == (10, 20) && UInt(pointer(a)) % 4096 == 0
    a .= 1:10
    @test sum(a) == 20 * 55
    b = Feedlane.acquire(pool, Int8, 8192)   # rounded up to pages
    @test (Feedlane.stats(pool).buffers, Feedlane.stats(pool).in_use) == (2, 2)
    @test thrown(() -> Feedlane.acquire(pool, Int8, 1; timeout=0)).name == "TIMEOUT"
    waiting = @async Feedlane.acquire(pool, Int8, 3; timeout=PATIENCE)
    yield()
    release!(a)
    @test thrown(() -> a[1]).name == "E_STALE" && thrown(() -> release!(a)).name == "E_STALE"
    @test length(fetch(waiting)) == 3
    reason = thrown(() -> close(pool))
    @test reason.name == "E_STATE" && occursin("release its buffers", reason.text)
    release!(b; stream=STREAM)
    release!(fetch(waiting))
    reason = thrown(() -> Feedlane.acquire(pool, Float64, 2000))
    @test reason isa ArgumentError && occursin("16000 bytes does not fit into a buffer of 8192", reason.msg)
    @test Feedlane.stats(pool).in_use == 0
    (() -> (Feedlane.acquire(pool, Int8, 1); nothing))()   # forgotten
    @test soon(() -> (GC.gc(); Feedlane.stats(pool).in_use == 0), PATIENCE)
    close(pool)
    close(pool)   # does nothing
    @test thrown(() -> Feedlane.stats(pool)).name == "E_STATE"
    @test thrown(() -> Feedlane.acquire(Pool(), Int8, 1)).name == "E_STATE"
    @test thrown(() -> Pool(backend="other")).name == "E_UNSUPPORTED"
    @test occursin("must be a bits type", thrown(() -> Feedlane.acquire(pool, String, 1)).msg)
end

@testset "pool_memory" begin
    pool, array = Pool(budget_bytes=1 << 20), rand(Float32, 100, 100)
    device = zeros(Float32, 100, 100)
    result = Feedlane.register(pool, array) do
        @test Feedlane.stats(pool).registered_bytes >= sizeof(array)
        @test thrown(() -> Feedlane.register(() -> nothing, pool, array)).name == "E_STATE"
        Feedlane.copy_to_device(pool, pointer(device), array; stream=STREAM)
        7
    end
    @test result == 7 && device == array && Feedlane.stats(pool).registered_bytes == 0
    @test thrown(() -> Feedlane.register(() -> error("inside"), pool, array)).msg == "inside"
    @test Feedlane.stats(pool).registered_bytes == 0
    @test thrown(() -> Feedlane.register(() -> nothing, pool, zeros(1 << 20))).name == "E_LIMIT"
    close(pool)
end

@testset "pinned" begin
    for mode in ((workers=0,), (workers=2, setup=SETUP)), staged in (0, 3)
        pool = Pool(buffers=staged, buffer_bytes=staged == 0 ? 0 : 1 << 16)
        loader = Loader(Squares(40); batchsize=5, pinned=pool, staged=staged, mode...)
        @test Feedlane.stats(pool).registered_bytes > 0
        begin!(loader)
        batch = next!(loader)
        @test batch.y == (1:5) .^ 2
        device = zeros(Int, 5)
        Feedlane.copy_to_device(pool, pointer(device), batch.y; stream=STREAM)
        Feedlane.record_stream(batch, STREAM)
        release!(batch; stream=STREAM)
        @test device == (1:5) .^ 2 && thrown(() -> release!(batch)).name == "E_STALE"
        @test thrown(() -> Feedlane.record_stream(batch, STREAM)).name == "E_STALE"
        rest = []
        while (batch = next!(loader)) !== nothing
            append!(rest, batch.y)
            release!(batch)
        end
        @test rest == (6:40) .^ 2
        @test thrown(() -> close(pool)).name == "E_STATE"
        close(loader)
        close(pool)
    end
    plain = Loader(Squares(10); batchsize=5)
    batch = first(plain)
    @test thrown(() -> release!(batch; stream=STREAM)).name == "E_STATE" && batch.y == (1:5) .^ 2   # it is held
    @test thrown(() -> Feedlane.record_stream(batch, STREAM)).name == "E_STATE"
    @test occursin("release the batch", thrown(() -> release!(batch.y)).msg)
    close(plain)
    @test thrown(() -> Loader(Squares(10); staged=2)).argument == "config.staged"
end

"The members of a DLTensor: address, device, dimensions, dtype, shape, strides."
function dltensor(address)
    word(T, offset) = unsafe_load(Ptr{T}(address + offset))
    ndim = word(Int32, 16)
    shape, strides = (unsafe_wrap(Array, word(Ptr{Int64}, offset), ndim) for offset in (24, 32))
    return (data=word(Ptr{Cvoid}, 0), device=word(Int32, 8), code=word(UInt8, 20), bits=word(UInt8, 21), shape=copy(shape),
            strides=copy(strides))
end

@testset "dlpack" begin
    loader = Loader(Squares(20); batchsize=5)
    begin!(loader)
    batch = next!(loader)
    wanted = (data=Ptr{Cvoid}(pointer(batch.x)), device=1, code=2, bits=32, shape=[5, 3, 4], strides=[12, 4, 1])
    new, old = Feedlane.dlpack(batch, :x), Feedlane.dlpack(batch, 1; legacy=true)
    @test unsafe_load(Ptr{UInt32}(pointer(new))) == 1   # DLPack 1
    @test dltensor(pointer(new) + 32) == wanted && dltensor(pointer(old)) == wanted
    address = pointer(batch.y)
    given = Feedlane.give!(Feedlane.dlpack(batch, :y))
    release!(batch)
    held() = Feedlane.stats(loader).slots_held
    @test held() == 1 && unsafe_load(address, 5) == 25   # the tensors hold it
    finalize(new)
    finalize(new)   # does nothing
    finalize(old)
    @test held() == 1
    ccall(unsafe_load(Ptr{Ptr{Cvoid}}(given + 16)), Cvoid, (Ptr{Cvoid},), given)   # its deleter
    @test held() == 0
    @test thrown(() -> Feedlane.dlpack(batch, :x)).name == "E_STALE"
    other = next!(loader)
    @test occursin("must be 1 to 2 or one of x, y", thrown(() -> Feedlane.dlpack(other, :z)).msg)
    @test thrown(() -> Feedlane.dlpack(other, 3)) isa ArgumentError
    @test thrown(() -> Feedlane.dlpack(other, :x; pinned=true)).name == "E_STATE"
    tensor = Feedlane.dlpack(other, 1)
    Feedlane.give!(tensor)
    @test thrown(() -> pointer(tensor)).name == "E_STATE"
    close(loader)
end
