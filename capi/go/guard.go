// SPDX-License-Identifier: Apache-2.0

// Keeps a handle of C valid until the last call that uses it has returned.

package feedlane

import "sync/atomic"

const guardClosed = 1 << 62

// A guard counts the calls that use a handle.
//
// Thread safety: any goroutine.
type guard struct{ state atomic.Int64 }

// enter begins a call, which leave must end in every case. It returns false if the handle was closed.
func (g *guard) enter() bool { return g.state.Add(1)&guardClosed == 0 }

// leave ends a call. It returns true if the handle was closed and this was the last call in progress.
func (g *guard) leave() bool { return g.state.Add(-1) == guardClosed }

// close refuses further calls, and begins a call, which leave must end. It returns false if the handle was closed
// before.
func (g *guard) close() bool {
	for {
		state := g.state.Load()
		if state&guardClosed != 0 {
			return false
		}
		if g.state.CompareAndSwap(state, state+1|guardClosed) {
			return true
		}
	}
}
