# SPDX-License-Identifier: Apache-2.0
# Arenas: owners, members and their ends, calls that wait, serving.

const FULLS = (evict=L.FEEDLANE_FULL_EVICT, wait=L.FEEDLANE_FULL_WAIT, fail=L.FEEDLANE_FULL_FAIL)

"""
    Arena(bytes; members=16, entries=0, leases=0, when_full=:evict, path="", serve=true)

Memory for entries that several processes share. This process is the arena's owner, the processes that call `join_arena`
are its members. `put!(arena, key, value)` stores a value, and every process gets it. `put!(arena, value)` sends it: a
member's value to the owner, the owner's to every member, where `take!` or a `for` loop receives it.

A value is a number or an array of numbers, or a tuple or named tuple of them. What an arena returns is a `Batch` with
the same fields (`batch.image`, `batch[1]`), in read-only memory and without a copy. The caller holds the batch until
`release!`, or until it and its arrays are garbage-collected. It stays as it is, even after the arena's end.

- `bytes`: memory for entries, at least 64 KiB; an entry may take a third of it.
- `members`: processes besides the owner at the same time. `entries`: entries at the same time; 0: one per 64 KiB, at
  least 1024. `leases`: batches that one process may hold; 0: 1024.
- `when_full`: what `put!` does without free memory. `:evict`: evicts entries with a key, least recently used first.
  `:wait`: waits until memory is released. `:fail`: throws `E_LIMIT`.
- `path`: a Unix socket to create, at which processes of the same user may join; `""`: none.
- `serve`: a thread of libuv serves the members, in at most three arenas of a process (`E_LIMIT`). Otherwise the owner
  serves them only during calls that wait; see `Feedlane.serve`.

Any task may call any function. A call that waits does so in another thread, so that other tasks run. After `close`, all
functions throw `E_STATE`.
"""
struct Arena
    handle::Handle
    server::Union{Nothing,Task}
end

function Arena(bytes::Integer; members=16, entries=0, leases=0, when_full=:evict, path="", serve=true)
    text = Base.cconvert(Cstring, String(path))
    serve && check_served("pass serve=false and call Feedlane.serve")
    config = GC.@preserve text struct_of(L.feedlane_arena_config; bytes=bytes, members=members, entries=entries, leases=leases,
        when_full=choice("when_full", FULLS, when_full), path=isempty(path) ? C_NULL : pointer(text))
    out = Ref{Ptr{L.feedlane_loader}}(C_NULL)
    GC.@preserve text checked(err -> L.feedlane_arena_create(config, out, err))
    handle = Handle(out[], false)
    return Arena(handle, serve ? serve_members(enter(handle)) : nothing)
end

check_served(instead) = served[] < MAX_SERVED || throw(FeedlaneError(L.FEEDLANE_E_LIMIT,
    "threads serve $(served[]) arenas and staged loaders of this process, the most: close one, or $instead"))

"""
    join_arena(path; timeout=60)
    join_arena(place; timeout=60)

Becomes a member of an arena: by its path, or by the descriptor (a `RawFD`) of the owner's `Feedlane.offer`, which is
closed in every case. Throws a `FeedlaneError`: `E_PEER_DEAD` if there is no owner, `TIMEOUT` if it did not answer in
time, `E_LIMIT` if all places are taken, `E_STATE` if the owner belongs to another user.
"""
join_arena(fd::RawFD; timeout=JOIN_SECONDS) = joined(reinterpret(Int32, fd), Cstring(C_NULL), timeout)
function join_arena(path::AbstractString; timeout=JOIN_SECONDS)
    text = Base.cconvert(Cstring, String(path))
    return GC.@preserve text joined(Int32(-1), Cstring(pointer(text)), timeout)
end

function joined(fd, path, timeout)
    out, report = Ref{Ptr{L.feedlane_loader}}(C_NULL), Report(0)
    GC.@preserve out report check_ok(in_thread(L.feedlane_arena_join_threaded, L.feedlane_arena_join_gc_safe, fd, path,
        nanoseconds(timeout), address_of(out), address_of(report.raw)), report)
    return Arena(Handle(out[], false), nothing)
end

"""
    Feedlane.offer(arena)

The owner: opens a place for one member, which may be a process of any user. Returns it: pass `place.fd` to the process
that calls `join_arena`, then call `close(place)`. Throws `E_LIMIT` if all places are taken.
"""
function offer(arena::Arena)
    fd = Ref{Int32}(-1)
    calling(address -> checked(err -> L.feedlane_arena_offer(address, fd, err)), arena.handle)
    return Place(0, RawFD(fd[]))
end

"""
    close(arena)

Leaves the arena; the owner ends it. Calls of other tasks throw `E_STATE`. Held batches stay readable. A second call has
no effect.
"""
function Base.close(arena::Arena)
    close(arena.handle)
    arena.server === nothing || wait(arena.server)   # its thread is free again
    return nothing
