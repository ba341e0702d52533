# SPDX-License-Identifier: Apache-2.0
# A worker process: attaches to its trainer and makes batches until the trainer no longer needs it.

"The library's worker, and the report to which its calls write errors."
struct Attached
    address::Ptr{L.feedlane_worker}
    report::Report
end

"""
    Feedlane.worker_main(data)
    Feedlane.worker_main(open::Function)

For scripts that are their own workers. In a worker process it makes batches of `data`, or of `open(config)` with the
loader's `worker_config`, and exits when the trainer no longer needs the worker. In the trainer it returns at once.
Loaders of this script then start the script again as their workers, with the same arguments. Call it after the data set
is defined and before the first loader is created.
"""
function worker_main(data)
    fd = L.feedlane_worker_fd()
    if fd < 0
        isempty(PROGRAM_FILE) || (script[] = abspath(PROGRAM_FILE))
        return nothing
    end
    exit(run_worker(fd, config -> data isa Function ? Base.invokelatest(data, String(config)) : data))
end

"Runs a worker that receives its data set serialized. The script `worker.jl` calls it."
function job_main()
    fd = L.feedlane_worker_fd()
    fd < 0 && error("this script must be started by a trainer")
    exit(run_worker(fd, open_job))
end

"Makes SIGTERM end the process silently. Julia's own handler would print a backtrace of the current work."
function end_by_sigterm()
    signals = zeros(UInt8, 128)   # a sigset_t
    ccall(:sigemptyset, Cint, (Ptr{UInt8},), signals)
    ccall(:sigaddset, Cint, (Ptr{UInt8}, Cint), signals, 15)
    ccall(:signal, Ptr{Cvoid}, (Cint, Ptr{Cvoid}), 15, C_NULL)
    ccall(:pthread_sigmask, Cint, (Cint, Ptr{UInt8}, Ptr{Cvoid}), 1, signals, C_NULL)   # SIG_UNBLOCK
end

function run_worker(fd, open)
    end_by_sigterm()
    out, report = Ref{Ptr{L.feedlane_worker}}(C_NULL), Report()
    GC.@preserve out report begin
        err = address_of(report.raw)
        no_loader = Ptr{L.feedlane_loader}(C_NULL)
        check(L.feedlane_worker_attach_gc_safe(fd, no_loader, L.FEEDLANE_FOREVER, address_of(out), err), report)
    end
    worker = Attached(out[], report)
    try
        info = struct_of(L.feedlane_worker_info)
        check(L.feedlane_worker_get_info(worker.address, info))
        data = try_open(worker, info[], open)
        data === nothing && return 1
        names, specs = specs_of(info[].fields, Int(info[].field_count))
        Base.invokelatest(serve, worker, something(data), Val(names), specs)
        return 0
    finally
        L.feedlane_worker_destroy(out)
    end
end

"The data set in a `Some`. `nothing`: it could not be opened, and this was reported to the trainer."
function try_open(worker, info, open)
    try
        config = info.config == C_NULL ? UInt8[] : copy(unsafe_wrap(Array, Ptr{UInt8}(info.config), Int(info.config_bytes)))
        data = open(config)
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
function serve(worker::Attached, data, ::Val{names}, specs::Tuple) where {names}
    task, descriptor, waiter = Ref{Ptr{L.feedlane_task}}(C_NULL), Ref{Int32}(-1), nothing
    while true
        status = L.feedlane_worker_next(worker.address, POLL_NS, task, worker.report.raw)
        if status == L.FEEDLANE_OK
            work(worker, task[], data, Val(names), specs)
        elseif status == L.FEEDLANE_END
            break
        elseif status == L.FEEDLANE_TIMEOUT
            check(L.feedlane_worker_arm(worker.address, descriptor)) == L.FEEDLANE_OK || continue
            waiter === nothing && (waiter = Waiter(descriptor[]))
            sleep_on(waiter, Inf)
        else
            check(status, worker.report)   # INTERRUPTED: call again
        end
    end
    waiter === nothing || close(waiter)
    return nothing
end

"Processes one task: makes its batch and commits it, or fails the task with the exception."
function work(worker, address::Ptr{L.feedlane_task}, data, names::Val, specs)
    task, token, position = unsafe_load(address), Token(), Ref(0)
    err = worker.report.raw
    try
        make!(data, names, specs, task, token, position)
        token.live = false
        status = L.feedlane_task_commit(address, task.count, err)
        status == L.FEEDLANE_E_STALE || check(status, worker.report)   # stale: the trainer has given up the task
    catch reason
        token.live = false
        line, story = describe(reason, catch_backtrace())
        status = L.feedlane_task_fail(address, position[], 0, line, story, err)
        status == L.FEEDLANE_E_STALE || check(status, worker.report)
    end
    return nothing
end

"Writes all rows of a task. `position` is the current row, from 0."
function make!(data, ::Val{names}, specs::S, task::L.feedlane_task, token, position) where {names,S<:Tuple}
    bases = ntuple(k -> unsafe_load(member(task.tensors + (k - 1) * sizeof(L.feedlane_tensor), Val(:data))), Val(fieldcount(S)))
    strides = map(bytes_of, specs)
    for row in 0:Int(task.count) - 1
        position[] = row
        seed[] = unsafe_load(task.seeds, row + 1)
        addresses = map((base, stride) -> base + row * stride, bases, strides)
        getobs!(Row{names}(specs, addresses, token), data, Int(unsafe_load(task.indices, row + 1)) + 1)
    end
    return nothing
end
