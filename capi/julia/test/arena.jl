# SPDX-License-Identifier: Apache-2.0
# Arenas: an owner in this process, members in processes of their own.

"An arena with a path, which is closed after `f`."
function with_arena(f, bytes=4 << 20; options...)
    path = joinpath(mktempdir(), "arena")
    arena = Arena(bytes; path=path, options...)
    try
        return f(arena, path)
    finally
        close(arena)
    end
end

"A member's process. `body` uses `arena`, and prints what the test wants to know."
member(path, body) = program("arena = join_arena($(repr(path)))\n$body\nclose(arena)")

"Whether the state of the arena satisfies `condition` within the time of a test."
until(condition, arena) = soon(() -> condition(Feedlane.stats(arena)), PATIENCE)

"The number of requests that wait in the arena of another process."
function waiting_in(pid)
    out, count = Feedlane.struct_of(L.feedlane_arena_stats), Ref{UInt64}()
    L.feedlane_monitor_arena(pid, 0, out, C_NULL, 0, count, C_NULL)
    return out[].waiting
end

@testset "arena_values" begin
    arena = Arena(4 << 20)
    for T in (Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64, ComplexF32, ComplexF64)
        value = T[T(k % 2) for k in 1:6]
        @test put!(arena, string(T), reshape(value, 2, 3)) === arena
        batch = get(arena, string(T))
        @test batch[1] isa BatchArray{T,2} && batch[1] == reshape(value, 2, 3) && length(batch) == 1
        release!(batch)
    end
    put!(arena, UInt8[0, 255], (image=rand(Float32, 3, 4), label=7, none=zeros(Int32, 0, 2)); pinned=true)
    batch = get(arena, UInt8[0, 255])
    @test propertynames(batch) == (:image, :label, :none) && size(batch.image) == (3, 4) && batch.label[] == 7
    @test size(batch.none) == (0, 2)
    @test thrown(() -> batch.image[1] = 0) isa ReadOnlyMemoryError
    delete!(arena, UInt8[0, 255])
    @test get(arena, UInt8[0, 255]) === nothing && get(arena, "none", 3) === 3
    @test batch.label[] == 7   # it is held
    put!(arena, "views", (view(reshape(collect(1:12), 3, 4), 2:3, 1:2:4), 1.5))
    @test get(arena, "views")[1] == [2 8; 3 9] && get(arena, "views")[2][] == 1.5
    close(arena)
    @test batch.label[] == 7
    release!(batch)
    @test thrown(() -> batch.label[]).name == "E_STALE"
end

@testset "arena_reserve" begin
    arena = Arena(4 << 20)
    kept = Ref{Any}()
    Feedlane.reserve(arena, "key", (x=(Float32, (2, 3)), y=(Int64, ())); metadata=b"about it") do entry
        entry.x .= [1 2 3; 4 5 6]
        entry.y[] = 7
        kept[] = entry.x
        @test get(arena, "key") === nothing
    end
    @test thrown(() -> kept[][1]).name == "E_STALE"
    batch = get(arena, "key")
    @test batch.x == [1 2 3; 4 5 6] && batch.y[] == 7 && Feedlane.metadata(batch) == b"about it"
    release!(batch)
    delete!(arena, "key")
    @test thrown(() -> Feedlane.reserve(entry -> error("no"), arena, "key", (x=(Int8, (9,)),))) isa ErrorException
    @test get(arena, "key") === nothing
    @test Feedlane.stats(arena).held == 0 && Feedlane.stats(arena).used_bytes == 0
    close(arena)
end

@testset "arena_members" begin
    with_arena() do arena, path
        put!(arena, "owner's", [5, 6])
        body = """put!(arena, "member's", 2 .* get(arena, "owner's")[1]); println(get(arena, "member's")[1])"""
        by_path = member(path, body)
        @test lines_of(by_path) == ["[10, 12]"]
        @test get(arena, "member's"; timeout=PATIENCE)[1] == [10, 12]
        delete!(arena, "member's")
        place = Feedlane.offer(arena)
        by_place = program_with(place.fd, "arena = join_arena(RawFD(3))\n$body")
        close(place)
        @test lines_of(by_place) == ["[10, 12]"]
        @test get(arena, "member's"; timeout=PATIENCE)[1] == [10, 12]
        @test until(stats -> stats.members == 1, arena)
        @test count(event -> event.kind == :consumer_left, Feedlane.events(arena)) == 2
    end
