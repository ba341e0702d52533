# SPDX-License-Identifier: Apache-2.0
# What makes samples in a worker or inline: the data set with its fields, and what `getobs` can ask about its sample.

"The sample and the task that a worker is making."
mutable struct Making
    seed::UInt64
    task::Ptr{L.feedlane_task}   # NULL: none
    token::Token                 # of the task's memory
end
Making() = Making(0, C_NULL, Token())

# Threads as workers each have their own, found by their Julia task. Other tasks, which `getobs` has started, see the
# newest one of the process: a worker process makes one sample at a time.
const MAKING = :feedlane_making
const newest = Ref{Union{Nothing,Making}}(nothing)

"Runs `f` in this task with `making` as the sample that is made."
function with_making(f, making::Making)
    storage = task_local_storage()
    outer = get(storage, MAKING, nothing)
    storage[MAKING] = making
    try
        return f()
    finally
        outer === nothing ? delete!(storage, MAKING) : (storage[MAKING] = outer)
    end
end

current_making() = something(get(task_local_storage(), MAKING, nothing), newest[], Some(nothing))::Union{Nothing,Making}

"""
    Feedlane.sample_seed()

In `getobs`: the seed of the sample. It depends on the loader's seed, the epoch and the sample's position in the epoch,
but not on the worker. Use it for augmentation: `MersenneTwister(Feedlane.sample_seed())`. 0 outside of a loader. With
`start=:thread`, tasks that `getobs` starts must get it as an argument.
"""
function sample_seed()
    making = current_making()
    return making === nothing ? UInt64(0) : making.seed
end

"""
    Feedlane.ahead(after=0)

In `getobs`: the first task that is queued at this worker with an id above `after`, so that a data set can start reading
early: a named tuple of `id`, `epoch`, `batch`, `indices` (from 1) and `seeds`, or `nothing`. This is a hint: the worker gets the
task with these indices, or never. Pass the id of the last result to get the next task. Inline, for `Shards` and outside
of a loader, there is no such task.
"""
function ahead(after::Integer=0)
    making, found = current_making(), struct_of(L.feedlane_ahead)
    (making === nothing || making.task == C_NULL) && return nothing
    checked(err -> L.feedlane_task_ahead(making.task, after, found, err)) == L.FEEDLANE_OK || return nothing
    next = found[]
    return (id=Int(next.id), epoch=Int(next.epoch), batch=Int(next.batch),
            indices=[Int(unsafe_load(next.indices, k)) + 1 for k in 1:next.count],
            seeds=[unsafe_load(next.seeds, k) for k in 1:next.count])
end

"""
    Feedlane.scratch(T, dims...)

In `getobs`: an array of this worker's private memory with undefined contents, for example to decode into. It is freed
without a garbage collection when the batch is complete; after that, any use throws `E_STALE`. Inline and outside of a
loader it is an ordinary `Array`. Throws `OutOfMemoryError` if there is too little memory.
"""
function scratch(::Type{T}, dims::Integer...) where {T}
    isbitstype(T) || throw(ArgumentError("scratch memory has no elements of type $T: must be a bits type"))
    any(dim -> dim < 0, dims) && throw(ArgumentError("dimensions are $dims: must not be negative"))
    making = current_making()
    (making === nothing || making.task == C_NULL) && return Array{T}(undef, dims...)
    worker = unsafe_load(member(making.task, Val(:worker)))
    worker == C_NULL && return Array{T}(undef, dims...)
    address = L.feedlane_worker_scratch(worker, max(sizeof(T) * prod(dims), 1), 64)
    address == C_NULL && throw(OutOfMemoryError())
    return BatchArray{T,length(dims)}(making.token, Ptr{T}(address), Int.(dims))
end

# ---- failures ----

"""
    Transient(reason)

The exception of a failure after which a retry may succeed: `throw(Transient("the server is busy"))`, or with an
exception as the reason. A loader with `retries` tries again.
"""
struct Transient <: Exception
    reason::Any
end
Base.showerror(io::IO, e::Transient) = e.reason isa Exception ? showerror(io, e.reason) : print(io, e.reason)

"""
    Feedlane.substitute(data, failed, seed, tries)

The index of the sample to use in place of number `failed`, with `Loader(...; substitute=true)`; `nothing`: there is no
substitute. `tries` is the number of earlier substitutes for this sample. Data sets add methods.
"""
substitute(data, failed, seed, tries) = nothing

"An exception as one line (of which the library keeps 383 bytes), and with its backtrace."
function describe(reason, backtrace)
    line = replace(first(split(sprint(showerror, reason), '\n'; limit=2)), '\0' => ' ')
    return line, replace(sprint(showerror, reason, backtrace), '\0' => ' ')
