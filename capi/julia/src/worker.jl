# SPDX-License-Identifier: Apache-2.0
# A worker: attaches to its trainer and makes batches until the trainer no longer needs it.

"""
    Feedlane.worker_main(data)
    Feedlane.worker_main(open::Function)

For scripts that are their own workers. In a worker process it makes batches of `data`, or of `open(config)` with the
loader's `worker_config`, and exits when the trainer no longer needs the worker. In the trainer it returns at once.
Loaders of this script then start the script again as their workers, with the same arguments. Call it after the data set
is defined and before the first loader is created. `Shards` are passed as such: their `open` gets the configuration.
"""
function worker_main(data)
    fd = L.feedlane_worker_fd()
    if fd < 0
        isempty(PROGRAM_FILE) || (script[] = abspath(PROGRAM_FILE))
        return nothing
    end
    exit(run_worker(fd, data))
end

"""
    Feedlane.serve_worker(fd, data)

A worker of the trainer whose `Feedlane.open_worker` returned the descriptor, a `RawFD`, in this process: makes batches
of `data` (as in `worker_main`) until the trainer no longer needs this worker. Closes the descriptor in every case. The
process ends with the trainer, unless the loader has `lifeline=false`, and at SIGTERM. Throws a `FeedlaneError`:
`E_PEER_DEAD` if there is no trainer, `E_INIT` if the data set cannot be opened.
"""
function serve_worker(fd::RawFD, data)
    run_worker(reinterpret(Int32, fd), data) == 0 ||
        throw(FeedlaneError(L.FEEDLANE_E_INIT, "the data set cannot be opened; standard error has the reason"))
    return nothing
end

"Runs a worker that receives its data set serialized. The script `worker.jl` calls it."
function job_main(iterable, saves)
    fd = L.feedlane_worker_fd()
    fd < 0 && error("this script must be started by a trainer")
    end_by_sigterm()
    exit(iterable ? run_shards(fd, open_job, saves) : run_samples(fd, open_job))
end

"Makes SIGTERM end the process silently. Julia's own handler would print a backtrace of the current work."
function end_by_sigterm()
    signals = zeros(UInt8, 128)   # a sigset_t
    ccall(:sigemptyset, Cint, (Ptr{UInt8},), signals)
    ccall(:sigaddset, Cint, (Ptr{UInt8}, Cint), signals, 15)
    ccall(:signal, Ptr{Cvoid}, (Cint, Ptr{Cvoid}), 15, C_NULL)
    ccall(:pthread_sigmask, Cint, (Cint, Ptr{UInt8}, Ptr{Cvoid}), 1, signals, C_NULL)   # SIG_UNBLOCK
end

"Returns the exit code."
function run_worker(fd, data)
    end_by_sigterm()
    data isa Shards && return run_shards(fd, config -> data, data.saves)
    return run_samples(fd, config -> data isa Function ? Base.invokelatest(data, String(config)) : data)
end

"Iterates a shard with callbacks: the library applies the policies and skips what was delivered. Waits in C."
function run_shards(fd, open, saves)
    walk = Walk(open, saves)
    table, report = table_of(walk), Report()
    status = GC.@preserve walk table report L.feedlane_worker_run(fd, C_NULL, table, report.raw)
    status == L.FEEDLANE_E_INIT || check(status, report)
    status == L.FEEDLANE_E_INIT || return 0
    println(stderr, sprint(showerror, error_of(status, report)))   # the trainer's error has only one line
    return 1
end

"The library's worker, and the report to which its calls write errors."
struct Attached
    address::Ptr{L.feedlane_worker}
    report::Report
end

"Attaches to the trainer at `fd`, or as a thread to a loader of this process. `nothing`: no worker is missing."
function attach(fd, loader=Ptr{L.feedlane_loader}(C_NULL))
    out, report = Ref{Ptr{L.feedlane_worker}}(C_NULL), Report()
    status = GC.@preserve out report L.feedlane_worker_attach_gc_safe(fd, loader, L.FEEDLANE_FOREVER, address_of(out),
                                                                      address_of(report.raw))
    return check(status, report) == L.FEEDLANE_END ? nothing : Attached(out[], report)
end

function run_samples(fd, open)
    worker = attach(fd)
    try
        info = struct_of(L.feedlane_worker_info)
        check(L.feedlane_worker_get_info(worker.address, info))
        data = try_open(worker, info[], open)
        data === nothing && return 1
        names, specs = specs_of(info[].fields, Int(info[].field_count))
        maker = Maker(something(data), Val(names), specs)
        newest[] = maker.making
        Base.invokelatest(serve, worker, maker)
        return 0
    finally
        leave(worker)
    end
end

leave(worker::Attached) = L.feedlane_worker_destroy(Ref(worker.address))

