package dashboard

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// workloads returns the matrix of an API.
func workloads(t *testing.T, api adminv1.AdminServiceClient) *Workloads {
	t.Helper()
	s := newSource(callOf(api), noClusters)
	if err := s.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, data, _ := s.section("workloads")
	var found Workloads
	if err := json.Unmarshal(data, &found); err != nil {
		t.Fatal(err)
	}
	return &found
}

// TestStatesOfServiceProbes has the only probe of a workload on a machine in each state. Only an agent that is there,
// and reports, makes it pass.
func TestStatesOfServiceProbes(t *testing.T) {
	agent := func(p adminv1.AgentState_Phase) func(*fakeAPI) {
		return func(a *fakeAPI) { a.proxies[0].AgentState.Phase = p }
	}
	nothing := func(*fakeAPI) {}
	draining := ready()
	draining.Health = adminv1.Endpoint_DRAINING
	tests := map[string]struct {
		probe  string
		health *adminv1.InboundHealth
		change func(*fakeAPI)
		want   State
		reason string
	}{
		"it passes":               {tcpProbe, ready(), nothing, Passing, ""},
		"it passes, and drains":   {tcpProbe, draining, nothing, Passing, ""},
		"it fails":                {tcpProbe, notReady(mesh.ProbeFailedReason + "connection refused"), nothing, Failing, "connection refused"},
		"it has no verdict":       {tcpProbe, notReady(mesh.ProbeWithoutVerdictReason + "no descriptor"), nothing, Errored, "no descriptor"},
		"it is not reported yet":  {tcpProbe, notReady("the agent has not reported its application yet"), nothing, Unreported, "the agent has not reported its application yet"},
		"another reason":          {tcpProbe, notReady("its Envoy has not accepted the listener yet"), nothing, Unreported, "its Envoy has not accepted the listener yet"},
		"nothing checks it":       {"", ready(), nothing, Unchecked, "inbound 10.0.0.1:8000 has no serviceProbe: it gets traffic whether its application answers or not"},
		"an unknown kind":         {`,"serviceProbe":{"of a later version":{}}`, ready(), nothing, Unreported, "its serviceProbe is of a kind that this sondectl does not support"},
		"its agent never joined":  {tcpProbe, notReady("its proxy has never joined"), agent(adminv1.AgentState_NEVER_JOINED), Unreported, "its proxy has never joined"},
		"its agent has ended":     {tcpProbe, ready(), agent(adminv1.AgentState_RECONNECTING), Unreported, "not connected: the session has just ended, or the control plane has just started, and the agent has not reconnected yet"},
		"its agent hangs":         {tcpProbe, ready(), func(a *fakeAPI) { a.proxies[0].Agent.Unresponsive = true }, Unreported, "its agent is connected, but does not respond"},
		"its agent is too old":    {tcpProbe, ready(), func(a *fakeAPI) { a.proxies[0].Agent.Features = nil }, Unreported, "its agent is too old to report probes"},
		"its proxy is not listed": {tcpProbe, ready(), func(a *fakeAPI) { a.proxies = nil }, Unreported, "its agent is not connected"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := wellAPI()
			api.dataplanes, api.proxies, api.services = nil, nil, nil
			api.add("web-1", "web", tc.probe, tc.health)
			tc.change(api)
			row := workloads(t, api).Rows[0]
			cell := row.Readiness
			if cell.State != tc.want || cell.Count != 1 || cell.Total != 1 {
				t.Fatalf("the cell is %+v, want %s", cell, tc.want)
			}
			if got := cell.Findings[0]; got.Reason != tc.reason || (got.Do != "sondectl why dataplane/web-1 --mesh default") != (tc.want == Passing) {
				t.Errorf("reason %q, do %q, want %q", got.Reason, got.Do, tc.reason)
			}
			if row.Startup.State != NoProbe || row.Liveness.State != NoProbe {
				t.Errorf("startup %s, liveness %s", row.Startup.State, row.Liveness.State)
			}
			if known := tc.want == Passing || tc.want == Failing || tc.want == Errored; known != (cell.Since != nil && cell.Since.Equal(at)) && tc.want != Unreported {
				t.Errorf("since %v", cell.Since)
			}
		})
	}
}

