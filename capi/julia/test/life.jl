# SPDX-License-Identifier: Apache-2.0
# Kills, Ctrl-C, ends of all kinds, several tasks, and finalizers.

@testset "worker_killed" begin
    expected = contents_of_epoch(Loader(Slow(60, 1, 0.002); batchsize=5, shuffle=true, seed=5))
    loader = spawned(Slow(60, 1, 0.002); batchsize=5, shuffle=true, seed=5)
    found = []
    for batch in loader
        push!(found, contents(batch))
        length(found) == 3 && kill_process(first(pids(loader)), SIGKILL)
    end
    @test found == expected
    @test Feedlane.stats(loader).restarts >= 1
    @test any(event -> event.kind == :worker_died, Feedlane.events(loader))
    close(loader)
end

"A trainer that shows its workers: one worker is idle, or all are busy, while it sleeps."
living(seconds) = """
    loader = warm(spawned(Slow(100, 2, $seconds)))
    sleep(0.5)
    println(join(pids(loader), ' '))
    flush(stdout)
    """

@testset "trainer_killed" begin
    for seconds in (0.0, 60.0)   # idle, busy
        trainer = program(living(seconds) * "sleep(60)")
        workers = numbers(trainer)
        @test length(workers) == 2 && !any(gone, workers)
        kill_process(getpid(trainer.process), SIGKILL)
        @test gone_soon(workers)
    end
end

@testset "interrupt" begin
    trainer = program("""
        Base.exit_on_sigint(false)   # as in the REPL
        loader = spawned(Slow(100, 2, 60.0))
        try
            for batch in loader
                println(join(pids(loader), ' '))
                flush(stdout)
            end
        catch reason
            println(nameof(typeof(reason)))
        end
        println(Feedlane.stats(loader).batches)   # it is usable
        """)
    workers = numbers(trainer)
    sleep(0.5)
    kill_process(getpid(trainer.process), SIGINT)
    @test readline(trainer.output) == "InterruptException"
    @test readline(trainer.output) == "1"
    @test gone_soon(workers, 5)
    @test soon(() -> process_exited(trainer.process)) && trainer.process.exitcode == 0
end

@testset "busy" begin
    loader = warm(spawned(Slow(100, 2, 60.0)))
    first_task = @async thrown(() -> next!(loader; timeout=1))
    sleep(0.1)
    reason = thrown(() -> next!(loader))
    @test reason isa FeedlaneError && reason.name == "E_BUSY"
    @test fetch(first_task).name == "TIMEOUT"
    finalize(loader.handle)
    # A finalizer releases, in whatever thread it runs.
    loader = Loader(Squares(20); batchsize=5, held=3)
    begin!(loader)
    batch = next!(loader)
    @test Feedlane.stats(loader).slots_held == 1
    token = Feedlane.token(batch)
    Threads.@spawn finalize(token)
    @test soon(() -> Feedlane.stats(loader).slots_held == 0)
    @test thrown(() -> batch.x[1]).name == "E_STALE"
    close(loader)
end

@testset "close" begin
    loader = warm(spawned(Slow(100, 2, 60.0); stop_timeout=0.1))
    waiting = @async thrown(() -> next!(loader))
    counting = @async thrown(() -> while true; Feedlane.stats(loader); sleep(0.001); end)
    sleep(0.2)
    close(loader)
    @test soon(() -> istaskdone(waiting) && istaskdone(counting))
    @test fetch(waiting).name == "E_STATE" && fetch(counting).name == "E_STATE"
end

@testset "finalizer" begin
    loader = warm(spawned(Slow(100, 2, 60.0)))
    workers, monitor = pids(loader), Feedlane.monitor(loader)
    @test !any(gone, workers)
    @test (@elapsed finalize(loader.handle)) < 0.5
    @test gone_soon(workers, 2)
    @test Feedlane.stats(monitor).batches == 1   # a monitor keeps the memory, but no workers
end

@testset "exits" begin
    for (ending, code) in ("" => 0, "error(\"uncaught\")" => 1, "exit(3)" => 3, "ccall(:_exit, Cvoid, (Cint,), 4)" => 4)
        trainer = program(living(60.0) * ending)
        workers = numbers(trainer)
        @test length(workers) == 2
        @test soon(() -> process_exited(trainer.process)) && trainer.process.exitcode == code
        @test gone_soon(workers)
    end
end

@testset "waits" begin
    loader = warm(spawned(Slow(4, 2, 1.0)))
    pauses, ticking = Float64[], Ref(true)
    ticker = @async while ticking[]
        push!(pauses, @elapsed sleep(0.005))
    end
    release!(next!(loader))   # takes a second
    ticking[] = false
    @test length(pauses) > 50
    @test Feedlane.poll(loader) in (true, false)
    close(loader)
    # With two threads: a collection does not wait for a thread that waits for a batch.
    trainer = program("""
        loader = warm(spawned(Slow(100, 2, 60.0)))
        @async next!(loader)
        sleep(0.1)
        other = Threads.@spawn (@elapsed GC.gc())
        println(round(Int, fetch(other)))
        flush(stdout)
        """; flags=`-t 2`)
    @test only(numbers(trainer)) < 20   # a sample takes a minute
    @test soon(() -> process_exited(trainer.process))
end
