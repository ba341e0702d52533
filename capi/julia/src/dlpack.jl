# SPDX-License-Identifier: Apache-2.0
# Exports arrays of batches to other libraries, in place, with DLPack.

"An exported tensor, see `Feedlane.dlpack`."
mutable struct DLPackTensor
    address::Ptr{Cvoid}   # NULL: given away
    legacy::Bool
    DLPackTensor(address, legacy) = finalizer(delete, new(address, legacy))
end

"""
    Feedlane.dlpack(batch, field; legacy=false, pinned=false)

Exports a field of a held batch, by number or name, for another library: `pointer(tensor)` is the address of a
`DLManagedTensorVersioned` or, with `legacy`, of the `DLManagedTensor` used before DLPack 1.0. Its dimensions are in the
order of C, the batch dimension first. `pinned`: the device is that of the loader's pool, such as kDLCUDAHost.

The tensor holds the batch, also after `release!`, until its deleter was called: by a finalizer, or by the library that it
was given to. `Feedlane.give!(tensor)` returns the address and leaves the deleter, which any thread may call, to that
library. Throws a `FeedlaneError`: `E_STALE` if the batch was released, `E_STATE` if `pinned` but the memory is not
registered with a device that DLPack knows. Any task may call it.
"""
function dlpack(batch::Batch{names}, field; legacy=false, pinned=false) where {names}
    number = field isa Symbol ? (names === nothing ? nothing : findfirst(isequal(field), names)) : field
    others = names === nothing ? "" : " or one of $(join(names, ", "))"
    number isa Integer && 1 <= number <= length(batch) ||
        throw(ArgumentError("the batch has no field $(repr(field)): must be 1 to $(length(batch))$others"))
    held, out = token(batch), Ref{Ptr{Cvoid}}(C_NULL)
    held.live || throw_released()
    flags = (legacy ? L.FEEDLANE_DLPACK_LEGACY : Int32(0)) | (pinned ? L.FEEDLANE_DLPACK_PINNED : Int32(0))
    GC.@preserve batch checked(err -> L.feedlane_batch_dlpack(held.address, held.number, number - 1, flags, out, err))
    return DLPackTensor(out[], legacy)
end

Base.pointer(tensor::DLPackTensor) =
    tensor.address == C_NULL ? throw(FeedlaneError(L.FEEDLANE_E_STATE, "this tensor was given away")) : tensor.address

"The address of an exported tensor, whose deleter the caller must call once, on any thread."
function give!(tensor::DLPackTensor)
    address = pointer(tensor)
    tensor.address = C_NULL
    return address
end

# The deleter is the last pointer before the flags of the versioned struct, and the last one of the legacy struct, which
# begins with a DLTensor of 48 bytes.
function delete(tensor::DLPackTensor)
    tensor.address == C_NULL && return
    address = give!(tensor)
    deleter = unsafe_load(Ptr{Ptr{Cvoid}}(address + (tensor.legacy ? 56 : 16)))
    deleter == C_NULL || ccall(deleter, Cvoid, (Ptr{Cvoid},), address)
    return nothing
end
