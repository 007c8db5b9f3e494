package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// podAPI is a mesh with one pod, whose agent reports these probes. Health is of its endpoint.
func podAPI(health adminv1.Endpoint_Health, probes ...*adminv1.ProbeVerdicts) *fakeAPI {
	a := wellAPI()
	a.restarts = &adminv1.ListRestartsResponse{}
	a.dataplanes[0].Pod = true
	a.dataplanes[0].Object = []byte(`{"type":"Dataplane","mesh":"default","name":"web-5d9c7b8f6d-x2x4z.shop","spec":{"networking":{"address":"10.0.0.1","inbound":[
		{"address":"10.0.0.1","port":8000}]}}}`)
	e := a.services[0].Endpoints[0]
	e.Dataplane, e.Declared, e.Health = "web-5d9c7b8f6d-x2x4z.shop", true, health
	p := a.proxies[0]
	p.Name, p.Verdicts = "web-5d9c7b8f6d-x2x4z.shop", &adminv1.Verdicts{Probes: probes}
	p.Agent.Features = append(p.Agent.Features, agentv1.FeatureVerdicts)
	return a
}

// verdict is a probe that has had a verdict since a minute after at, and before that succeeded. Without a verdict it
// has not been checked.
func verdict(container, probe, verdict, reason string) *adminv1.ProbeVerdicts {
	p := &adminv1.ProbeVerdicts{Container: container, Probe: probe, Reason: reason}
	if verdict != "" {
		p.Total, p.Changes = 2, []*adminv1.VerdictChange{{At: timestamppb.New(at), Verdict: "success"}, {At: timestamppb.New(at.Add(time.Minute)), Verdict: verdict}}
	}
	return p
}

