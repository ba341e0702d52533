# SPDX-License-Identifier: Apache-2.0
# Structs of the C interface in Julia's memory: zeroed ones with their size set, members by name, texts out of them.
const L = LibFeedlane

"A struct of the interface, zero but for its `size` and the members given."
function struct_of(::Type{T}; members...) where {T}
    reference = Ref{T}()
    GC.@preserve reference begin
        address = Base.unsafe_convert(Ptr{T}, reference)
        L.feedlane_init(address, sizeof(T))
        for (name, value) in members
            number = Base.fieldindex(T, name)
            kind = fieldtype(T, number)
            unsafe_store!(Ptr{kind}(address + fieldoffset(T, number)), convert(kind, value))
        end
    end
    return reference
end

"The address of a member of the struct at `address`."
@generated function member(address::Ptr{T}, ::Val{name}) where {T,name}
    number = Base.fieldindex(T, name)
    return :(Ptr{$(fieldtype(T, number))}(address + $(fieldoffset(T, number))))
end

"The text in an array of characters, up to its terminator."
text_of(bytes::NTuple{N,UInt8}) where {N} = String(collect(Iterators.takewhile(!iszero, bytes)))

"""
Runs `call` while collections go on in other threads. Only for calls that run no callbacks, since the thread must not touch
Julia's memory meanwhile.
"""
function gc_safe(call)
    state = ccall(:jl_gc_safe_enter, Int8, ())
    result = call()
    ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
    return result
end
