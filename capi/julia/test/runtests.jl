# SPDX-License-Identifier: Apache-2.0
# The tests of the package: one test set for each name in the last table of docs/integrating.md, and some more.
# "orders" comes last: from then on a package of the name MLCore is loaded.
# FEEDLANE_C_EXAMPLES: the folder of the built examples/c; FEEDLANE_RECORD: interface.json. Arguments: only these files.
include("support.jl")

const PARTS = ("record", "same", "errors", "policies", "iterable", "threads", "external", "batches", "life", "observe", "others",
               "share", "arena", "ring", "pool", "custom", "orders")

@testset "Feedlane" begin
    for part in (isempty(ARGS) ? PARTS : ARGS)
        include(part * ".jl")
    end
end
