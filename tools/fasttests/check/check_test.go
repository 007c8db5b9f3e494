package check_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/sonde-mesh/sonde/tools/fasttests/check"
)

func TestAnalyzer(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), check.Analyzer, "github.com/sonde-mesh/sonde/...")
}
