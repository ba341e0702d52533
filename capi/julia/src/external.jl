# SPDX-License-Identifier: Apache-2.0
# Workers in processes that the program starts.

"""
    Feedlane.open_worker(loader; id=nothing)

A loader with `start=:external`: opens a place for one worker and returns it: `place.id`, and `place.fd` to pass to the
process that calls `Feedlane.serve_worker`, or to a worker in any language. Then call `close(place)`. `id` is the worker
wanted; by default any that is missing. `nothing`: no worker is missing. The call first checks for workers that have
ended, so a program that calls it from time to time, or at each event of kind `:worker_wanted`, can replace them all.
Throws a `FeedlaneError`: `E_STATE` if the loader starts its workers itself.
"""
function open_worker(loader::Loader; id=nothing)
    number, fd = Ref{Int32}(something(id, -1)), Ref{Int32}(-1)
    status = driving(loader.handle) do address
        check(L.feedlane_loader_open_worker(address, number, fd, loader.report.raw), loader.report)
    end
    return status == L.FEEDLANE_END ? nothing : Place(number[], RawFD(fd[]))
end
