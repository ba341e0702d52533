# SPDX-License-Identifier: Apache-2.0
# Converts the configuration of a loader from Julia's values to the library's struct.

nanoseconds(seconds) = seconds == Inf ? L.FEEDLANE_FOREVER : round(Int64, seconds * 1e9)

"A table of C strings, and the objects that must be preserved while the table is used."
function table(texts)
    kept = [Base.cconvert(Cstring, String(text)) for text in texts]
    return [[pointer(text) for text in kept]; Ptr{UInt8}(C_NULL)], kept
end

"""
Creates the library's loader and returns its handle. `specs` are the fields. `sampler` is `nothing` for shards. `texts`
are members that are strings; an empty one becomes NULL. `members` are copied into the configuration unchanged.
"""
function create(specs, sampler, maker, argv, worker_config, env, state, pool, texts; members...)
    names = [Base.cconvert(Cstring, spec.name) for spec in specs]
    fields = L.feedlane_field[field_of(spec, pointer(name)) for (spec, name) in zip(specs, names)]
    dataset = maker === nothing ? nothing : table_of(maker)
    arguments, kept_arguments = argv === nothing ? (nothing, nothing) : table(argv)
    variables, kept_variables = env === nothing ? (nothing, nothing) : table(["$name=$value" for (name, value) in env])
    kept_texts = map(text -> Base.cconvert(Cstring, String(text)), texts)
    out = Ref{Ptr{L.feedlane_loader}}(C_NULL)
    kept = (names, fields, dataset, kept_arguments, kept_variables, worker_config, state, sampler, pool, kept_texts)
    GC.@preserve kept arguments variables begin
        config = struct_of(L.feedlane_loader_config; sampler=sampler === nothing ? C_NULL : sampler.address,
            fields=pointer(fields), field_count=length(fields),
            dataset=dataset === nothing ? C_NULL : address_of(dataset),
            argv=arguments === nothing ? C_NULL : pointer(arguments), envp=variables === nothing ? C_NULL : pointer(variables),
            worker_config=pointer(worker_config), worker_config_bytes=length(worker_config),
            state=state === nothing ? C_NULL : pointer(state), state_bytes=state === nothing ? 0 : length(state),
            pinned=pool === nothing ? C_NULL : open_address(pool),
            map(text -> isempty(text) ? C_NULL : pointer(text), kept_texts)..., members...)
        checked(err -> L.feedlane_loader_create(config, out, err))
    end
    return Handle(out[], maker !== nothing, sampler === nothing ? nothing : sampler.order, (maker, pool))
end
