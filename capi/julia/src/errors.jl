# SPDX-License-Identifier: Apache-2.0
# Converts the library's statuses to exceptions.

"""
An error that the library reported, or a misuse of this package.

`status` is the status's number, and `name` its name, such as `"E_SAMPLE"`. `text` is the error message in one line.
`argument`, `found` and `needed` are the offending argument, the number found and the number needed, if the library
reports them. `worker`, `attempt`, `epoch` and `batch` count from 0; -1 means none. `sample` is the index as passed to
`getobs`, or `nothing`. `detail` is the traceback of the data set's exception, or empty.
"""
struct FeedlaneError <: Exception
    status::Int32
    name::String
    text::String
    argument::String
    worker::Int
    attempt::Int
    epoch::Int
    batch::Int
    sample::Union{Nothing,Int}
    found::Int
    needed::Int
    os_errno::Int
    detail::String
end

status_name(status) = unsafe_string(L.feedlane_status_name(status))

"An error of this package."
FeedlaneError(status, text::AbstractString; argument="") =
    FeedlaneError(status, status_name(status), text, argument, -1, -1, -1, -1, nothing, 0, 0, 0, "")

function Base.showerror(io::IO, e::FeedlaneError)
    print(io, "FeedlaneError: ", e.name, ": ", e.text)
    places = ["$name $number" for (name, number) in (("worker", e.worker), ("batch", e.batch)) if number >= 0]
    e.sample === nothing || push!(places, "sample $(e.sample)")
    isempty(places) || print(io, " (", join(places, ", "), ")")
    isempty(e.detail) || print(io, "\n\nIn the data set:\n", e.detail)
end

const DETAIL_BYTES = 16384

"The struct and the buffer to which calls write errors. Each loader or worker has its own, for one call at a time."
struct Report
    raw::Base.RefValue{L.feedlane_error}
    detail::Vector{UInt8}
end

"`bytes`: room for the detail."
function Report(bytes=DETAIL_BYTES)
    detail = Vector{UInt8}(undef, bytes)
    return Report(struct_of(L.feedlane_error; detail=pointer(detail), detail_cap=length(detail)), detail)
end

function error_of(status, report::Report)
    raw = report.raw[]
    status == raw.code || return FeedlaneError(status, unsafe_string(L.feedlane_status_text(status)))
    length = min(raw.detail_len, Base.length(report.detail))
    return FeedlaneError(status, status_name(status), text_of(raw.text), text_of(raw.argument), raw.worker, raw.attempt,
                         raw.epoch, raw.batch, raw.sample < 0 ? nothing : raw.sample + 1, raw.found, raw.needed,
                         raw.os_errno, String(report.detail[1:length]))
end

"Returns the status, or throws if it is an error."
check(status, report::Report) = status < 0 ? throw(error_of(status, report)) : status
check(status) = status < 0 ? throw(FeedlaneError(status, unsafe_string(L.feedlane_status_text(status)))) : status

"Calls `f` with the struct of a new report, for calls that are made once."
function checked(f)
    report = Report()
    return GC.@preserve report check(f(report.raw), report)
end
