# SPDX-License-Identifier: Apache-2.0
# Loaders, arenas and rings of other processes of this user.

"""
    Feedlane.monitor(pid; nth=0)

Opens a monitor of loader number `nth`, from 0, of another process; `nothing`: it has no such loader. It does not disturb
the process, and returns the last values after the loader's end. `Feedlane.diagnose` and `report` then cover the time
since the call before on this monitor. Throws a `FeedlaneError`: `E_PEER_DEAD` if there is no such process, `E_OS` if it
belongs to another user, `E_ABI` or `E_CORRUPT` if its library is of another version.
"""
function monitor(pid::Integer; nth=0)
    out = Ref{Ptr{L.feedlane_monitor}}(C_NULL)
    checked(err -> L.feedlane_monitor_open(pid, nth, out, err)) == L.FEEDLANE_END && return nothing
    return Monitor(out[])
end

"""
    Feedlane.arena_info(pid; nth=0)

Arena number `nth`, from 0, of the process that owns it: a named tuple with the members of `feedlane_arena_stats`, and
`processes`, a named tuple with the members of `feedlane_arena_member` for each process in it. `nothing`: the process has
no such arena. Throws as `Feedlane.monitor(pid)`.
"""
function arena_info(pid::Integer; nth=0)
    out, count = struct_of(L.feedlane_arena_stats), Ref{UInt64}(0)
    list = [struct_of(L.feedlane_arena_member)[] for _ in 1:L.FEEDLANE_MAX_ARENA_PROCESSES]
    status = checked(err -> L.feedlane_monitor_arena(pid, nth, out, list, length(list), count, err))
    return status == L.FEEDLANE_END ? nothing : merge(named(out[]), (processes=map(named, list[1:min(count[], length(list))]),))
end

"""
    Feedlane.ring_info(pid; nth=0)

Ring number `nth`, from 0, of a process: a named tuple with the members of `feedlane_ring_info`. `nothing`: the process has
no such ring. Throws as `Feedlane.monitor(pid)`.
"""
function ring_info(pid::Integer; nth=0)
    out = struct_of(L.feedlane_ring_info)
    status = checked(err -> L.feedlane_monitor_ring(pid, nth, out, err))
    return status == L.FEEDLANE_END ? nothing : named(out[])
end
