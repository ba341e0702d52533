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

"The address of what a reference holds, for calls in the form `_gc_safe`. Preserve the reference."
address_of(reference::Base.RefValue{T}) where {T} = Base.unsafe_convert(Ptr{T}, reference)
