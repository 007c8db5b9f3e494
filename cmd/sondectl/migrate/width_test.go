package migrate

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer/printertest"
)

func TestTablesFit(t *testing.T) {
	count := Count{Pods: 12, Ready: 10, Restarts: 100, ToRoll: 12, Modes: map[Mode]int{PerPort: 6, KumaProxy: 6}}
	status := &Status{Total: count, Workloads: []WorkloadStatus{{
		Namespace: "sonde-system", Kind: "StatefulSet", Name: "application", To: mesh.ProbesPerPort, Count: count, Roll: []string{printertest.Pod},
	}}}
	plan := &Plan{Workloads: []WorkloadPlan{{Kind: "Deployment", Name: "web", Probes: []ProbePlan{{
		Container: "application", Type: mesh.ProbeReadiness, Written: "httpGet HTTPS :8443 /healthz/ready",
		Now: []string{"httpGet HTTPS :9000 /8443/healthz/ready"}, Then: "GET :9000/8443/healthz/ready, 600 s, 5 failures",
	}}}}}
	for name, write := range map[string]func(*printer.Output){
		"status": func(out *printer.Output) { writeStatus(out, status) },
		"plan":   func(out *printer.Output) { writePlan(out, plan) },
	} {
		t.Run(name, func(t *testing.T) {
			var out printer.Output
			write(&out)
			printertest.Fits(t, out.String())
		})
	}
}
