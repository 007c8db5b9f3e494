package generator

import "testing"

// TestHeapOf checks the share of Envoy's heap in the memory that Envoy and its agent may use together.
func TestHeapOf(t *testing.T) {
	const mib = 1 << 20
	tests := map[string]struct{ memory, heap, connections uint64 }{
		"the least that an agent may report": {memory: 16 * mib, heap: 8 * mib, connections: 42},
		"less than the agent usually needs":  {memory: 128 * mib, heap: 64 * mib, connections: 341},
		"a small sidecar":                    {memory: 256 * mib, heap: 160 * mib, connections: 853},
		"an injected sidecar":                {memory: 512 * mib, heap: 384 * mib, connections: 2048},
		"a gateway":                          {memory: 4096 * mib, heap: 3520 * mib, connections: 18773},
		"a machine without a limit":          {memory: 65536 * mib, heap: 57280 * mib, connections: 50000},
		"the most that an agent may report":  {memory: 1 << 50, heap: 1<<50 - 1<<47 - 64*mib, connections: 50000},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := heapOf(tc.memory); got != tc.heap {
				t.Errorf("heapOf(%d) = %d, want %d", tc.memory, got, tc.heap)
			}
			if got := connectionsOf(tc.heap); got != tc.connections {
				t.Errorf("connectionsOf(%d) = %d, want %d", tc.heap, got, tc.connections)
			}
		})
	}
}

// TestOverloadIsValid validates the overload manager for any memory.
func TestOverloadIsValid(t *testing.T) {
	for _, memory := range []uint64{16 << 20, 512 << 20, 1 << 50} {
		if err := overloadManager(memory).ValidateAll(); err != nil {
			t.Errorf("overloadManager(%d): %v", memory, err)
		}
	}
}
