# SPDX-License-Identifier: Apache-2.0
# The library's loader: references for calls from any task, sleeping in Julia's event loop, `close` and the finalizer.

"""
A descriptor that tasks sleep on. It is a duplicate, so the event loop never watches a descriptor that the library has
closed.
"""
mutable struct Waiter
    fd::RawFD
    watcher::FDWatcher
end

function Waiter(descriptor::Integer)
    fd = ccall(:fcntl, Cint, (Cint, Cint, Cint...), descriptor, 1030, 3)   # F_DUPFD_CLOEXEC
    Base.systemerror("dup", fd < 0)
    return Waiter(RawFD(fd), FDWatcher(RawFD(fd), true, false))
end

"Sleeps until the descriptor is readable, `seconds` have passed, or the waiter is closed."
function sleep_on(waiter::Waiter, seconds)
    try
        seconds == Inf ? wait(waiter.watcher) : poll_fd(waiter.fd, seconds; readable=true)
    catch reason
        reason isa EOFError || reason isa Base.IOError || reason isa ArgumentError || rethrow()
    end
    return nothing
end

function Base.close(waiter::Waiter)
    waiter.fd == RawFD(-1) && return
    fd, waiter.fd = waiter.fd, RawFD(-1)
    close(waiter.watcher)
    ccall(:close, Cint, (RawFD,), fd)
    return nothing
end

abstract type AnyToken end

"The library's loader. A task holds a reference during each call: see `enter`."
mutable struct Handle
    address::Ptr{L.feedlane_loader}            # NULL: closed
    lock::Threads.SpinLock                     # protects `address`
    driving::Threads.Atomic{Int}               # 1: a task is in a call that only one task may make at a time
    waiter::Union{Nothing,Waiter}
    current::Union{Nothing,AnyToken}           # the batch that the loop over the loader holds
    is_inline::Bool
    order::Any                                 # of a user-defined sampler, which calls of the library call back
    crew::Any                                  # the workers that are tasks of this process; `nothing`: none are
    stager::Union{Nothing,Task}                # copies batches into a pool's buffers
    kept::Any                                  # kept alive because the library has a pointer to it
    function Handle(address, is_inline, order=nothing, kept=nothing)
        handle = new(address, Threads.SpinLock(), Threads.Atomic{Int}(0), nothing, nothing, is_inline, order, nothing, nothing,
                     kept)
        return finalizer(finish, handle)
    end
end

const CLOSED = "the loader or arena is closed"

"Takes a reference for the duration of a call. `leave` releases it."
function enter(handle::Handle)
    lock(handle.lock)
    address = handle.address
    status = address == C_NULL ? L.FEEDLANE_E_STATE : L.feedlane_loader_ref(address)
    unlock(handle.lock)
    status == L.FEEDLANE_OK || throw(FeedlaneError(status, CLOSED))
    return address
end

leave(address) = L.feedlane_loader_unref(address)

"Runs `f` with the loader's address. Any task may call it."
function calling(f, handle::Handle)
    address = enter(handle)
    try
        return f(address)
    finally
        leave(address)
    end
end

"Runs `f` with the loader's address, for calls that only one task may make at a time."
function driving(f, handle::Handle)
    Threads.atomic_cas!(handle.driving, 0, 1) == 0 ||
        throw(FeedlaneError(L.FEEDLANE_E_BUSY, "another task is in a call on this loader"))
    try
        return calling(f, handle)
    finally
        handle.driving[] = 0
    end
end

"Whether calls may call Julia functions, so that they must not be made while a collection may run in another thread."
calls_back(handle::Handle) = handle.is_inline || handle.order !== nothing

"Sleeps until the loader must be called again, or `seconds` have passed."
function sleep_on(handle::Handle, address, seconds)
    descriptor = Ref{Int32}(-1)
    check(L.feedlane_loader_arm(address, descriptor)) == L.FEEDLANE_OK || return
    handle.waiter === nothing && (handle.waiter = Waiter(descriptor[]))
    return sleep_on(handle.waiter, seconds)
end

"""
Closes the loader, ends the wait of another task, and waits until the workers have ended. A busy worker has the time of
the stop timeouts to finish. Garbage collections in other threads do not wait for this call.
"""
function Base.close(handle::Handle)
    lock(handle.lock)
    address, handle.address = handle.address, Ptr{L.feedlane_loader}(C_NULL)
    unlock(handle.lock)
    address == C_NULL && return
    L.feedlane_loader_close(address)
    handle.waiter === nothing || close(handle.waiter)
    handle.crew === nothing || wait_for(handle.crew)
    handle.stager === nothing || wait(handle.stager)
    reference = Ref(address)
    status = GC.@preserve reference handle.is_inline ? L.feedlane_loader_destroy(reference) :   # it may call back
                                    L.feedlane_loader_destroy_gc_safe(address_of(reference))
    status == L.FEEDLANE_E_BUSY && (handle.address = address)
    check(status)
    return nothing
end

"The finalizer. It returns at once, and busy workers are killed."
function finish(handle::Handle)
    handle.current === nothing || release(handle.current)
    address, handle.address = handle.address, Ptr{L.feedlane_loader}(C_NULL)
    if address != C_NULL
        L.feedlane_loader_close(address)   # ends a task that serves an arena
        L.feedlane_loader_unref(address)
    end
    waiter = handle.waiter
    waiter === nothing || @async close(waiter)   # finalizers must not switch tasks
    return nothing
end
