# SPDX-License-Identifier: Apache-2.0
# Entries of an arena: putting, getting, sending and receiving.

bytes_of_key(::Nothing) = UInt8[]
bytes_of_key(key::AbstractString) = Vector{UInt8}(key)
bytes_of_key(key::AbstractVector{UInt8}) = Vector{UInt8}(key)
bytes_of_key(key) = throw(ArgumentError("the key is a $(typeof(key)): must be a string or a vector of UInt8, of 1 to 64 bytes"))

"""
    put!(arena, key, value; pinned=false, timeout=Inf)
    put!(arena, value; timeout=Inf)

Stores a value under a key, a string or a vector of UInt8 of 1 to 64 bytes, and replaces an earlier one. Without a key,
sends the value. The arrays are copied once, into the arena. `pinned`: the entry is never evicted. Throws a
`FeedlaneError`: `TIMEOUT` if there was no memory in time, `E_LIMIT` if the value exceeds a third of the arena or, with
`when_full=:fail`, there is no memory, `SLOTS_HELD` if this process holds too many batches, `E_PEER_DEAD` if the owner
has ended.
"""
function Base.put!(arena::Arena, key, value; pinned=false, timeout=Inf)
    names, specs = specs_of(value)
    reserve(row -> store!(row, value), arena, key, names, specs, UInt8[], pinned, timeout)
    return arena
end
Base.put!(arena::Arena, value; timeout=Inf) = put!(arena, nothing, value; timeout=timeout)

"""
    Feedlane.reserve(f, arena, key, fields; metadata=UInt8[], pinned=false, timeout=Inf)

Puts an entry that `f` writes in place. `fields` are declared as in a `Loader`. The argument of `f` has an array in shared
memory for each field:

    Feedlane.reserve(arena, "key", (image=(UInt8, (8, 8)), label=(Int64, ()))) do entry
        decode!(entry.image, file)
        entry.label[] = 3
    end

The entry is published when `f` returns, or given up if it throws. `key` is `nothing` for an entry that is sent.
`Feedlane.metadata` of the batch returns the bytes of `metadata`. Throws as `put!` does.
"""
reserve(f, arena::Arena, key, fields; metadata=UInt8[], pinned=false, timeout=Inf) =
    reserve(f, arena, key, declared(fields)..., Vector{UInt8}(metadata), pinned, timeout)

function reserve(f, arena::Arena, key, names, specs, metadata, pinned, timeout)
    bytes, texts = bytes_of_key(key), [Base.cconvert(Cstring, spec.name) for spec in specs]
    key isa Nothing || isempty(bytes) && throw(ArgumentError("the key is empty: must have 1 to 64 bytes"))
    fields = L.feedlane_field[field_of(spec, pointer(text)) for (spec, text) in zip(specs, texts)]
    address = enter(arena.handle)
    try
        token, raw = GC.@preserve bytes texts fields metadata begin
            put = struct_of(L.feedlane_put; key=isempty(bytes) ? C_NULL : pointer(bytes), key_bytes=length(bytes),
                fields=isempty(fields) ? C_NULL : pointer(fields), field_count=length(fields),
                metadata=isempty(metadata) ? C_NULL : pointer(metadata), metadata_bytes=length(metadata), pinned=pinned)
            GC.@preserve put begin
                _, raw = waiting_for_batch(arena, timeout, L.feedlane_arena_reserve_threaded, L.feedlane_arena_reserve_gc_safe,
                                           (address_of(put),))
                Token(raw.token, address, arena.handle), raw
            end
        end
        try
            f(Row{names}(specs, ntuple(k -> unsafe_load(raw.tensors, k).data, length(specs)), token))
            publish(arena, token, timeout)
        finally
            release(token)   # nothing to do if it was published
        end
    finally
        leave(address)
    end
    return nothing
end

function publish(arena::Arena, token::Token, timeout)
    token.live = false
    report = Report(0)
    GC.@preserve report check_ok(waiting(arena, timeout, L.feedlane_arena_publish_threaded, L.feedlane_arena_publish_gc_safe,
                                         (token.number,), (address_of(report.raw),)), report)
    token.released = true
end

