package envoy

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
)

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "real Envoys read all configuration")
	goleak.VerifyTestMain(m)
}
