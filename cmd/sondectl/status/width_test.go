package status_test

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer/printertest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

func TestTableFits(t *testing.T) {
	since := time.Unix(0, 0)
	r := &status.Report{Problems: []status.Problem{{
		Severity: status.Critical, Mesh: "default", Objects: []string{"dataplane/" + printertest.Proxy}, Since: &since, Do: "sondectl why dataplane/" + printertest.Proxy,
		What: "outbound not ready: calls fail, or reach another program",
	}}}
	var out printer.Output
	if err := r.Write(&out, printer.Text, false); err != nil {
		t.Fatal(err)
	}
	printertest.Fits(t, out.String())
}