func TestProbeAsWritten(t *testing.T) {
	got := workloads(t, wellAPI()).Rows[0].Readiness.Findings[0]
	if want := "tcpSocket :80 every 1s, timeout 1s, not ready after 3 failures"; got.Probe != want {
		t.Errorf("the probe is %q, want %q", got.Probe, want)
	}
	if want := "tcpSocket 127.0.0.1:80"; got.Asks != want {
		t.Errorf("the agent asks %q, want %q", got.Asks, want)
	}
}

// The worst of several instances comes first, and is counted.
func TestInstancesOfAWorkload(t *testing.T) {
	api := wellAPI()
	api.add("web-2", "web", tcpProbe, notReady(mesh.ProbeFailedReason+"HTTP 500"))
	api.add("web-3", "web", tcpProbe, ready())
	found := workloads(t, api)
	if len(found.Rows) != 1 {
		t.Fatalf("%d workloads, want one", len(found.Rows))
	}
	cell := found.Rows[0].Readiness
	if cell.State != Failing || cell.Count != 1 || cell.Total != 3 || cell.Findings[0].Instance != "web-2" || found.Rows[0].Instances != 3 {
		t.Errorf("the cell is %+v", cell)
	}
}

func TestProbesOfPods(t *testing.T) {
	pod := func(a *fakeAPI) {
		a.proxies[0].Name = "web-5d9c7b8f6d-x2x4z.shop"
		e := a.services[0].Endpoints[0]
		e.Dataplane, e.Declared = "web-5d9c7b8f6d-x2x4z.shop", true
		a.dataplanes[0].Pod = true
		a.dataplanes[0].Object = []byte(`{"type":"Dataplane","mesh":"default","name":"web-5d9c7b8f6d-x2x4z.shop","spec":{"networking":{"address":"10.0.0.1","inbound":[
			{"address":"10.0.0.1","port":8000}]}}}`)
	}
	restart := func(a *fakeAPI, state adminv1.Restart_State) {
		a.restarts.Restarts = []*adminv1.Restart{{
			Namespace: "shop", Pod: "web-5d9c7b8f6d-x2x4z", Container: "app", State: state, Since: timestamppb.New(at), Why: "one restarts at a time", Failure: "HTTP 500",
		}}
	}
	tests := map[string]struct {
		change              func(*fakeAPI)
		liveness, readiness State
		reason              string // of liveness
	}{
		"Ready":            {func(a *fakeAPI) { pod(a) }, Unreported, Passing, tooOld},
		"held":             {func(a *fakeAPI) { pod(a); restart(a, adminv1.Restart_WAITING) }, Held, Passing, "one restarts at a time: HTTP 500"},
		"does not help":    {func(a *fakeAPI) { pod(a); restart(a, adminv1.Restart_UNHELPFUL) }, Held, Passing, "one restarts at a time: HTTP 500"},
		"granted":          {func(a *fakeAPI) { pod(a); restart(a, adminv1.Restart_GRANTED) }, Restarting, Passing, "one restarts at a time: HTTP 500"},
		"restarts hidden":  {func(a *fakeAPI) { pod(a); a.errs["restarts"] = errForbidden }, Unreported, Passing, "restarts could not be read: not allowed"},
		"stopped":          {func(a *fakeAPI) { pod(a); a.dataplanes[0].Stopped = true }, Unreported, Unreported, tooOld},
		"by a MeshService": {func(a *fakeAPI) { pod(a); a.services[0].Endpoints[0].Declared = false }, Unreported, Unreported, tooOld},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := wellAPI()
			api.restarts = &adminv1.ListRestartsResponse{}
			tc.change(api)
			row := workloads(t, api).Rows[0]
			if row.Namespace != "shop" || row.Name != "web" {
				t.Errorf("the workload is %s/%s", row.Namespace, row.Name)
			}
			if row.Startup.State != Unreported || row.Liveness.State != tc.liveness || row.Readiness.State != tc.readiness {
				t.Errorf("startup %s, liveness %s, readiness %s, want %s, %s, %s", row.Startup.State, row.Liveness.State, row.Readiness.State, Unreported, tc.liveness, tc.readiness)
			}
			got := row.Liveness.Unreported
			if tc.liveness != Unreported {
				got = row.Liveness.Findings[0].Reason
			}
			if got != tc.reason || row.Liveness.Count != 1 || row.Liveness.Total != 1 {
				t.Errorf("the reason is %q of %d/%d, want %q", got, row.Liveness.Count, row.Liveness.Total, tc.reason)
			}
			if got := row.Readiness.Findings[0].Reason; tc.readiness == Passing && got != podReady {
				t.Errorf("readiness passes because %q", got)
			}
		})
	}
}