end

@testset "arena_single_flight" begin
    with_arena() do arena, path
        made = Ref(0)
        tasks = [@async(get!(arena, "key"; timeout=PATIENCE) do
            made[] += 1
            sleep(0.01)   # other tasks ask
            fill(3, 10)
        end) for _ in 1:8]
        @test all(task -> fetch(task)[1] == fill(3, 10), tasks) && made[] == 1
        @test thrown(() -> get!(() -> error("broken"), arena, "other")) isa ErrorException
        @test get!(() -> [4], arena, "other"; timeout=PATIENCE)[1] == [4]
        closed = Arena(1 << 20)
        @test thrown(() -> get!(() -> (close(closed); error("broken")), closed, "key")) isa ErrorException
        maker = member(path, """get!(arena, "made") do; println("making"); wait(Condition()); end""")
        @test readline(maker.output) == "making"
        late = @async get!(() -> (made[] += 1; [5]), arena, "made"; timeout=PATIENCE)
        @test until(stats -> stats.waiting == 1, arena) && made[] == 1
        kill_process(getpid(maker.process), SIGKILL)
        @test fetch(late)[1] == [5] && made[] == 2
    end
end

@testset "arena_streams" begin
    with_arena() do arena, path
        sender = member(path, "foreach(n -> put!(arena, fill(n, n)), 1:100)")
        for n in 1:100
            batch = take!(arena; timeout=PATIENCE)
            @test batch[1] == fill(n, n)
            release!(batch)
        end
        lines_of(sender)
        @test until(stats -> stats.members == 1, arena)
        receiver = member(path, """
            kept = keep(first(arena))
            rest = [batch[1][] for batch in arena]
            println(kept[1][], ' ', join(rest, ' '))""")
        @test until(stats -> stats.members == 2, arena)
        foreach(n -> put!(arena, n), 1:100)
        @test until(stats -> stats.entries <= 2, arena)   # the receiver holds the first and the newest one
        close(arena)
        @test lines_of(receiver) == [join(1:100, ' ')]
    end
end

const QUARTER = 30_000   # numbers: a little less than a quarter of 1 MiB

@testset "arena_full" begin
    with_arena(1 << 20) do arena, _
        foreach(n -> put!(arena, string(n), fill(n, QUARTER)), 1:6)
        @test get(arena, "1") === nothing && get(arena, "6")[1] == fill(6, QUARTER)
        @test Feedlane.stats(arena).evicted > 0
    end
    with_arena(1 << 20; when_full=:fail) do arena, _
        reason = thrown(() -> foreach(n -> put!(arena, string(n), fill(n, QUARTER)), 1:6))
        @test reason.name == "E_LIMIT" && QUARTER * 8 <= reason.needed && reason.found < reason.needed
        @test thrown(() -> put!(arena, "large", zeros(UInt8, 1 << 20))).needed > 1 << 20
    end
    with_arena(1 << 20; when_full=:wait) do arena, _
        foreach(n -> put!(arena, string(n), fill(n, QUARTER)), 1:4)
        @test thrown(() -> put!(arena, "late", fill(5, QUARTER); timeout=0)).name == "TIMEOUT"
        late = @async put!(arena, "late", fill(5, QUARTER); timeout=PATIENCE)
        @test until(stats -> stats.waiting == 1, arena)
        delete!(arena, "1")
        wait(late)
        @test get(arena, "late")[1] == fill(5, QUARTER)
    end
end

