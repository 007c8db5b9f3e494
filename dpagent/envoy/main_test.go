package envoy

import (
	"os"
	"testing"

	"github.com/sonde-mesh/sonde/internal/slowtest"
)

func TestMain(m *testing.M) {
	slowtest.AtOnce(4)
	os.Exit(m.Run())
}
