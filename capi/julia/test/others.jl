# SPDX-License-Identifier: Apache-2.0
# Loaders, arenas and rings as another process sees them; slots and distinct errors.

@testset "other_process" begin
    # Both rings live until the end, so that their descriptors keep their order.
    other = program("""
        loader = warm(spawned(Squares(60); batchsize=5, name="observed", trace=10))
        arena, rings = Arena(1 << 20; members=3), (Ring{Int}(8), Ring{Int16}(16; senders=2))
        put!(arena, "key", 1)
        sender = join_ring(Int, Feedlane.offer(rings[1]).fd)
        append!(sender, 1:5)
        take!(rings[1], 3)
        println("ready"); flush(stdout)
        sleep(PATIENCE)
        """)
    @test readline(other.output) == "ready"
    pid = getpid(other.process)
    monitor = Feedlane.monitor(pid)
    info = Feedlane.info(monitor)
    @test (info.name, info.pid, info.batches, info.start, info.workers) == ("observed", pid, 12, :spawn, 2)
    @test Feedlane.stats(monitor).batches == 1 && length(Feedlane.workers(monitor)) == 2
    @test length(Feedlane.slots(monitor)) == Feedlane.stats(monitor).slots
    @test occursin("observed", Feedlane.report(monitor)) && Feedlane.diagnose(monitor).bound in Feedlane.BOUNDS
    @test Feedlane.monitor(pid; nth=1) === nothing
    arena = Feedlane.arena_info(pid)
    @test arena.entries == 1 && [process.pid for process in arena.processes] == [pid]
    @test Feedlane.arena_info(pid; nth=1) === nothing
    rings = [Feedlane.ring_info(pid; nth=n) for n in 0:1]
    @test Set((ring.message_bytes, ring.capacity, ring.lanes) for ring in rings) == Set([(8, 8, 1), (2, 16, 2)])
    @test sum(ring.received for ring in rings) == 3 && all(ring -> ring.pid == pid, rings)
    @test Feedlane.ring_info(pid; nth=2) === nothing
    kill_process(pid, SIGKILL)
    wait(other.process)
    @test Feedlane.stats(monitor).batches == 1   # the last values
    for open in (Feedlane.monitor, Feedlane.arena_info, Feedlane.ring_info)
        @test thrown(() -> open(pid)).name == "E_PEER_DEAD"
    end
    close(monitor)
end

@testset "slots" begin
    loader = Loader(Squares(20); batchsize=5, held=2)
    begin!(loader)
    kept = [next!(loader), next!(loader)]
    slots = Feedlane.slots(loader)
    @test length(slots) == Feedlane.stats(loader).slots == 3
    @test sort([slot.batch for slot in slots if slot.task != 0 && slot.released_ns == 0]) == [0, 1]
    foreach(release!, kept)
    @test all(slot -> slot.task == 0 || slot.released_ns > 0, Feedlane.slots(loader))
    close(loader)
end

@testset "distinct_errors" begin
    loader = Loader(Replaced(20, (7, 19)); batchsize=5)
    @test isempty(Feedlane.errors(loader))
    begin!(loader)
    names = [reason.name for reason in (thrown(() -> release!(next!(loader))) for _ in 1:4) if reason !== nothing]
    @test names == ["E_SAMPLE", "E_SAMPLE"]
    records = Feedlane.errors(loader)
    of_loader = only(record for record in records if record.kind == :error)
    @test of_loader.count == 2 && of_loader.sample == 19 && of_loader.batch == 3 && occursin("is broken", of_loader.text)
    @test all(record -> record.kind in (:error, Feedlane.EVENTS...), records)
    close(loader)
end