"""
    delete!(arena, key)

Drops the entry with this key, if there is one: later gets do not find it, batches that are held stay.
"""
function Base.delete!(arena::Arena, key)
    bytes, report = bytes_of_key(key), Report(0)
    GC.@preserve bytes report check_ok(waiting(arena, Inf, L.feedlane_arena_drop_threaded, L.feedlane_arena_drop_gc_safe,
        (Ptr{Cvoid}(pointer(bytes)), UInt64(length(bytes))), (address_of(report.raw),)), report)
    return arena
end

# ---- getting ----

"The batch of a struct that a call has filled in, with the fields of the entry."
function batch_of(arena::Arena, address, raw)
    token = finalizer(release, Token(raw.token, address, arena.handle))
    names, specs = try
        specs_of(raw.tensors, raw.tensor_count)
    catch
        release(token)
        rethrow()
    end
    kinds = Tuple{map(spec -> array_type(spec, false), specs)...}
    return Batch{names,kinds}(token, arrays_held(kinds, token, raw), raw)
end

function get_with(arena::Arena, key, flags, timeout)
    bytes = bytes_of_key(key)
    address = enter(arena.handle)
    try
        status, raw = GC.@preserve bytes waiting_for_batch(arena, timeout, L.feedlane_arena_get_threaded,
            L.feedlane_arena_get_gc_safe, (Ptr{Cvoid}(pointer(bytes)), UInt64(length(bytes)), flags), L.FEEDLANE_TIMEOUT,
            L.FEEDLANE_ABSENT)
        return status, status == L.FEEDLANE_OK ? batch_of(arena, address, raw) : nothing
    finally
        leave(address)
    end
end

"""
    get(arena, key, default=nothing; timeout=0)

The entry with this key, as a `Batch`, or `default` if there is none within `timeout` seconds. Throws a `FeedlaneError`:
`SLOTS_HELD` if this process holds too many batches, `E_PEER_DEAD` if there is no entry and the owner has ended,
`E_CORRUPT` if the entry's maker has overwritten it.
"""
function Base.get(arena::Arena, key, default=nothing; timeout=0)
    batch = get_with(arena, key, Int32(0), timeout)[2]
    return batch === nothing ? default : batch
end

"Gives the right to make an entry back, unless the arena has ended."
function give_back(arena::Arena, key)
    try
        delete!(arena, key)
    catch reason
        reason isa FeedlaneError || rethrow()
    end
end

"""
    get!(f, arena, key; pinned=false, timeout=Inf)

The entry with this key. If there is none, one process at a time calls `f` and puts the result, and the others wait for
it. If that process ends, or `f` throws, the next one makes the entry. Throws a `FeedlaneError`: `TIMEOUT`, and as `get`
and `put!` do; and exceptions of `f`.
"""
function Base.get!(f::Base.Callable, arena::Arena, key; pinned=false, timeout=Inf)
    while true
        status, batch = get_with(arena, key, L.FEEDLANE_GET_MAKE, timeout)
        batch === nothing || return batch
        status == L.FEEDLANE_TIMEOUT && throw(FeedlaneError(status, "nobody has made the entry in time"))
        try
            put!(arena, key, f(); pinned=pinned, timeout=timeout)
        catch
            give_back(arena, key)
            rethrow()
        end
    end
end

"""
    take!(arena; timeout=Inf)

The next value that was sent to this process, as a `Batch`. The values of one sender come in the order in which they were
sent. Throws a `FeedlaneError`: `TIMEOUT`, `SLOTS_HELD`, `E_PEER_DEAD` if everything was received and the owner has ended.
"""
function Base.take!(arena::Arena; timeout=Inf)
    address = enter(arena.handle)
    try
        _, raw = waiting_for_batch(arena, timeout, L.feedlane_arena_receive_threaded, L.feedlane_arena_receive_gc_safe, ())
        return batch_of(arena, address, raw)
    finally
        leave(address)
    end
end

# A loop receives values until the owner has ended or the arena was closed. It releases each batch when it moves to the
# next one, unless `keep` was called.
Base.IteratorSize(::Type{Arena}) = Base.SizeUnknown()
Base.eltype(::Type{Arena}) = Batch

function Base.iterate(arena::Arena, previous=nothing)
    previous === nothing || token(previous).kept || release(token(previous))
    try
        batch = take!(arena)
        return batch, batch
    catch reason
        reason isa FeedlaneError && reason.status in (L.FEEDLANE_E_PEER_DEAD, L.FEEDLANE_E_STATE) || rethrow()
        return nothing
    end
end
