# SPDX-License-Identifier: Apache-2.0
# Starts programs, finds processes, and waits for what must happen soon.
using Feedlane
using Test

include("datasets.jl")
const SETUP = joinpath(@__DIR__, "datasets.jl")
const SOURCE = joinpath(@__DIR__, "..", "..", "..")
const RECORD = get(ENV, "FEEDLANE_RECORD", joinpath(SOURCE, "capi", "abi", "interface.json"))
const C_EXAMPLES = get(ENV, "FEEDLANE_C_EXAMPLES", joinpath(SOURCE, "build", "examples", "c"))
const L = Feedlane.LibFeedlane

have_c_examples() = isfile(joinpath(C_EXAMPLES, "trainer"))

const PATIENCE = 120   # seconds for what happens at once on a machine that is not busy

"Whether `condition` becomes true within so many seconds."
function soon(condition, seconds=10.0)
    deadline = time() + seconds
    while !condition()
        time() > deadline && return false
        sleep(0.01)
    end
    return true
end

"Whether the process has ended; a zombie has."
function gone(pid)
    status = try
        read("/proc/$pid/stat", String)
    catch
        return true
    end
    return occursin(r"\) [ZX] ", status)
end
gone_soon(pids, seconds=1.0) = soon(() -> all(gone, pids), seconds)

const SIGINT, SIGKILL = 2, 9
kill_process(pid, signal) = ccall(:kill, Cint, (Cint, Cint), pid, signal)
pids(loader) = [worker.pid for worker in Feedlane.workers(loader)]

"A loader with workers that know this file's data sets."
spawned(data; options...) = Loader(data; workers=2, setup=SETUP, options...)

contents(batch) = (copy(batch.x), copy(batch.y))
contents_of_epoch(loader) = [contents(batch) for batch in loader]

"The FeedlaneError, or other exception, that `f` throws."
function thrown(f)
    try
        f()
    catch reason
        return reason
    end
    return nothing
end

"The first batch that shows that workers run; afterwards it is released."
function warm(loader)
    begin!(loader)
    release!(next!(loader))
    return loader
end

"A trainer in a process of its own: `body` is a script. Its standard output is read by lines."
struct Program
    process::Base.Process
    output::Pipe
end

function program(body; flags=``)
    path, file = mktemp()
    write(file, "include($(repr(joinpath(@__DIR__, "support.jl"))))\n", body)
    close(file)
    output = Pipe()
    command = `$(Feedlane.julia_command()) $flags $path`
    process = run(pipeline(ignorestatus(command); stdout=output, stderr=devnull); wait=false)
    close(output.in)
    return Program(process, output)
end

"A program whose descriptor 3 is `fd`. Julia passes on standard streams only, so the shell moves it there."
function program_with(fd, body)
    path, file = mktemp()
    write(file, "include($(repr(joinpath(@__DIR__, "support.jl"))))\n", body)
    close(file)
    output = Pipe()
    command = `sh -c 'exec "$@" 3<&0 </dev/null' sh $(Feedlane.julia_command()) $path`
    process = run(pipeline(ignorestatus(command); stdin=fd, stdout=output, stderr=stderr); wait=false)
    close(output.in)
    return Program(process, output)
end

"The lines that a program prints, which ends without an error."
function lines_of(program)
    lines = readlines(program.output)
    wait(program.process)
    @test program.process.exitcode == 0
    return lines
end

"The numbers of a line that the program prints."
numbers(program) = parse.(Int, split(readline(program.output)))
