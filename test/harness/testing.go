package harness

import "testing"

// New is Start for a test: the machine is closed when the test ends, and the logs are shown if it failed.
func New(t testing.TB, o Options) *Machine {
	t.Helper()
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Logs(30))
		}
		if err := m.Close(); err != nil {
			t.Errorf("close the mesh: %v", err)
		}
	})
	return m
}
