package dashboard

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

func TestLevelsOfServices(t *testing.T) {
	const ready, draining, out = adminv1.Endpoint_READY, adminv1.Endpoint_DRAINING, adminv1.Endpoint_NOT_READY
	endpoints := func(all ...adminv1.Endpoint_Health) (of []*adminv1.Endpoint) {
		for i, h := range all {
			of = append(of, &adminv1.Endpoint{Address: fmt.Sprintf("10.0.0.%d:80", i+1), Health: h})
		}
		return of
	}
	unchecked, lost, last := endpoints(ready, ready), endpoints(ready), endpoints(draining)
	unchecked[1].Unchecked = true
	lost[0].AgentLostSince = timestamppb.New(at)
	last[0].GetsTraffic = true
	frozen, drained := endpoints(ready, ready), endpoints(ready, draining)
	frozen[1].Reason, drained[1].Reason = mesh.FrozenReason+"its node is not seen", mesh.FrozenReason+"its node is not seen"
	tests := map[string]struct {
		endpoints []*adminv1.Endpoint
		called    bool
		want      Level
		first     string // endpoint that is listed first
	}{
		"all are ready":             {endpoints(ready, ready), true, Good, "10.0.0.1:80"},
		"one is out":                {endpoints(ready, out), true, Warn, "10.0.0.2:80"},
		"one drains":                {endpoints(ready, draining), true, Warn, "10.0.0.2:80"},
		"the last one drains":       {last, true, Warn, "10.0.0.1:80"},
		"all are out":               {endpoints(out, out), false, Bad, "10.0.0.1:80"},
		"one is unchecked":          {unchecked, true, Unknown, "10.0.0.2:80"},
		"the agent is lost":         {lost, true, Unknown, "10.0.0.1:80"},
		"one is frozen":             {frozen, true, Unknown, "10.0.0.2:80"},
		"one is frozen, and drains": {drained, true, Warn, "10.0.0.2:80"},
		"no endpoint, and no call":  {nil, false, Unknown, ""},
		"no endpoint, and calls":    {nil, true, Bad, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			row := serviceOf(&adminv1.Service{Endpoints: tc.endpoints}, tc.called)
			first := ""
			if len(row.Endpoints) > 0 {
				first = row.Endpoints[0].Address
			}
			if row.Level != tc.want || first != tc.first {
				t.Errorf("it is %s, first %q, want %s, %q", row.Level, first, tc.want, tc.first)
			}
		})
	}
}

func TestServiceWithManyEndpoints(t *testing.T) {
	s := &adminv1.Service{}
	for range maxEndpoints + 2 {
		s.Endpoints = append(s.Endpoints, &adminv1.Endpoint{Health: adminv1.Endpoint_READY})
	}
	s.Endpoints = append(s.Endpoints, &adminv1.Endpoint{Reason: "its proxy has never joined"})
	row := serviceOf(s, true)
	if len(row.Endpoints) != maxEndpoints || row.LeftOut != 3 || row.Total != maxEndpoints+3 || row.Ready != maxEndpoints+2 || row.Endpoints[0].Reason == "" {
		t.Errorf("%d endpoints, %d left out, ready %d/%d, first %+v", len(row.Endpoints), row.LeftOut, row.Ready, row.Total, row.Endpoints[0])
	}
}

// A proxy is as bad as the worst that status says of it.
func TestLevelsOfProxies(t *testing.T) {
	problem := func(s status.Severity, of string) status.Problem {
		return status.Problem{Severity: s, Objects: []string{of}, What: string(s)}
	}
	tests := map[string]struct {
		problems []status.Problem
		want     Level
		notes    []string
	}{
		"well":                 {nil, Good, nil},
		"a note":               {[]status.Problem{problem(status.Note, "dataplane/web-1")}, Good, []string{"note"}},
		"a warning":            {[]status.Problem{problem(status.Warning, "dataplane/web-1")}, Warn, []string{"warning"}},
		"an error, then other": {[]status.Problem{problem(status.Error, "service/web"), problem(status.Warning, "dataplane/web-1")}, Bad, []string{"service/web: error", "warning"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			row := proxyOf(wellAPI().proxies[0], tc.problems)
			if row.Level != tc.want || !slices.Equal(row.Notes, tc.notes) {
				t.Errorf("it is %s: %q, want %s: %q", row.Level, row.Notes, tc.want, tc.notes)
			}
			if row.Synced != 2 || row.Types != 2 || !row.Envoy || row.Agent != "connected" {
				t.Errorf("the row is %+v", row)
			}
		})
	}
}

func TestRestartsAreListedWorstFirst(t *testing.T) {
	list := &adminv1.ListRestartsResponse{Guarded: 9, Round: &adminv1.RestartRound{Replica: "sonde-cp-a", Mode: "enforce", BreakerOpen: true, Failed: 3, Workloads: 2}}
	for range maxListed {
		list.Restarts = append(list.Restarts, &adminv1.Restart{State: adminv1.Restart_RESTARTING})
	}
	list.Restarts = append(list.Restarts, &adminv1.Restart{
		Namespace: "shop", Pod: "web-0", State: adminv1.Restart_WAITING, Decision: &adminv1.RestartDecision{Count: 1, Limit: 2},
	}, &adminv1.Restart{Workload: "Deployment/shop/web", State: adminv1.Restart_UNHELPFUL})
	got := restartsOf(list)
	if first := got.Rows[0]; first.State != "waiting" || first.Level != Bad || first.Count != 1 || first.Limit != 2 || first.Do != "sondectl restarts explain web-0 -n shop" {
		t.Errorf("the first is %+v", first)
	}
	if second := got.Rows[1]; second.Level != Bad || second.Do != "sondectl restarts release Deployment/shop/web, after you have fixed the cause" {
		t.Errorf("the second is %+v", second)
	}
	if len(got.Rows) != maxListed || got.LeftOut != 2 || !got.Round.Open || len(got.Notes) != 1 {
		t.Errorf("%d rows, %d left out, round %+v, notes %q", len(got.Rows), got.LeftOut, got.Round, got.Notes)
	}
	if none := restartsOf(nil); none.Kubernetes || none.Round != nil {
		t.Errorf("without Kubernetes: %+v", none)
	}
}

func TestControlPlane(t *testing.T) {
	f := &status.Facts{
		Health: []*adminv1.HealthCheck{
			{Group: "livez", Name: "loop"}, {Group: "readyz", Name: "store", Status: adminv1.HealthCheck_WARNING, Reason: "slow", Changes: []*adminv1.HealthChange{{At: timestamppb.New(at), Status: adminv1.HealthCheck_OK}}},
		},
		Proxies: append(wellAPI().proxies, wellAPI().proxies...), Missing: []string{"sonde-cp-b"},
	}
	got := planeOf(f, true)
	if got.Checks[0].Level != Unknown || got.Checks[1].Level != Warn || got.Checks[1].Changes[0].Level != Good || !slices.Equal(got.Missing, f.Missing) {
		t.Errorf("it is %+v", got)
	}
	if !slices.Equal(got.Agents, []Version{{"0.2.0", 2}}) || !slices.Equal(got.Envoys, []Version{{"1.40.0", 2}}) {
		t.Errorf("agents %v, Envoys %v", got.Agents, got.Envoys)
	}
	if unknown := planeOf(f, false); unknown.Agents != nil || unknown.Envoys != nil {
		t.Errorf("the proxies are not known, and there are %v, %v", unknown.Agents, unknown.Envoys)
	}
}
