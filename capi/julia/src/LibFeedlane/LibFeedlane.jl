# SPDX-License-Identifier: Apache-2.0
# feedlane.h as it is: constants, structs and functions by their C names. Feedlane is what users work with.
module LibFeedlane

using Libdl

# The soname. __init__ loads the library by its path first, so that the dynamic linker finds this name loaded already.
const libfeedlane = "libfeedlane.so.1"

include("constants.jl")
include("handles.jl")
include("structs.jl")
include("reports.jl")
include("functions.jl")

"Where the library may be, in the order in which it is tried."
function candidates()
    tree = joinpath(@__DIR__, "..", "..", "..", "..", "build", "capi", libfeedlane)   # of a build in a clone
    return haskey(ENV, "FEEDLANE_LIBRARY") ? [ENV["FEEDLANE_LIBRARY"]] :
           [filter(isfile, [tree]); libfeedlane; "/usr/local/lib/" * libfeedlane;
            "/usr/local/lib/$(Sys.ARCH)-linux-gnu/" * libfeedlane]
end

function load_library()
    reasons = String[]
    for path in candidates()
        try
            Libdl.dlopen(path)
            version = feedlane_abi_version()
            version == FEEDLANE_ABI || error("$path has ABI $version, but this package needs ABI $FEEDLANE_ABI")
            return
        catch reason
            push!(reasons, sprint(showerror, reason))
        end
    end
    error("libfeedlane cannot be loaded; set FEEDLANE_LIBRARY to the path of libfeedlane.so.1:\n" * join(reasons, '\n'))
end

end
