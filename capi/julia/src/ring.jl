# SPDX-License-Identifier: Apache-2.0
# Rings without a loader: messages of one type from several senders to one receiver, in place and by copies.

abstract type RingEnd{T} end

"""
    Ring{T}(capacity=1024; senders=1, path="")

The receiving end of a ring, whose messages are values of the bits type `T` (of at most 1 MiB). Each sender, here or in
another process, has room for `capacity` messages, a power of two. One sender's messages stay in order.

`senders` is how many there may be at the same time. They call `join_ring`: with `path`, a Unix socket that the ring
creates for processes of this user, or with the descriptor of a `Feedlane.offer`.

`take!(ring)` receives a message, `take!(ring, count)` several, `Feedlane.receive` shows them in place, and a loop receives
messages until all senders that joined have left. One task at a time may use an end; another one gets `E_BUSY`. Any task
may call `close`, which ends the wait of a task with `E_STATE`.
"""
mutable struct Ring{T} <: RingEnd{T}
    address::Ptr{L.feedlane_rx}      # NULL: closed
    lock::ReentrantLock              # held by the task that uses this end
    is_used::Bool                    # protected by `lock`: that task is in a call
    closing::Threads.Atomic{Int}
    waiter::Union{Nothing,Waiter}
    function Ring{T}(capacity::Integer=1024; senders=1, path="") where {T}
        out, text = Ref{Ptr{L.feedlane_rx}}(C_NULL), Base.cconvert(Cstring, String(path))
        GC.@preserve text begin
            config = struct_of(L.feedlane_ring_config; message_bytes=message_bytes(T), capacity=capacity, lanes=senders,
                               path=isempty(path) ? C_NULL : pointer(text))
            checked(err -> L.feedlane_rx_create(config, out, err))
        end
        return finalizer(finish, new(out[], ReentrantLock(), false, Threads.Atomic{Int}(0), nothing))
    end
end

"A sending end of a ring, see `join_ring`."
mutable struct RingSender{T} <: RingEnd{T}
    address::Ptr{L.feedlane_tx}      # NULL: closed
    lock::ReentrantLock
    is_used::Bool
    closing::Threads.Atomic{Int}
    RingSender{T}(address) where {T} = finalizer(finish, new(address, ReentrantLock(), false, Threads.Atomic{Int}(0)))
end

"""
    join_ring(T, path; timeout=60)
    join_ring(T, place; timeout=60)

Becomes a sender of a `Ring{T}`: by its path, or by the descriptor (a `RawFD`) of its `Feedlane.offer`, which is closed in
every case. `put!(sender, value)` sends a message, `append!(sender, values)` several, and `Feedlane.reserve` writes them
in place. `close(sender)` leaves; the receiver still gets everything. Throws a `FeedlaneError`: `E_PEER_DEAD` if there is no
receiver, `TIMEOUT` if it did not answer in time (it does during its own calls), `E_LIMIT` if it has all its senders,
`E_STATE` if it belongs to another user, `E_ARGUMENT` if its messages have another size.
"""
join_ring(::Type{T}, fd::RawFD; timeout=JOIN_SECONDS) where {T} =
    joined_ring(T, reinterpret(Int32, fd), Cstring(C_NULL), timeout)
function join_ring(::Type{T}, path::AbstractString; timeout=JOIN_SECONDS) where {T}
    text = Base.cconvert(Cstring, String(path))
    return GC.@preserve text joined_ring(T, Int32(-1), Cstring(pointer(text)), timeout)
end

function joined_ring(::Type{T}, fd, path, timeout) where {T}
    out, bytes, report = Ref{Ptr{L.feedlane_tx}}(C_NULL), Ref{UInt32}(0), Report(0)
    GC.@preserve out bytes report check_ok(in_thread(L.feedlane_tx_attach_threaded, L.feedlane_tx_attach_gc_safe, fd, path,
        nanoseconds(timeout), address_of(out), address_of(bytes), address_of(report.raw)), report)
    sender = RingSender{T}(out[])
    bytes[] == message_bytes(T) && return sender
    close(sender)
    throw(FeedlaneError(L.FEEDLANE_E_ARGUMENT, "the ring has messages of $(bytes[]) bytes, but a $T has $(sizeof(T)): " *
                        "join it with its own type"; argument="T"))
end

function message_bytes(::Type{T}) where {T}
    isbitstype(T) && sizeof(T) > 0 ||
        throw(ArgumentError("messages of type $T are not allowed: must be a bits type with at least one byte"))
    return sizeof(T)
end

destroy(ring::Ring) = L.feedlane_rx_destroy(Ref(ring.address))
destroy(sender::RingSender) = L.feedlane_tx_destroy(Ref(sender.address))
end_waits(ring::Ring) = (L.feedlane_rx_close(ring.address); ring.waiter === nothing || close(ring.waiter))
end_waits(sender::RingSender) = L.feedlane_tx_close(sender.address)

