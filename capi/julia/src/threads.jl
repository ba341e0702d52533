# SPDX-License-Identifier: Apache-2.0
# Workers in this process: tasks in Julia's threads.

"""
The tasks that are the workers of a loader. They share this object, and must not refer to the loader's handle, which they
would keep from being finalized.
"""
mutable struct Crew
    lock::ReentrantLock
    wanted::Int
    running::Int
    starts::Int        # calls of `start_missing`
    patience::Float64  # seconds that `close` gives them
    make::Any          # returns a worker's `Maker`
end

function Crew(wanted, stop_timeout, data, names, specs)
    patience = (stop_timeout == 0 ? 5 : stop_timeout) + 1
    return Crew(ReentrantLock(), wanted, 0, 0, patience, () -> Maker(data, names, specs))
end

"Starts the workers that are missing. The caller has entered the loader at `address`."
start_missing(crew::Crew, address) = lock(crew.lock) do
    crew.starts += 1
    while crew.running < crew.wanted && L.feedlane_loader_ref(address) == L.FEEDLANE_OK
        crew.running += 1
        Threads.@spawn run_thread(crew, address)
    end
end

"A worker's task, which has a reference to the loader."
function run_thread(crew::Crew, address)
    try
        while true
            seen = crew.starts
            while serve_once(crew, address) end
            leave_crew(crew, seen) && return
        end
    finally
        leave(address)
    end
end

"""
False if `start_missing` was called after `seen`: it has counted this worker, which may have looked for work before there
was any.
"""
leave_crew(crew::Crew, seen) = lock(crew.lock) do
    crew.starts == seen || return false
    crew.running -= 1
    return true
end

"A worker until the loader no longer needs it. True: another one is to take its place."
function serve_once(crew::Crew, address)
    worker = try
        attach(Int32(-1), address)
    catch reason
        reason isa FeedlaneError || rethrow()   # the loader is closed
        nothing
    end
    worker === nothing && return false
    try
        check(L.feedlane_worker_ready(worker.address, L.FEEDLANE_OK, C_NULL, worker.report.raw), worker.report)
        maker = crew.make()
        with_making(() -> serve(worker, maker), maker.making)
        return false
    catch reason
        reason isa FeedlaneError || rethrow()
        return !(reason.status in (L.FEEDLANE_E_STATE, L.FEEDLANE_E_PEER_DEAD))
    finally
        leave(worker)
    end
end

"Waits for the workers of a loader that was closed, while other tasks of this thread run."
wait_for(crew::Crew) = timedwait(() -> crew.running == 0, crew.patience; pollint=0.001)
