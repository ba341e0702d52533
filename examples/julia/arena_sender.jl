# SPDX-License-Identifier: Apache-2.0
# Sends three frames into an arena, whose owner may be a program in any language. Usage: arena_sender.jl PATH
using Feedlane

arena = join_arena(ARGS[1])
for n in 0:100:200
    frame = Float32[n + 10row + column for column in 0:2, row in 0:1]   # 3×2 here, 2 x 3 in other languages
    put!(arena, (frame=frame,))
end
close(arena)
