# SPDX-License-Identifier: Apache-2.0
# Structs of the C interface in Julia's memory: zeroed structs with their size, members by name, texts in structs.
const L = LibFeedlane

"A struct of the interface: zero, except for its `size` and the given members."
function struct_of(::Type{T}; members...) where {T}
    reference = Ref{T}()
    GC.@preserve reference begin
        address = Base.unsafe_convert(Ptr{T}, reference)
        ccall(:memset, Ptr{Cvoid}, (Ptr{Cvoid}, Cint, Csize_t), address, 0, sizeof(T))
        unsafe_store!(Ptr{Csize_t}(address), sizeof(T))
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

"The text in an array of characters, without the terminator."
text_of(bytes::NTuple{N,UInt8}) where {N} = String(collect(Iterators.takewhile(!iszero, bytes)))

"The address of a reference's value, for functions named `_gc_safe`. The caller must preserve the reference."
address_of(reference::Base.RefValue{T}) where {T} = Base.unsafe_convert(Ptr{T}, reference)
