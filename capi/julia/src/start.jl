# SPDX-License-Identifier: Apache-2.0
# Starts worker processes: the program's own script again, or a Julia process that receives the data set serialized.

"The script, if it has called worker_main. Its workers are the script itself, started again."
const script = Ref{Union{Nothing,String}}(nothing)

"The command of this Julia with its flags and the same project."
function julia_command()
    project = Base.active_project()
    flags = project === nothing ? String[] : ["--project=$project"]
    return [Base.julia_cmd().exec; flags; "--startup-file=no"]
end

"The message to a worker that receives its data set serialized."
struct Job
    load_path::Vector{String}
    depot_path::Vector{String}
    folder::String
    setup::Any             # nothing, a file's path, or an expression: for Main
    data::Vector{UInt8}
end

"The command of a worker, and the bytes that the library passes to it."
function start_of(data, worker, config, setup)
    if worker !== nothing
        return worker isa Cmd ? worker.exec : collect(String, worker), bytes_of_config(config)
    elseif script[] !== nothing
        setup === nothing || throw(ArgumentError(
            "setup is not allowed, because this script calls worker_main: put the setup into the script"))
        return [julia_command(); script[]; ARGS], bytes_of_config(config)
    end
    path = setup isa AbstractString ? abspath(setup) : setup
    job = Job(copy(LOAD_PATH), copy(DEPOT_PATH), pwd(), path, serialized(data))
    kind = data isa Shards ? (data.saves ? "saving-shards" : "shards") : "samples"
    return [julia_command(); joinpath(@__DIR__, "..", "worker.jl"); kind; LOAD_PATH], serialized(job)
end

bytes_of_config(config::AbstractString) = Vector{UInt8}(codeunits(config))
bytes_of_config(config) = collect(UInt8, config)

function serialized(value)
    buffer = IOBuffer()
    serialize(buffer, value)
    return take!(buffer)
end

"""
Deserializes a value. If this needs a package that is not loaded, loads the package and tries again.
"""
function deserialized(bytes)
    while true
        try
            return Base.invokelatest(deserialize, IOBuffer(bytes))
        catch reason
            reason isa KeyError && reason.key isa Base.PkgId || rethrow()
            haskey(Base.loaded_modules, reason.key) && rethrow()
            Base.require(reason.key)
        end
    end
end

"Opens the data set of a job in this process."
function open_job(bytes)
    job = deserialized(bytes)::Job
    append!(empty!(LOAD_PATH), job.load_path)
    append!(empty!(DEPOT_PATH), job.depot_path)
    cd(job.folder)
    job.setup isa AbstractString && Base.include(Main, job.setup)
    job.setup isa Expr && Core.eval(Main, job.setup)
    return deserialized(job.data)
end