end

isclosed(arena::Arena) = arena.handle.address == C_NULL
Base.show(io::IO, arena::Arena) = print(io, "Arena(", isclosed(arena) ? "closed" : "open", ")")

"""
    Feedlane.stats(arena)

The state of the arena, and of this process in it: a named tuple with the members of `feedlane_arena_stats`.
"""
stats(arena::Arena) = calling(arena.handle) do address
    out = struct_of(L.feedlane_arena_stats)
    check(L.feedlane_arena_get_stats(address, out))
    return named(out[])
end

# ---- waiting ----

# A call waits in C for at most this long, and is then repeated. Ctrl-C takes effect after that time at the latest. libuv
# has few threads; calls that wait take turns in them.
const SLICE_SECONDS = 0.1

"""
Runs a call in a thread of libuv, while other tasks run. Its arguments must not need conversion. Julia supports this in
the first thread; another thread waits itself.
"""
in_thread(threaded, gc_safe, arguments...) =
    Threads.threadid() == 1 ? disable_sigint(() -> threaded(arguments...)) : gc_safe(arguments...)

"""
Repeats a call until its outcome is not TIMEOUT, or `timeout` seconds have passed. Its arguments are whether it is the
first one, which polls in this thread, and the nanoseconds that it may wait.
"""
function in_slices(call, timeout)
    deadline = time() + timeout
    seconds = min(timeout, POLL_NS / 1e9)   # at first without a change of threads
    first = true
    while true
        status = call(first, nanoseconds(max(seconds, 0)))
        is_over = status != L.FEEDLANE_INTERRUPTED && (status != L.FEEDLANE_TIMEOUT || time() >= deadline)
        is_over && return status
        yield()   # to other tasks of this thread; after a signal, Julia delivers it
        first, seconds = false, min(deadline - time(), SLICE_SECONDS)
    end
end

"""
As `in_slices`, for a call of the arena whose arguments are the arena's address, `before`, the nanoseconds that it may
wait, and `after`.
"""
waiting(arena::Arena, timeout, threaded, gc_safe, before, after) = in_slices(timeout) do first, ns
    calling(arena.handle) do address
        first ? gc_safe(address, before..., ns, after...) : in_thread(threaded, gc_safe, address, before..., ns, after...)
    end
end

check_ok(status, report) = status == L.FEEDLANE_OK ? status : throw(error_of(status, report))

"As `waiting`, for a call that yields a batch. Returns the status, and the batch's struct and token if that is OK."
function waiting_for_batch(arena::Arena, timeout, threaded, gc_safe, before, more...)
    out, report = struct_of(L.feedlane_batch), Report(0)
    status = GC.@preserve out report collecting() do
        waiting(arena, timeout, threaded, gc_safe, before, (address_of(out), address_of(report.raw)))
    end
    status in (L.FEEDLANE_OK, more...) || throw(error_of(status, report))
    return status, out[]
end

# ---- serving ----

"""
    Feedlane.serve(arena; timeout=Inf)

The owner: serves the members until `timeout` seconds have passed. `Arena(...; serve=false)` needs this if the owner does
not wait in other calls. Throws `E_STATE` after `close`.
"""
function serve(arena::Arena; timeout=Inf)
    report, no_batch = Report(0), Ptr{L.feedlane_batch}(C_NULL)
    status = GC.@preserve report waiting(arena, timeout, L.feedlane_arena_receive_threaded, L.feedlane_arena_receive_gc_safe,
                                         (), (no_batch, address_of(report.raw)))
    return status == L.FEEDLANE_TIMEOUT ? nothing : throw(error_of(status, report))
end

# Each occupies a thread of libuv. The fourth thread is for calls that wait.
const MAX_SERVED = 3
const served = Threads.Atomic{Int}(0)

"""
Calls `f` in a new task, whose calls wait in a thread of libuv, and then `leave`. The task must not keep a handle reachable.
"""
function in_background(f, address)
    Threads.atomic_add!(served, 1)
    task = @async try
        f()
    finally
        Threads.atomic_sub!(served, 1)
        leave(address)
    end
    yield()   # now it waits
    return task
end

"""
Serves until the arena is closed. The task waits once, for ever: Ctrl-C goes to the task that began to wait last.
"""
function serve_members(address)
    no_batch, no_error = Ptr{L.feedlane_batch}(C_NULL), Ptr{L.feedlane_error}(C_NULL)
    ns = Threads.threadid() == 1 ? L.FEEDLANE_FOREVER : nanoseconds(SLICE_SECONDS)
    return in_background(address) do
        while in_thread(L.feedlane_arena_receive_threaded, L.feedlane_arena_receive_gc_safe, address, ns, no_batch,
                        no_error) in (L.FEEDLANE_TIMEOUT, L.FEEDLANE_INTERRUPTED)
            yield()
        end
    end
end
