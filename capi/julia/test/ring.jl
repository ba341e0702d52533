# SPDX-License-Identifier: Apache-2.0
# Rings: messages by copies and in place, from this process and from others.

"A message with padding."
struct Point
    number::Int32
    x::Float64
end

"A ring with one sender of this process."
function ring_pair(::Type{T}, capacity; options...) where {T}
    ring = Ring{T}(capacity; options...)
    return ring, join_ring(T, Feedlane.offer(ring).fd)
end

@testset "ring_copies" begin
    ring, sender = ring_pair(Point, 8)
    put!(sender, Point(1, 0.5))
    append!(sender, [Point(n, n / 2) for n in 2:5])
    @test take!(ring) === Point(1, 0.5)
    @test take!(ring, 2) == [Point(2, 1.0), Point(3, 1.5)] && take!(ring, 100) == [Point(4, 2.0), Point(5, 2.5)]
    @test thrown(() -> take!(ring; timeout=0)).name == "TIMEOUT" && thrown(() -> take!(ring; timeout=0.01)).name == "TIMEOUT"
    late = @async take!(ring)
    yield()
    put!(sender, Point(6, 3.0))
    @test fetch(late) === Point(6, 3.0)
    sending = @async append!(sender, [Point(n, 0) for n in 1:100])   # far more than there is room for
    @test [point.number for point in (take!(ring) for _ in 1:100)] == 1:100
    wait(sending)
    close(sender)
    @test thrown(() -> take!(ring)).name == "END"
    close(ring)
end

@testset "ring_in_place" begin
    ring, sender = ring_pair(Int32, 8)
    @test Feedlane.reserve(messages -> messages .= 1:3, sender, 3) == 3
    kept = Ref{Any}()
    @test thrown(() -> Feedlane.reserve(messages -> (messages[1] = 9; error("no")), sender, 2)).msg == "no"   # dropped
    @test Feedlane.receive(ring, 2) do messages
        kept[] = messages
        @test messages isa AbstractVector{Int32} && messages == [1, 2] && thrown(() -> messages[3]) isa BoundsError
        @test thrown(() -> take!(ring)).name == thrown(() -> close(ring)).name == "E_BUSY"
        sum(messages)
    end == 3
    @test thrown(() -> kept[][1]).name == "E_STALE"
    # Released all the same.
    @test thrown(() -> Feedlane.receive(messages -> error("seen $(messages[1])"), ring, 8)).msg == "seen 3"
    @test thrown(() -> take!(ring; timeout=0)).name == "TIMEOUT"
    close(ring)
    close(ring)   # does nothing
    reason = thrown(() -> append!(sender, 1:20))
    @test reason.name == "E_PEER_DEAD" && reason.found == 8 && occursin("8 of 20 messages", reason.text)
    close(sender)
    for use in (() -> take!(ring), () -> Feedlane.offer(ring), () -> put!(sender, 1), () -> Feedlane.reserve(identity, sender, 1))
        @test thrown(use).name == "E_STATE"
    end
end

@testset "ring_full" begin
    ring, sender = ring_pair(Int, 4)
    reason = thrown(() -> append!(sender, 1:6; timeout=0.01))
    @test reason.name == "TIMEOUT" && (reason.found, reason.needed) == (4, 6)
    @test thrown(() -> Feedlane.reserve(identity, sender, 1; timeout=0)).name == "TIMEOUT"
    waiting = @async thrown(() -> put!(sender, 5))
    yield()
    @test thrown(() -> put!(sender, 5)).name == "E_BUSY"
    close(sender)
    @test fetch(waiting).name == "E_STATE"
    @test collect(ring) == 1:4   # what was sent before
    idle = Ring{Int}()
    waiting = @async thrown(() -> take!(idle))
    yield()
    @test thrown(() -> take!(idle)).name == "E_BUSY"
    close(idle)
    @test fetch(waiting).name == "E_STATE"
end

@testset "ring_processes" begin
    path = joinpath(mktempdir(), "ring")
    ring = Ring{Int}(16; senders=2, path=path)
    by_path = program("sender = join_ring(Int, $(repr(path))); append!(sender, 1:2:999); close(sender)")
    place = Feedlane.offer(ring)
    # It ends without close.
    by_place = program_with(place.fd, "sender = join_ring(Int, RawFD(3)); foreach(n -> put!(sender, n), 2:2:1000)")
    close(place)
    found = [take!(ring) for _ in 1:1000]
    @test filter(isodd, found) == 1:2:999 && filter(iseven, found) == 2:2:1000   # each one's order
    foreach(lines_of, (by_path, by_place))
    @test collect(ring) == []
    close(ring)
    @test !ispath(path) && thrown(() -> join_ring(Int, path)).name == "E_PEER_DEAD"
end

@testset "ring_misuse" begin
    @test thrown(() -> Ring{Int}(3)).argument == "config.capacity"
    @test thrown(() -> Ring{Int}(4; senders=5000)).argument == "config.lanes"
    @test occursin("must be a bits type", thrown(() -> Ring{String}(4)).msg)
    ring = Ring{Int32}(4; senders=2)
    first_place, second_place = Feedlane.offer(ring), Feedlane.offer(ring)
    @test thrown(() -> Feedlane.offer(ring)).name == "E_LIMIT"
    reason = thrown(() -> join_ring(Int64, first_place.fd))
    @test reason.name == "E_ARGUMENT" && occursin("messages of 4 bytes, but a Int64 has 8", reason.text)
    @test thrown(() -> take!(ring, 0)) isa ArgumentError
    close(second_place)
    close(ring)
    sender = (() -> join_ring(Int, Feedlane.offer(Ring{Int}(4)).fd))()
    @test soon(() -> (GC.gc(); reason = thrown(() -> append!(sender, 1:9; timeout=0.01)); reason.name == "E_PEER_DEAD"), PATIENCE)
end
