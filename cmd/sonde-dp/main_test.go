package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/logging"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noGuard lets the test process answer probes without a guard.
func noGuard(logging.Format) error { return nil }
