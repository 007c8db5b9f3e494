package harness

import (
	"strings"
	"testing"
)

// New is Start for a test. It closes the machine when the test ends. A data race in any of the machine's programs
// fails the test. If the test fails, New prints the logs.
func New(t testing.TB, o Options) *Machine {
	t.Helper()
	m, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		failOnRace(t, m)
		if t.Failed() {
			t.Log(m.Logs(30))
		}
		if err := m.Close(); err != nil {
			t.Errorf("close the mesh: %v", err)
		}
	})
	return m
}

// failOnRace looks for reports of the race detector in all logs.
func failOnRace(t testing.TB, m *Machine) {
	t.Helper()
	logs, err := m.LogFiles()
	if err != nil {
		t.Error(err)
	}
	for name, log := range logs {
		if _, race, found := strings.Cut(log, "WARNING: DATA RACE"); found {
			t.Errorf("data race in %s:%s", name, race)
		}
	}
}
