# SPDX-License-Identifier: Apache-2.0
# Reads JSON as the record of the interface has it: objects in their order, arrays, strings, integers, booleans, null.
module JSON

struct Reader
    text::String
    at::Base.RefValue{Int}
end

parse(text::AbstractString) = value(Reader(String(text), Ref(1)))

peek(r::Reader) = r.text[r.at[]]

function next_token(r::Reader)
    while isspace(peek(r))
        r.at[] += 1
    end
    return peek(r)
end

function expect(r::Reader, literal::String)
    startswith(SubString(r.text, r.at[]), literal) || error("JSON: $literal expected at byte $(r.at[])")
    r.at[] += ncodeunits(literal)
end

function value(r::Reader)
    first = next_token(r)
    first == '{' && return object(r)
    first == '[' && return array(r)
    first == '"' && return string(r)
    first == 't' && (expect(r, "true"); return true)
    first == 'f' && (expect(r, "false"); return false)
    first == 'n' && (expect(r, "null"); return nothing)
    found = match(r"-?[0-9]+", r.text, r.at[])
    (found === nothing || found.offset != r.at[]) && error("JSON: a value expected at byte $(r.at[])")
    r.at[] += ncodeunits(found.match)
    return Base.parse(Int, found.match)
end

function string(r::Reader)
    found = match(r"\"((?:[^\"\\]|\\.)*)\"", r.text, r.at[])
    r.at[] += ncodeunits(found.match)
    return unescape_string(found.captures[1])
end

"The elements of an array or object, each read by `element`, up to `closing`."
function each(element, r::Reader, closing::Char)
    r.at[] += 1
    while next_token(r) != closing
        element()
        next_token(r) == ',' && (r.at[] += 1)
    end
    r.at[] += 1
end

function array(r::Reader)
    values = []
    each(() -> push!(values, value(r)), r, ']')
    return values
end

"An object as a vector of pairs, so that the order is that of the file."
function object(r::Reader)
    pairs = Pair{String,Any}[]
    each(r, '}') do
        key = string(r)
        next_token(r)
        expect(r, ":")
        push!(pairs, key => value(r))
    end
    return pairs
end

"The value of `key` in an object."
function get(pairs::Vector{Pair{String,Any}}, key, default=nothing)
    found = findfirst(pair -> pair.first == key, pairs)
    return found === nothing ? default : pairs[found].second
end

end
