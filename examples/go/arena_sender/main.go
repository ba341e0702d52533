// SPDX-License-Identifier: Apache-2.0

// Sends three frames into an arena, whose owner may be a program in any language. Usage: arena_sender PATH
package main

import (
	"context"
	"log"
	"os"

	"feedlane"
)

func main() {
	arena, err := feedlane.JoinArena(os.Args[1], 0)
	for n := float32(0); n < 300 && err == nil; n += 100 {
		frame := []float32{n, n + 1, n + 2, n + 10, n + 11, n + 12}
		err = arena.Put(context.Background(), "", feedlane.ArrayOf("frame", frame, 2, 3))
	}
	if err != nil {
		log.Fatal(err)
	}
	arena.Close()
}
