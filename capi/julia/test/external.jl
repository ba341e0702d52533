# SPDX-License-Identifier: Apache-2.0
# Workers that the program starts.

"A process that serves the place as descriptor 3, and how it ends."
function start_worker(place, data)
    worker = program_with(place.fd, "Feedlane.serve_worker(RawFD(3), $data)")
    close(place)
    return worker
end

function is_ready(loader)
    Feedlane.poll(loader)   # admits workers
    return all(worker -> worker.state == :ready, Feedlane.workers(loader))
end
all_ready(loader) = soon(() -> is_ready(loader), PATIENCE)

@testset "external" begin
    expected = contents_of_epoch(Loader(Squares(60); batchsize=5, shuffle=true, seed=5))
    loader = Loader(Squares(60); batchsize=5, shuffle=true, seed=5, workers=2, start=:external)
    begin!(loader)
    places = [Feedlane.open_worker(loader; id=1), Feedlane.open_worker(loader)]
    @test [place.id for place in places] == [1, 0] && Feedlane.open_worker(loader) === nothing
    workers = map(place -> start_worker(place, "Squares(60)"), places)
    @test all_ready(loader)
    found = []
    Feedlane.events(loader)   # those of the start
    kill_process(getpid(workers[1].process), SIGKILL)
    wanted() = any(event -> event.kind == :worker_wanted && event.worker == 1, Feedlane.events(loader))
    @test soon(() -> (Feedlane.poll(loader); wanted()), PATIENCE)
    place = Feedlane.open_worker(loader)
    @test place.id == 1
    replacement = start_worker(place, "Squares(60)")
    @test all_ready(loader)
    while length(found) < 12
        batch = next!(loader)
        push!(found, contents(batch))
        release!(batch)
    end
    @test found == expected && next!(loader) === nothing
    close(loader)
    foreach(lines_of, (workers[2], replacement))   # they end by themselves
end

@testset "external_shards" begin
    loader = Loader(counting(broken=0); batchsize=10, workers=1, start=:external)
    begin!(loader)
    worker = start_worker(Feedlane.open_worker(loader), "counting(broken=0)")
    @test [batch.number[1] for batch in Iterators.takewhile(!isnothing, (next!(loader) for _ in 1:11))] == 1:10:91
    close(loader)
    lines_of(worker)
end

@testset "external_misuse" begin
    @test thrown(() -> Feedlane.open_worker(Loader(Squares(4)))).name == "E_STATE"
    loader = Loader(Squares(4); workers=1, start=:external)
    begin!(loader)
    place = Feedlane.open_worker(loader)
    fd = place.fd
    close(loader)
    reason = thrown(() -> Feedlane.serve_worker(fd, Squares(4)))   # closes the descriptor
    @test reason isa FeedlaneError && reason.name in ("E_PEER_DEAD", "E_ARGUMENT")
end
