# SPDX-License-Identifier: Apache-2.0
# What a trainer sees of its own run.

in_order(s) = 0 < s.dispatched_ns <= s.begun_ns <= s.committed_ns <= s.swept_ns <= s.yielded_ns

@testset "observe" begin
    for make in (Loader, spawned)
        loader = make(Squares(60); batchsize=5, name="digits", trace=100)
        seen = Dict(Feedlane.number(batch) => Feedlane.stamps(batch) for batch in loader)
        @test length(seen) == 12 && all(in_order, values(seen))
        trace = Feedlane.trace(loader)
        @test [record.sequence for record in trace] == 1:12
        @test all(record -> Feedlane.stamps_of(record) == seen[record.batch], trace)
        @test length(Feedlane.trace(loader; from=12)) == 1 && isempty(Feedlane.trace(loader; from=13))
        timings = Feedlane.timings(loader)
        @test timings.work.count == sum(timings.work.buckets) == 12 && length(timings.work.buckets) == 47
        @test timings.work.sum_ns == sum(s.committed_ns - s.begun_ns for s in values(seen))
        @test timings.start.count == 1 && Feedlane.timings(loader; worker=2) === nothing
        diagnosis = Feedlane.diagnose(loader)
        @test (diagnosis.batches, diagnosis.samples) == (12, 60)
        @test diagnosis.bound in Feedlane.BOUNDS && !isempty(diagnosis.text)
        info = Feedlane.info(loader)
        @test (info.name, info.trace, info.batch_size, info.batch, info.batches, info.in_epoch) == ("digits", 100, 5, 12, 12, 0)
        @test info.pid == getpid() && (info.workers == 0 || info.start == :spawn)
        report = Feedlane.report(loader)
        @test occursin("12 batches", report) && occursin("digits", report) && occursin("\nbound: ", report)
        monitor = Feedlane.monitor(loader)
        @test Feedlane.trace(monitor) == trace && Feedlane.timings(monitor).work == timings.work
        @test length(Feedlane.workers(monitor)) == length(Feedlane.workers(loader)) == info.workers
        close(loader)
        @test thrown(() -> Feedlane.report(loader)).name == "E_STATE"
        @test thrown(() -> Feedlane.monitor(loader)).name == "E_STATE"
        @test Feedlane.stats(monitor).batches == Feedlane.diagnose(monitor).batches == 12
        @test Feedlane.info(monitor).name == "digits" && occursin("12 batches", Feedlane.report(monitor))
        close(monitor)
        close(monitor)   # does nothing
        for getter in (Feedlane.stats, Feedlane.workers, Feedlane.info, Feedlane.timings, Feedlane.trace,
                       Feedlane.diagnose, Feedlane.report)
            reason = thrown(() -> getter(monitor))
            @test reason.name == "E_STATE" && occursin("monitor is closed", reason.text)
        end
    end
    loader = Loader(Squares(60); batchsize=5)
    @test thrown(() -> Feedlane.trace(loader)).name == "E_STATE"
    @test thrown(() -> Loader(Squares(60); name="n"^64)).argument == "config.name"
end