// A pod whose restart is withheld is the worst of its workload. What is not reported of the others stays so.
func TestHeldPodAmongOthers(t *testing.T) {
	cell := &Cell{}
	cell.miss("web-1", tooOld)
	cell.add(Finding{Instance: "web-2", State: Held})
	cell.miss("web-3", tooOld)
	if cell.finish(); cell.State != Held || cell.Count != 1 || cell.Total != 3 || cell.Unreported != tooOld {
		t.Errorf("the cell is %+v", cell)
	}
	cell = &Cell{}
	cell.add(Finding{Instance: "web-2", State: Passing})
	cell.miss("web-1", tooOld)
	if cell.finish(); cell.State != Unreported || cell.Count != 1 || cell.Total != 2 {
		t.Errorf("the cell is %+v", cell)
	}
}

// A cell counts instances, and says "at least" if one of them may have had the state before.
func TestSinceOfACell(t *testing.T) {
	early, late := at, at.Add(time.Minute)
	tests := map[string]struct {
		findings     []Finding
		since        *time.Time
		atLeast      bool
		count, total int
	}{
		"two probes of one instance": {[]Finding{{Instance: "a", State: Failing, Since: &late}, {Instance: "a", State: Failing}, {Instance: "b", State: Passing}}, &late, false, 1, 2},
		"one without a begin":        {[]Finding{{Instance: "a", State: Failing, Since: &late}, {Instance: "b", State: Failing}}, &late, true, 2, 2},
		"none with a begin":          {[]Finding{{Instance: "a", State: Failing}, {Instance: "b", State: Passing, Since: &early}}, nil, false, 1, 2},
		"a later one is older":       {[]Finding{{Instance: "a", State: Failing, Since: &early}, {Instance: "b", State: Failing, Since: &late, AtLeast: true}}, &early, true, 2, 2},
		"of the other state":         {[]Finding{{Instance: "a", State: Failing, Since: &late}, {Instance: "b", State: Passing, Since: &early, AtLeast: true}}, &late, false, 1, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cell := &Cell{}
			for _, f := range tc.findings {
				cell.add(f)
			}
			cell.finish()
			if cell.AtLeast != tc.atLeast || cell.Count != tc.count || cell.Total != tc.total || !reflect.DeepEqual(cell.Since, tc.since) {
				t.Errorf("the cell is %+v", cell)
			}
		})
	}
}

func TestOwnersOfPods(t *testing.T) {
	for pod, want := range map[string]string{
		"web-5d9c7b8f6d-x2x4z": "web", "my-web-7f4c9d-bcdfg": "my-web", "db-0": "db", "db-12": "db", "agent-x2x4z": "agent", "alone": "alone", "my-pod": "my-pod",
		"job-29": "job", "api-v2-6c8f5d7b9-2xkqw": "api-v2", "-": "-", "": "",
	} {
		if got := ownerOf(pod); got != want {
			t.Errorf("ownerOf(%q) = %q, want %q", pod, got, want)
		}
	}
}