// TestVerdictsOfPods has the agent of a pod report. Nothing passes but what it reports as such.
func TestVerdictsOfPods(t *testing.T) {
	wait := func(a *fakeAPI) {
		a.restarts.Restarts = []*adminv1.Restart{{Namespace: "shop", Pod: "web-5d9c7b8f6d-x2x4z", Container: "app", State: adminv1.Restart_GRANTED, Since: timestamppb.New(at), Why: "granted"}}
	}
	tests := map[string]struct {
		health adminv1.Endpoint_Health
		probes []*adminv1.ProbeVerdicts
		change func(*fakeAPI)
		want   [3]string // startup, liveness, readiness
	}{
		"all pass": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "startup", "success", ""), verdict("app", "liveness", "success", ""), verdict("app", "readiness", "success", "")}, nil,
			[3]string{"passing 1/1", "passing 1/1", "passing 1/1"},
		},
		"one of two fails": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "readiness", "failure", "refused"), verdict("cache", "readiness", "success", "")}, nil,
			[3]string{"no probe 0/0", "no probe 0/0", "failing 1/1 app: refused"},
		},
		"the other verdicts": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "startup", "warning", "stopped redirect"), verdict("app", "liveness", "held", "refused"), verdict("app", "readiness", "errored", "body cut")}, nil,
			[3]string{"warning 1/1 app: stopped redirect", "held 1/1 app: refused", "errored 1/1 app: body cut"},
		},
		"not checked, and of a later version": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "startup", "", ""), verdict("app", "readiness", "unknown", "")}, nil,
			[3]string{"not reported 1/1 app: " + notChecked, "no probe 0/0", "not reported 1/1 app: " + ofLater},
		},
		"the kubelet has stopped asking": {
			adminv1.Endpoint_NOT_READY, []*adminv1.ProbeVerdicts{verdict("app", "liveness", "not asked", ""), verdict("app", "readiness", "not asked", "")}, nil,
			[3]string{"no probe 0/0", "not reported 1/1 app: " + notAsked, "failing 1/1 : " + podNotReady},
		},
		"the kubelet decides": {
			adminv1.Endpoint_NOT_READY, []*adminv1.ProbeVerdicts{verdict("app", "readiness", "success", "")}, nil,
			[3]string{"no probe 0/0", "no probe 0/0", "failing 1/1 : " + podNotReady},
		},
		"without a readiness probe": {adminv1.Endpoint_READY, nil, nil, [3]string{"no probe 0/0", "no probe 0/0", "passing 1/1"}},
		"a restart counts": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "liveness", "failure", "refused"), verdict("cache", "liveness", "success", "")}, wait,
			[3]string{"no probe 0/0", "restarting 1/1 app: granted", "passing 1/1"},
		},
		"more than listed": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "readiness", "success", "")}, func(a *fakeAPI) { a.proxies[0].Verdicts.LeftOut = 1 },
			[3]string{"not reported 1/1", "not reported 1/1", "not reported 1/1"},
		},
		"not reported yet": {adminv1.Endpoint_READY, nil, func(a *fakeAPI) { a.proxies[0].Verdicts = nil }, [3]string{"not reported 1/1", "not reported 1/1", "passing 1/1"}},
		"the agent hangs": {
			adminv1.Endpoint_READY, []*adminv1.ProbeVerdicts{verdict("app", "startup", "success", ""), verdict("app", "liveness", "success", "")},
			func(a *fakeAPI) { a.proxies[0].Agent.Unresponsive = true }, [3]string{"not reported 1/1", "not reported 1/1", "passing 1/1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := podAPI(tc.health, tc.probes...)
			if tc.change != nil {
				tc.change(api)
			}
			row := workloads(t, api).Rows[0]
			var got [3]string
			for i, cell := range []*Cell{row.Startup, row.Liveness, row.Readiness} {
				got[i] = fmt.Sprintf("%s %d/%d", cell.State, cell.Count, cell.Total)
				if len(cell.Findings) > 0 && cell.State == cell.Findings[0].State && cell.State != Passing {
					got[i] += " " + cell.Findings[0].Container + ": " + cell.Findings[0].Reason
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the cells (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMoreProbesThanListedAreAProblem(t *testing.T) {
	api := podAPI(adminv1.Endpoint_READY)
	api.proxies[0].Verdicts.LeftOut = 2
	s := newSource(callOf(api), noClusters)
	if err := s.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, data, _ := s.section("problems"); !strings.Contains(string(data), "2 probes are not included") {
		t.Errorf("the problems are %s", data)
	}
}

func TestChangesOfAProbe(t *testing.T) {
	probe := verdict("app", "readiness", "failure", "refused")
	probe.Total = 12
	first := verdict("app", "liveness", "success", "")
	first.Changes, first.Total = first.Changes[:1], 1
	row := workloads(t, podAPI(adminv1.Endpoint_READY, probe, first)).Rows[0]
	f := row.Readiness.Findings[0]
	want := []Change{{at, Passing}, {at.Add(time.Minute), Failing}}
	if diff := cmp.Diff(want, f.Changes); diff != "" || f.Earlier != 10 || f.AtLeast || !f.Since.Equal(at.Add(time.Minute)) || !row.Readiness.Since.Equal(*f.Since) {
		t.Errorf("the finding is %+v: %s", f, diff)
	}
	if f := row.Liveness.Findings[0]; !f.AtLeast || !row.Liveness.AtLeast || !f.Since.Equal(at) {
		t.Errorf("the first verdict since the agent started is %+v", f)
	}
}

// The agent says since when the application of an inbound fails, also if the control plane has just started.
func TestSinceOfAnInbound(t *testing.T) {
	api := wellAPI()
	api.dataplanes[0].Inbounds[0].Since = nil
	probe := verdict("", "readiness", "success", "")
	probe.Inbound = "10.0.0.1:8000"
	api.proxies[0].Verdicts = &adminv1.Verdicts{Probes: []*adminv1.ProbeVerdicts{probe}}
	cell := workloads(t, api).Rows[0].Readiness
	if cell.State != Passing || cell.Since == nil || !cell.Since.Equal(at.Add(time.Minute)) || len(cell.Findings[0].Changes) != 2 {
		t.Errorf("the cell is %+v", cell)
	}
}