function finish(ring::RingEnd)
    ring.closing[] == 0 && destroy(ring)
    waiter = ring isa Ring ? ring.waiter : nothing
    waiter === nothing || @async close(waiter)   # finalizers must not switch tasks
    return nothing
end

"""
    close(ring)
    close(sender)

Ends the ring: its senders get `E_PEER_DEAD` from their next wait. A sender leaves the ring. The call waits until another
task's call, which throws `E_STATE`, has ended. A second call has no effect. Throws `E_BUSY` inside the function that the
same task has passed to `Feedlane.receive` or `Feedlane.reserve`.
"""
function Base.close(ring::RingEnd)
    is_inside(ring) && throw_busy()
    Threads.atomic_cas!(ring.closing, 0, 1) == 0 || return nothing
    end_waits(ring)
    lock(ring.lock) do
        destroy(ring)
        ring.address = C_NULL
    end
    return nothing
end

"Whether this task is in a call on the end."
is_inside(ring) = trylock(ring.lock) && (inside = ring.is_used; unlock(ring.lock); inside)
throw_busy() = throw(FeedlaneError(L.FEEDLANE_E_BUSY, "a task is in a call on this end of the ring already"))

isclosed(ring::RingEnd) = ring.address == C_NULL
Base.show(io::IO, ring::RingEnd{T}) where {T} =
    print(io, ring isa Ring ? "Ring{" : "RingSender{", T, "}(", isclosed(ring) ? "closed" : "open", ")")

"Runs `f` with the address of an end that no other call uses."
function using_end(f, ring::RingEnd)
    trylock(ring.lock) || throw_busy()
    try
        ring.is_used && throw_busy()
        ring.address == C_NULL && throw(FeedlaneError(L.FEEDLANE_E_STATE, "this end of the ring is closed"))
        ring.is_used = true
        try
            return GC.@preserve ring f(ring.address)
        finally
            ring.is_used = false
        end
    finally
        unlock(ring.lock)
    end
end

"""
    Feedlane.offer(ring)

Opens a place for one sender, which may be a process of any user, and returns it: pass `place.fd` to the process that
calls `join_ring`, then call `close(place)`. Throws `E_LIMIT` if the ring has all its senders.
"""
offer(ring::Ring) = using_end(ring) do address
    fd = Ref{Int32}(-1)
    checked(err -> L.feedlane_rx_offer(address, fd, err))
    return Place(0, RawFD(fd[]))
end

"Messages in place: a vector in shared memory, valid during the function that gets it."
struct Messages{T} <: AbstractVector{T}
    token::Token
    address::Ptr{Cvoid}
    stride::Int
    count::Int
end
Messages{T}(span::L.feedlane_span) where {T} = Messages{T}(Token(), span.data, span.stride, span.count)

Base.size(messages::Messages) = (messages.count,)
@inline function place_of(messages::Messages{T}, i) where {T}
    checkbounds(messages, i)
    messages.token.live ||
        throw(FeedlaneError(L.FEEDLANE_E_STALE, "these messages were released or sent: copy what is needed later"))
    return Ptr{T}(messages.address + (i - 1) * messages.stride)
end
Base.getindex(messages::Messages, i::Int) = unsafe_load(place_of(messages, i))
function Base.setindex!(messages::Messages{T}, value, i::Int) where {T}
    unsafe_store!(place_of(messages, i), convert(T, value)::T)
    return messages
end

function show_span(f, ::Type{T}, span) where {T}
    messages = Messages{T}(span)
    try
        return f(messages)
    finally
        messages.token.live = false
    end
end

# ---- receiving ----

"Repeats a call of the ring that is passed the nanoseconds to wait, and sleeps in Julia's event loop in between."
function waiting(f, ring::Ring, address, timeout)
    deadline, descriptor = time() + timeout, Ref{Int32}(-1)
    while true
        status = f(timeout == 0 ? Int64(0) : POLL_NS)
        if status == L.FEEDLANE_INTERRUPTED
            yield()   # a signal: Julia delivers it
        elseif status != L.FEEDLANE_TIMEOUT || time() >= deadline
            return status
        elseif check(L.feedlane_rx_arm(address, descriptor)) == L.FEEDLANE_OK
            ring.waiter === nothing && (ring.waiter = Waiter(descriptor[]))
            sleep_on(ring.waiter, deadline - time())
        end
    end
end

