# SPDX-License-Identifier: Apache-2.0
# The mirrors of the C interface against the record of it that is installed.
module Generate
include("../gen/generate.jl")
end
using .Generate: JSON

"A constant as the record has it: numbers of 64 bits are signed there."
recorded(value::Integer) = value % Int64
recorded(address::Ptr) = UInt(address) % Int64

@testset "record" begin
    record = JSON.parse(read(RECORD, String))
    for (name, layout) in JSON.get(record, "structs")
        mirror = getfield(L, Symbol(name))
        @test sizeof(mirror) == JSON.get(layout, "bytes")
        fields = JSON.get(layout, "fields")
        @test fieldnames(mirror) == Tuple(Symbol(JSON.get(field, "name")) for field in fields)
        @test fieldoffset.(mirror, 1:fieldcount(mirror)) == [JSON.get(field, "offset") for field in fields]
        @test sizeof.(fieldtype.(mirror, 1:fieldcount(mirror))) == [JSON.get(field, "bytes") for field in fields]
    end
    for (name, number) in JSON.get(record, "constants")
        @test recorded(getfield(L, Symbol(name))) == number
    end
    @test L.FEEDLANE_FOREVER === typemax(Int64) && L.FEEDLANE_EXHAUSTED === typemax(UInt64) && L.FEEDLANE_SLOTS === typemax(UInt64)
    @test L.FEEDLANE_NO_STREAM === Ptr{Cvoid}(typemax(UInt))
    @test L.feedlane_abi_version() == L.FEEDLANE_ABI
    mktempdir() do folder
        Generate.main(RECORD, folder)
        for name in readdir(folder)
            committed = joinpath(@__DIR__, "..", "src", "LibFeedlane", name)
            @test read(joinpath(folder, name), String) == read(committed, String)   # else run gen/generate.jl
        end
    end
end
