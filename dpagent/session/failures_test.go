package session

import (
	"fmt"
	"testing"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestFailuresAreGathered(t *testing.T) {
	f := NewFailures()
	for i := range 3 {
		f.Add(probe.Failure{Container: "app", Probe: "liveness", Verdict: "failure", Class: probe.Timeout, Reason: fmt.Sprint("reason ", i)})
	}
	f.Add(probe.Failure{Container: "app", Probe: "liveness", Verdict: "failure", Class: probe.HTTPStatus, Reason: "status"})
	got := map[string]string{}
	for _, one := range f.take().GetFailures() {
		got[one.GetClass()] = fmt.Sprint(one.GetCount(), " ", one.GetReason())
	}
	if len(got) != 2 || got["Timeout"] != "3 reason 2" || got["HTTPStatus"] != "1 status" {
		t.Errorf("reported are %v", got)
	}
	if again := f.take(); len(again.GetFailures()) != 0 {
		t.Errorf("reported twice: %v", again)
	}
}

func TestManyFailuresComeInSeveralReports(t *testing.T) {
	f := NewFailures()
	for i := range 2*agentv1.MaxReported + 1 {
		f.Add(probe.Failure{Container: fmt.Sprint("app-", i)})
	}
	seen := map[string]bool{}
	for range 3 {
		select {
		case <-f.wake:
		default:
			t.Fatalf("more failures are pending without a wake-up: %d are reported", len(seen))
		}
		for _, one := range f.take().GetFailures() {
			seen[one.GetContainer()] = true
		}
	}
	if len(seen) != 2*agentv1.MaxReported+1 {
		t.Errorf("%d failures are reported", len(seen))
	}
	select {
	case <-f.wake:
		t.Error("woken without a pending report")
	default:
	}
}
