# SPDX-License-Identifier: Apache-2.0
# A feeder, and consumers in processes of their own.
const SHARED_EPOCHS, STATE_AFTER = 2, 2
const FIELDS = (x=(Float32, (4, 3)), y=(Int64, ()))

feeder(share; options...) = spawned(Squares(45); batchsize=5, shuffle=true, seed=5, share=share, consumers=2, options...)

"What a consumer runs. `place` joins. It prints the numbers of each epoch's batches, then the state, then its hash of all values."
consumer_program(place) = """
    pool = Pool()
    consumer = join_feeder($place; fields=$FIELDS, pool)
    @assert Feedlane.stats(pool).registered_bytes > 0
    state, values = UInt8[], []
    for epoch in consumer.next_epoch:$SHARED_EPOCHS-1
        seen = Int[]
        for batch in consumer
            @assert Feedlane.epoch(batch) == epoch && Feedlane.missed(batch) == 0
            push!(seen, Feedlane.number(batch))
            push!(values, contents(batch))
            @assert thrown(() -> batch.x[1] = 0) isa ReadOnlyMemoryError
            epoch == 0 && length(seen) == $STATE_AFTER && append!(state, Feedlane.state(consumer, batch))
        end
        println(join(seen, ' '))
    end
    @assert consumer.next_epoch == Feedlane.info(consumer).next_epoch == $SHARED_EPOCHS
    @assert Feedlane.stats(consumer).epochs == $SHARED_EPOCHS && length(consumer) > 0
    @assert thrown(() -> Feedlane.report(consumer)).name == "E_STATE"   # the feeder has the rest
    println(bytes2hex(state))
    println(hash(values))
    close(consumer)
    """

"A consumer's process, with the place as descriptor 3."
function start_consumer(place)
    consumer = program_with(place.fd, consumer_program("RawFD(3)"))
    close(place)
    return consumer
end

function serve_all(loader)
    for epoch in 0:SHARED_EPOCHS-1
        begin!(loader, epoch)
        @test Feedlane.serve(loader)
    end
    @test Feedlane.serve(loader; timeout=300)   # all have left
end

"What a consumer prints that gets these batches of each epoch."
function wanted(numbers)
    loader = spawned(Squares(45); batchsize=5, shuffle=true, seed=5)
    values = [contents for _ in 1:SHARED_EPOCHS for contents in contents_of_epoch(loader)[numbers .+ 1]]
    close(loader)
    line = join(numbers, ' ')
    return [line, line, string(hash(values))]
end

"Two consumers by descriptors. `numbers` are those of each one's batches, `position` that of their state."
function check_shared(loader, numbers, position)
    places = [Feedlane.open_consumer(loader) for _ in 1:2]
    @test [place.id for place in places] == [0, 1]
    @test thrown(() -> Feedlane.open_consumer(loader)).name == "E_LIMIT"
    @test [consumer.state for consumer in Feedlane.consumers(loader)] == [:offered, :offered]
    consumers = map(start_consumer, places)
    serve_all(loader)
    said = map(lines_of, consumers)
    for (lines, own) in zip(said, numbers)
        @test length(lines) == 4 && lines[[1, 2, 4]] == wanted(own)
    end
    @test said[1][3] == said[2][3]   # one state
    state = hex2bytes(said[1][3])
    @test Feedlane.state_info(state).batch == position
    resumed = spawned(Squares(45); batchsize=5, shuffle=true, seed=5, state=state)
    @test [Feedlane.number(batch) for batch in resumed] == position:8
    close(resumed)
    @test count(event -> event.kind == :consumer_left, Feedlane.events(loader)) == 2
    close(loader)
end

@testset "share_every" begin
    check_shared(feeder(:every), (0:8, 0:8), STATE_AFTER)
end

@testset "share_deal" begin
    check_shared(feeder(:deal), (0:2:7, 1:2:7), 2 * STATE_AFTER)
    check_shared(feeder(:deal; share_tail=true), (0:2:8, 1:2:8), 2 * STATE_AFTER)
end

@testset "join_path" begin
    path = joinpath(mktempdir(), "feeder")
    loader = feeder(:every; share_path=path)
    consumers = [program(consumer_program(repr(path))) for _ in 1:2]
    ticks = Ref(0)
    ticker = Timer(_ -> ticks[] += 1, 0; interval=0.01)
    @test Feedlane.serve(loader; timeout=300)   # both have joined
    close(ticker)
    @test ticks[] > 1   # other tasks run
    found = Feedlane.consumers(loader)
    @test all(consumer -> consumer.state == :attached && consumer.lag == :block, found)
    @test sort([consumer.pid for consumer in found]) == sort([getpid(consumer.process) for consumer in consumers])
    serve_all(loader)
    said = map(lines_of, consumers)
    @test said[1] == said[2] && said[1][[1, 2, 4]] == wanted(0:8)
    close(loader)
    @test thrown(() -> join_feeder(path; fields=FIELDS)).name == "E_PEER_DEAD"
end

@testset "places" begin
    loader = feeder(:deal)
    @test thrown(() -> Feedlane.open_consumer(loader; lag=:observe)).name == "E_ARGUMENT"
    @test thrown(() -> Feedlane.open_consumer(loader; lag=:wait)) isa ArgumentError
    place = Feedlane.open_consumer(loader; id=1, lag=:evict, evict_after=1)
    @test place.id == 1
    @test any(found -> found.id == 1 && found.state == :offered && found.lag == :evict && found.pid == 0, Feedlane.consumers(loader))
    @test Feedlane.serve(loader; timeout=0.01) == false
    close(place)
    close(place)
    close(loader)
    alone = Loader(Squares(20))
    @test thrown(() -> Feedlane.open_consumer(alone)).name == "E_STATE"
    @test thrown(() -> Loader(Squares(20); share=:all)) isa ArgumentError
    close(alone)
end