"""
    take!(ring, count; timeout=Inf)
    take!(ring; timeout=Inf)

Copies up to `count` messages of one sender, at least one, to a vector; without `count`, one message. Throws a
`FeedlaneError`: `TIMEOUT`; `END` if all senders that joined have left and everything was received; `E_STATE` after `close`.
"""
function Base.take!(ring::Ring{T}, count::Integer; timeout=Inf) where {T}
    count >= 1 || throw(ArgumentError("count is $count: must be at least 1"))
    list, got, report = Vector{T}(undef, count), Ref{UInt32}(0), Report(0)
    status = using_end(ring) do address
        GC.@preserve report waiting(ring, address, timeout) do ns
            L.feedlane_rx_receive(address, list, count, ns, got, C_NULL, report.raw)
        end
    end
    check_ok(status, report)
    return resize!(list, got[])
end
Base.take!(ring::Ring; timeout=Inf) = take!(ring, 1; timeout=timeout)[1]

"""
    Feedlane.receive(f, ring, count; timeout=Inf)

Waits for messages and calls `f` with up to `count` of them, of one sender, at least one, as a vector in shared memory.
They are released when `f` returns or throws. Returns the result of `f`. Throws as `take!`.
"""
receive(f, ring::Ring{T}, count::Integer; timeout=Inf) where {T} = using_end(ring) do address
    count >= 1 || throw(ArgumentError("count is $count: must be at least 1"))
    span, report = Ref{L.feedlane_span}(), Report(0)
    status = GC.@preserve report waiting(ring, address, timeout) do ns
        L.feedlane_rx_peek(address, count, ns, span, report.raw)
    end
    check_ok(status, report)
    try
        return show_span(f, T, span[])
    finally
        checked(err -> L.feedlane_rx_release(address, span[].lane, span[].count, err))
    end
end

Base.IteratorSize(::Type{<:Ring}) = Base.SizeUnknown()
Base.eltype(::Type{Ring{T}}) where {T} = T

function Base.iterate(ring::Ring, _=nothing)
    try
        return take!(ring), nothing
    catch reason
        reason isa FeedlaneError && reason.status == L.FEEDLANE_END || rethrow()
        return nothing
    end
end

# ---- sending ----

"""
    put!(sender, value; timeout=Inf)
    append!(sender, values; timeout=Inf)

Waits for space and copies messages into the ring. Throws a `FeedlaneError`, whose `found` is the number of messages that
were sent: `TIMEOUT` if the receiver did not make room in time, `E_PEER_DEAD` if the ring has ended, `E_STATE` after
`close`.
"""
Base.put!(sender::RingSender{T}, value; timeout=Inf) where {T} = append!(sender, T[value]; timeout=timeout)

function Base.append!(sender::RingSender{T}, values; timeout=Inf) where {T}
    list, sent, total, report = collect(T, values), Ref{UInt32}(0), 0, Report(0)
    isempty(list) && return sender
    status = using_end(sender) do address
        GC.@preserve list sent report in_slices(timeout) do first, ns
            arguments = (address, Ptr{Cvoid}(pointer(list, total + 1)), UInt32(length(list) - total), ns, address_of(sent),
                         address_of(report.raw))
            result = first ? L.feedlane_tx_send_gc_safe(arguments...) :
                             in_thread(L.feedlane_tx_send_threaded, L.feedlane_tx_send_gc_safe, arguments...)
            total += sent[]
            return result
        end
    end
    status == L.FEEDLANE_OK && return sender
    reason = error_of(status, report)
    text = "$(reason.text) ($total of $(length(list)) messages were sent)"
    throw(FeedlaneError(reason.status, reason.name, text, reason.argument, -1, -1, -1, -1, nothing, total, length(list),
                        reason.os_errno, ""))
end

"""
    Feedlane.reserve(f, sender, count; timeout=Inf)

Waits for space and calls `f` with up to `count` messages to write, at least one, as a vector in shared memory. They are
sent when `f` returns, and dropped if it throws. Returns their number. Throws a `FeedlaneError`: `TIMEOUT`, `E_PEER_DEAD`,
`E_STATE`.
"""
reserve(f, sender::RingSender{T}, count::Integer; timeout=Inf) where {T} = using_end(sender) do address
    count >= 1 || throw(ArgumentError("count is $count: must be at least 1"))
    span, report = Ref{L.feedlane_span}(), Report(0)
    status = GC.@preserve span report in_slices(timeout) do first, ns
        arguments = (address, UInt32(count), ns, address_of(span), address_of(report.raw))
        first ? L.feedlane_tx_reserve_gc_safe(arguments...) :
                in_thread(L.feedlane_tx_reserve_threaded, L.feedlane_tx_reserve_gc_safe, arguments...)
    end
    check_ok(status, report)
    made = 0
    try
        show_span(f, T, span[])
        made = Int(span[].count)
    finally
        checked(err -> L.feedlane_tx_commit(address, made, err))
    end
    return made
end