"The data set in a `Some`. `nothing`: it could not be opened, and this was reported to the trainer."
function try_open(worker, info, open)
    try
        data = open(config_of(info))
        (data isa Shards) == (info.iterable != 0) || throw(ArgumentError(data isa Shards ?
            "the loader expects samples by index, but the worker has Shards" :
            "the loader expects an iterable data set, but the worker has a $(typeof(data)): pass Shards to worker_main"))
        check(L.feedlane_worker_ready(worker.address, L.FEEDLANE_OK, C_NULL, worker.report.raw), worker.report)
        return Some(data)
    catch reason
        line, story = describe(reason, catch_backtrace())
        println(stderr, story)   # the trainer's error has only one line
        L.feedlane_worker_ready(worker.address, L.FEEDLANE_E_INIT, line, worker.report.raw)
        return nothing
    end
end

"Processes tasks until there are no more. Other Julia tasks run while it waits."
function serve(worker::Attached, maker::Maker)
    task, descriptor, waiter = Ref{Ptr{L.feedlane_task}}(C_NULL), Ref{Int32}(-1), nothing
    progress = Progress()
    try
        while true
            status = L.feedlane_worker_next(worker.address, POLL_NS, task, worker.report.raw)
            if status == L.FEEDLANE_OK
                work(worker, maker, task[], progress)
            elseif status == L.FEEDLANE_END
                return nothing
            elseif status == L.FEEDLANE_TIMEOUT
                check(L.feedlane_worker_arm(worker.address, descriptor)) == L.FEEDLANE_OK || continue
                waiter === nothing && (waiter = Waiter(descriptor[]))
                sleep_on(waiter, Inf)
            else
                check(status, worker.report)   # INTERRUPTED: call again
            end
        end
    finally
        waiter === nothing || close(waiter)
    end
end

"How far a task is."
mutable struct Progress
    position::Int   # of the sample in the task, from 0
    row::Int        # where it belongs: less than `position` if samples were left out
    index::Int      # its data set index, if that differs from the task's; -1: it does not
end
Progress() = Progress(0, 0, -1)

"Processes one task: makes its batch and commits it, or fails the task with the exception."
function work(worker, maker::Maker, address::Ptr{L.feedlane_task}, progress::Progress)
    making, err = maker.making, worker.report.raw
    making.task, making.token = address, Token()
    progress.position, progress.row, progress.index = 0, 0, -1
    status = L.FEEDLANE_AGAIN
    while status == L.FEEDLANE_AGAIN
        status = try
            make!(worker, maker, address, progress)
            leave_row(making)
            L.feedlane_task_commit(address, progress.row, err)
        catch reason
            rescue(worker, maker, address, progress, reason, catch_backtrace())
        end
    end
    leave_row(making)
    status == L.FEEDLANE_E_STALE || check(status, worker.report)   # stale: the trainer has given up the task
    return nothing
end

"Writes the rows of a task, from `progress` on."
function make!(worker, maker::Maker{names,D,S}, address, progress) where {names,D,S<:Tuple}
    task, specs, making = unsafe_load(address), maker.specs, maker.making
    bases = ntuple(k -> unsafe_load(member(task.tensors + (k - 1) * sizeof(L.feedlane_tensor), Val(:data))), Val(fieldcount(S)))
    strides = map(bytes_of, specs)
    while progress.position < task.count
        position, row = progress.position, progress.row
        position == 0 || L.feedlane_worker_check(worker.address) == L.FEEDLANE_OK || throw(ABANDONED)
        making.seed = unsafe_load(task.seeds, position + 1)
        index = progress.index < 0 ? unsafe_load(task.indices, position + 1) : progress.index
        addresses = map((base, stride) -> base + row * stride, bases, strides)
        make_sample!(Row{names}(specs, addresses, making.token), maker, Int(index) + 1)
        progress.position, progress.row, progress.index = position + 1, row + 1, -1
    end
    return nothing
end

const ABANDONED = FeedlaneError(L.FEEDLANE_ABANDONED, "ABANDONED", "the trainer no longer needs this batch", "", -1, -1, -1, -1,
                                nothing, 0, 0, 0, "")

"""
Applies the loader's policies to the failure of a sample. AGAIN: `progress` has the sample to make next, and the wait is
over. Otherwise the status of `feedlane_task_fail`.
"""
function rescue(worker, maker::Maker, address, progress, reason, backtrace)
    line, story = describe(reason, backtrace)
    failure = struct_of(L.feedlane_error; code=L.FEEDLANE_E_SAMPLE, transient=reason isa Transient)
    index, wait_ns, status = Ref{Int64}(0), Ref{Int64}(0), L.FEEDLANE_E_SAMPLE
    if reason !== ABANDONED
        GC.@preserve failure write_text(Ptr{UInt8}(member(address_of(failure), Val(:text))), line, 384)
        status = GC.@preserve maker L.feedlane_task_sample_failed(address, progress.position, failure, substitute_callback(maker),
            pointer_from_objref(maker), index, wait_ns, worker.report.raw)
    end
    if status == L.FEEDLANE_AGAIN
        progress.index = index[]
        wait_ns[] > 0 && sleep(wait_ns[] / 1e9)
    elseif status == L.FEEDLANE_OK   # left out
        progress.position, progress.index, status = progress.position + 1, -1, L.FEEDLANE_AGAIN
    else
        leave_row(maker.making)
        status = L.feedlane_task_fail(address, progress.position, reason isa Transient, line, story, worker.report.raw)
    end
    return status
end