@testset "arena_waits" begin
    with_arena() do arena, path
        # More calls than libuv has threads. Other tasks run.
        waiting = [@async(get(arena, string(n); timeout=PATIENCE)[1][]) for n in 1:10]
        @test until(stats -> stats.waiting > 0, arena)
        foreach(n -> put!(arena, string(n), n), 1:10)
        @test fetch.(waiting) == 1:10
        @test thrown(() -> take!(arena; timeout=0.01)).name == "TIMEOUT"
        @test thrown(() -> get!(() -> 1, arena, "1"; timeout=0)) === nothing
        calls = [@async(take!(arena)), @async(get(arena, "none"; timeout=Inf)), @async(Feedlane.serve(arena))]
        @test until(stats -> stats.waiting > 0, arena)
        joined = join_arena(path)
        close(arena)
        @test all(call -> thrown(() -> fetch(call)).task.exception.name == "E_STATE", calls)
        @test thrown(() -> take!(joined)).name == "E_PEER_DEAD"
        close(joined)
        @test !ispath(path)
        @test thrown(() -> join_arena(path)).name == "E_PEER_DEAD"
        for use in (() -> put!(arena, 1), () -> get(arena, "1"), () -> get!(() -> 1, arena, "1"), () -> take!(arena),
                    () -> delete!(arena, "1"), () -> Feedlane.offer(arena), () -> Feedlane.serve(arena),
                    () -> Feedlane.stats(arena), () -> Feedlane.events(arena))
            reason = thrown(use)
            @test reason.name == "E_STATE" && occursin("closed", reason.text)
        end
        @test collect(arena) == []
        close(arena)
    end
    waiter = program("""
        Base.exit_on_sigint(false)   # as in the REPL
        arena = Arena(1 << 20)
        println(nameof(typeof(thrown(() -> get(arena, "none"; timeout=Inf)))))
        put!(arena, "key", 5)   # it is usable
        println(get(arena, "key")[1][])""")
    pid = getpid(waiter.process)
    @test soon(() -> waiting_in(pid) == 1, PATIENCE)
    kill_process(pid, SIGINT)
    @test lines_of(waiter) == ["InterruptException", "5"]
end

@testset "arena_misuse" begin
    @test thrown(() -> Arena(1)).argument == "config.bytes"
    @test thrown(() -> Arena(1 << 20; members=256)).argument == "config.members"
    @test occursin("must be one of evict, wait, fail", thrown(() -> Arena(1 << 20; when_full=:never)).msg)
    arenas = [Arena(1 << 20) for _ in 1:3]
    reason = thrown(() -> Arena(1 << 20))
    @test reason.name == "E_LIMIT" && occursin("serve=false", reason.text)
    others = [Arena(1 << 20; serve=false) for _ in 1:3]   # calls that wait have a thread
    @test all(arena -> thrown(() -> take!(arena; timeout=0.01)).name == "TIMEOUT", vcat(arenas, others))
    foreach(close, vcat(arenas, others))
    arena = Arena(1 << 20; leases=2)
    @test occursin("65", thrown(() -> put!(arena, "k"^65, 1)).text)
    @test occursin("key_bytes is 0", thrown(() -> get(arena, "")).text)
    @test occursin("the key is empty", thrown(() -> put!(arena, "", 1)).msg)
    @test occursin("the key is a Int64", thrown(() -> get(arena, 3)).msg)
    @test occursin("String", thrown(() -> put!(arena, "key", "text")).msg)
    @test thrown(() -> put!(arena, "key", zeros(ntuple(k -> 1, 8)))).name == "E_ARGUMENT"
    @test thrown(() -> put!(arena, nothing, 1; pinned=true)).argument == "put.pinned"
    @test Feedlane.stats(arena).held == 0
    put!(arena, "key", 1)
    kept = [get(arena, "key") for _ in 1:2]
    @test thrown(() -> get(arena, "key")).name == "SLOTS_HELD"
    foreach(release!, kept)
    foreach(_ -> get(arena, "key"), 1:10)   # unreachable batches are collected
    close(arena)
end

@testset "arena_forgotten" begin
    path = joinpath(mktempdir(), "arena")
    (() -> (put!(Arena(1 << 20; path=path), "key", 1); nothing))()
    @test soon(() -> (GC.gc(); !ispath(path)), PATIENCE)
end