end

"Writes a failure to the error struct of a callback. `err` may be NULL."
function report_failure(err::Ptr{L.feedlane_error}, reason, backtrace)
    err == C_NULL && return
    line, story = describe(reason, backtrace)
    unsafe_store!(member(err, Val(:transient)), Int32(reason isa Transient))
    write_text(Ptr{UInt8}(member(err, Val(:text))), line, 384)
    raw = unsafe_load(err)
    raw.detail == C_NULL && return
    count = min(ncodeunits(story), Int(raw.detail_cap))
    GC.@preserve story unsafe_copyto!(raw.detail, pointer(story), count)
    unsafe_store!(member(err, Val(:detail_len)), UInt64(ncodeunits(story)))
end

"Runs a callback. An exception is reported, with `status` as the result."
function answering(f, err, status)
    try
        return Base.invokelatest(f)::Int32
    catch reason
        report_failure(err, reason, catch_backtrace())
        return status
    end
end

"Writes a terminated text. A text that is too long is cut before a character."
function write_text(to::Ptr{UInt8}, text::String, room)
    count = ncodeunits(text) < room ? ncodeunits(text) : thisind(text, room) - 1
    GC.@preserve text unsafe_copyto!(to, pointer(text), count)
    unsafe_store!(to, 0x00, count + 1)
end

# ---- callbacks of map-style data sets ----

"The data set and its fields. The library has a pointer to this object in `get` and `substitute`."
mutable struct Maker{names,D,S<:Tuple}
    data::D
    specs::S
    making::Making
    is_indexed::Bool   # see `make_sample!`
end
Maker(data::D, ::Val{names}, specs::S) where {names,D,S} = Maker{names,D,S}(data, specs, Making(), is_indexed(D))

"Whether observations are `data[index]`: neither the data set nor a package has other methods."
is_indexed(D) = conventions() === nothing && which(getobs, Tuple{D,Int}) === which(getobs, Tuple{Any,Int}) &&
                which(getobs!, Tuple{Row,D,Int}) === which(getobs!, Tuple{Row,Any,Int})

"Writes a sample to its row. For `data[index]`, whose type the compiler knows, without boxing the result."
make_sample!(row::Row, maker::Maker, index) =
    maker.is_indexed ? store!(row, maker.data[index]) : getobs!(row, maker.data, index)

"The row of a callback, with the sample's fields."
function row_of(::Val{names}, specs::S, row::Ptr{L.feedlane_row}, making::Making) where {names,S<:Tuple}
    fields = unsafe_load(member(row, Val(:fields)))
    addresses = ntuple(k -> unsafe_load(fields, k), Val(fieldcount(S)))
    making.seed = unsafe_load(member(row, Val(:seed)))
    making.task = unsafe_load(member(row, Val(:task)))
    making.token = Token()
    return Row{names}(specs, addresses, making.token)
end

"Ends the use of the row's memory."
function leave_row(making::Making)
    making.token.live = false
    making.task = C_NULL
end

function get_inline(self::Maker{names,D,S}, row::Ptr{L.feedlane_row}, err::Ptr{L.feedlane_error}) where {names,D,S}
    making = newest[] = self.making
    try
        place = row_of(Val(names), self.specs, row, making)
        make_sample!(place, self, Int(unsafe_load(member(row, Val(:index)))) + 1)
        return L.FEEDLANE_OK
    catch reason
        report_failure(err, reason, catch_backtrace())
        return L.FEEDLANE_E_SAMPLE
    finally
        leave_row(making)
    end
end

function choose_substitute(self::Maker, failed::Int64, seed::UInt64, tries::UInt32, other::Ptr{Int64},
                           err::Ptr{L.feedlane_error})
    try
        index = substitute(self.data, Int(failed) + 1, seed, Int(tries))
        index === nothing && return L.FEEDLANE_E_SAMPLE
        unsafe_store!(other, Int64(index) - 1)
        return L.FEEDLANE_OK
    catch   # the failed sample's own error is more useful
        return L.FEEDLANE_E_SAMPLE
    end
end

get_callback(::M) where {M<:Maker} = @cfunction(get_inline, Int32, (Ref{M}, Ptr{L.feedlane_row}, Ptr{L.feedlane_error}))
substitute_callback(::M) where {M<:Maker} =
    @cfunction(choose_substitute, Int32, (Ref{M}, Int64, UInt64, UInt32, Ptr{Int64}, Ptr{L.feedlane_error}))

"The table of callbacks of an inline data set. `maker` must live as long as the loader."
table_of(maker::Maker) = struct_of(L.feedlane_dataset; user_data=pointer_from_objref(maker), get=get_callback(maker),
                                   substitute=substitute_callback(maker))
