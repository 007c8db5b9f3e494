package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/testing/golden"
)

// faults adds faults to the facts of a healthy mesh. testdata has the expected reports.
var faults = map[string]func(*status.Facts){
	"well": func(*status.Facts) {},
	"unchecked": func(f *status.Facts) {
		f.Services[1].Endpoints[0].Unchecked = true
	},
	"control-plane-not-ready": func(f *status.Facts) {
		*f = status.Facts{Now: now, Unready: errNotRead, Health: []*adminv1.HealthCheck{
			{Group: "readyz", Name: "synced", Status: adminv1.HealthCheck_FAILED, Reason: "pods: not read yet: forbidden", Changes: []*adminv1.HealthChange{{At: ago(time.Hour)}, {At: ago(time.Minute)}}},
		}}
	},
	"store-away": func(f *status.Facts) {
		f.Health = append(f.Health, &adminv1.HealthCheck{
			Group: "readyz", Name: "store", Status: adminv1.HealthCheck_WARNING, Reason: "unreachable for 3m, serving the last state", Changes: []*adminv1.HealthChange{{At: ago(3 * time.Minute)}},
		})
	},
	"replica-missing":  func(f *status.Facts) { f.Missing = []string{"sonde-cp-b"} },
	"not-asked":        func(f *status.Facts) { f.NotAsked = []string{"restarts: get restarts of sonde.dev is not allowed"} },
	"more-than-listed": func(f *status.Facts) { f.LeftOut["proxies"], f.LeftOut["probes"] = 12, 34 },
	"mesh-lost":        meshLost,
	"mesh-lost-checked": func(f *status.Facts) {
		meshLost(f)
		f.Health = append(f.Health, &adminv1.HealthCheck{Group: "readyz", Name: "meshes", Status: adminv1.HealthCheck_WARNING, Reason: f.Specs[0].LostError().Error()})
	},
	"mode-not-recorded": func(f *status.Facts) {
		meshLost(f)
		f.Health = append(f.Health, &adminv1.HealthCheck{
			Group: "readyz", Name: "meshes", Status: adminv1.HealthCheck_WARNING, Reason: f.Specs[0].LostError().Error() + "\nrecord mode of mesh \"shop\": no space left on device",
		})
	},
	"files-rejected": func(f *status.Facts) {
		f.Problems = []*adminv1.Problem{
			{File: "/mesh/b.yaml", Document: 1, Line: 4, Text: "inbund: is an unknown field: did you mean inbound?", Since: ago(time.Minute)},
			{File: "/mesh/c.yaml", Document: 2, Line: 9, Text: `mesh: "shpo": must be the name of a Mesh: default`, Object: "dataplane/c-1", Mesh: "shpo", Since: ago(time.Hour)},
			{File: "/mesh", Warning: true, Text: "no Mesh found"},
		}
	},
	"objects-rejected": func(f *status.Facts) {
		onKubernetes(f)
		f.Problems = []*adminv1.Problem{
			{File: "dataplanes/shop/vm-1", Text: "spec.networking.address: is missing", Object: "dataplane/vm-1.shop", Since: ago(time.Minute)},
			{File: "meshes/prod", Text: "spec.mtls.enabledBackend: must be one of the backends", Object: "mesh/prod"},
		}
	},
	"application-fails":      func(f *status.Facts) { unready(f, "application probe failed: GET /ready: 500", 1) },
	"all-applications-fail":  func(f *status.Facts) { unready(f, "application probe failed: GET /ready: 500", 1, 2) },
	"uncalled-service-fails": func(f *status.Facts) { unready(f, "health.ready is false", 0) },
	"unknown-service-called": func(f *status.Facts) {
		f.Services = append(f.Services, &adminv1.Service{Mesh: "default", Name: "bd", Reasons: []string{`no Dataplane has an inbound with kuma.io/service bd: did you mean "db"?`, "calls fail: named by an outbound of web-1"}})
		f.Problems = []*adminv1.Problem{{Warning: true, Text: "an outbound of web-1 names service bd", Object: "service/bd", Mesh: "default"}}
		calls(f, 0, "bd")
	},
	"service-rejected": func(f *status.Facts) {
		f.Services = append(f.Services, &adminv1.Service{Mesh: "default", Name: "batch", Reasons: []string{"its Service names no endpoint"}})
		f.Problems = []*adminv1.Problem{
			{File: "/mesh/s.yaml", Document: 1, Text: "spec.protocol: must be one of http, tcp", Object: "service/batch", Mesh: "default"},
			{Warning: true, Text: "an outbound of web-1 names service batch", Object: "service/batch", Mesh: "shop"},
		}
	},
	"service-of-no-replicas": func(f *status.Facts) {
		f.Services = append(f.Services, &adminv1.Service{Mesh: "default", Name: "batch", Reasons: []string{"its Service names no endpoint"}})
	},
	"endpoint-without-sidecar": func(f *status.Facts) {
		f.Services[0].Endpoints = append(f.Services[0].Endpoints, &adminv1.Endpoint{Address: "10.0.0.9:80", Health: adminv1.Endpoint_NOT_READY, Reason: "health.ready is false"})
	},
	"inbound-refused": func(f *status.Facts) {
		unready(f, "its Envoy refuses the listener: cannot bind '10.0.0.2:80': Address already in use", 1)
		refuses(f, 1, "inbound:10.0.0.2:80", "cannot bind '10.0.0.2:80': Address already in use")
	},
	"outbound-refused": func(f *status.Facts) {
		o := f.Dataplanes[0].Outbounds[0]
		o.Health, o.Reason, o.Since = adminv1.Endpoint_NOT_READY, "its Envoy refuses the listener: cannot bind '127.0.0.1:10001': Address already in use", ago(time.Minute)
		refuses(f, 0, "outbound:127.0.0.1:10001", "cannot bind '127.0.0.1:10001': Address already in use")
	},
	"cluster-refused": func(f *status.Facts) { refuses(f, 0, "db", "no such extension") },
	"agent-lost":      func(f *status.Facts) { phase(f, 1, adminv1.AgentState_LOST, "") },
	"agents-lost":     manyLost,
	"agent-away":      func(f *status.Facts) { phase(f, 1, adminv1.AgentState_RECONNECTING, "") },
	"agent-hangs":     func(f *status.Facts) { f.Proxies[1].Agent.Unresponsive = true },
	"agent-has-stopped": func(f *status.Facts) {
		phase(f, 1, adminv1.AgentState_STOPPED, "")
		f.Dataplanes[1].Stopped, f.Dataplanes[1].Inbounds[0].Health, f.Services[0].Endpoints[0].Health = true, adminv1.Endpoint_STOPPED, adminv1.Endpoint_STOPPED
	},
	"agent-never-joined": func(f *status.Facts) {
		phase(f, 1, adminv1.AgentState_NEVER_JOINED, "")
		unready(f, "its proxy has never joined", 1)
	},
	"token-expired": func(f *status.Facts) { phase(f, 1, adminv1.AgentState_WAITING, "the token has expired") },
	"second-agent": func(f *status.Facts) {
		phase(f, 1, adminv1.AgentState_CONNECTED, "duplicate: another agent with this name is connected")
	},
	"other-workload": func(f *status.Facts) {
		f.Proxies[1].OtherWorkload = `the certificate is for workload "api", the Dataplane has workload "db"`
		unready(f, f.Proxies[1].GetOtherWorkload(), 1)
	},
	"no-dataplane": func(f *status.Facts) {
		f.Proxies = append(f.Proxies, &adminv1.Proxy{Mesh: "default", Name: "early", AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_WAITING, Since: ago(time.Minute), Refusal: `dataplane "early" is not known (yet)`}})
	},
	"beyond-the-share": func(f *status.Facts) {
		f.Proxies = append(f.Proxies, &adminv1.Proxy{Mesh: "default", Name: "web-1.shop", AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_WAITING, Since: ago(time.Minute), Refusal: "its pod " + podcause.NotCounted + "only the oldest pods of a namespace do"}})
	},
	"envoy-down": func(f *status.Facts) { f.Proxies[1].Agent.EnvoyDown = "run envoy: exit status 1" },
	"calls-refused": func(f *status.Facts) {
		f.Proxies[1].Agent.Refused = []string{"upgrades to protocols that Envoy does not know, inbound 8080: 1 in the last minute"}
	},
	"envoy-not-connected": func(f *status.Facts) { f.Proxies[1].Streams = nil },
	"versions": func(f *status.Facts) {
		f.Proxies[1].Agent.VersionSkew, f.Proxies[2].Agent.EnvoyVersion = "agent v0.1.0 is too old", "1.20.0"
	},
	"certificate-not-renewed": func(f *status.Facts) { f.Proxies[1].Agent.CertificateExpires = ago(-time.Hour) },
	"certificate-expired":     func(f *status.Facts) { f.Proxies[1].Agent.CertificateExpires = ago(time.Hour) },
	"ca-expires":              func(f *status.Facts) { f.Meshes[0].CaExpires = ago(-24 * time.Hour) },
	"ca-expired":              func(f *status.Facts) { f.Meshes[0].CaExpires = ago(time.Minute) },
	"drained": func(f *status.Facts) {
		f.Proxies[1].Draining, f.Proxies[1].Drain = true, "dataplane is drained: new disk"
	},
	"probes-cannot-fail": func(f *status.Facts) {
		onKubernetes(f)
		for _, i := range []int{1, 2} {
			f.Dataplanes[i].PodState = &adminv1.PodState{Ready: true, Created: ago(time.Hour), Unfailing: []*adminv1.UnfailingProbe{
				{Container: "app", Probe: "liveness", Port: 8080, Reason: "Envoy accepts each connection to port 8080, whether the application listens or not: create the pod again"},
			}}
		}
	},
	"pod-not-ready": func(f *status.Facts) {
		onKubernetes(f)
		unready(f, "health.ready is false", 1)
	},
	"probe-of-a-pod-fails": func(f *status.Facts) {
		onKubernetes(f)
		unready(f, "its state is NotReady", 1)
		f.Dataplanes[1].Inbounds[0].Since = nil // since before the replica started
		fails(f, 1, "readiness", "failure", "HTTP probe failed with statuscode: 500")
	},
	"probes-of-all-pods-fail": func(f *status.Facts) {
		onKubernetes(f)
		unready(f, "its state is NotReady", 1, 2)
		fails(f, 1, "readiness", "failure", "HTTP probe failed with statuscode: 500")
		fails(f, 2, "startup", "errored", "body too late")
	},
	"liveness-fails": func(f *status.Facts) {
		onKubernetes(f)
		fails(f, 1, "liveness", "failure", "connection refused")
		fails(f, 2, "liveness", "held", "connection refused") // restarts has it
		fails(f, 0, "liveness", "not asked", "")
	},
	"liveness-fails-and-restarts": func(f *status.Facts) {
		onKubernetes(f)
		fails(f, 1, "liveness", "failure", "connection refused")
		f.Restarts.Restarts = []*adminv1.Restart{{Namespace: "shop", Pod: "db-1", Container: "app", State: adminv1.Restart_GRANTED, Since: ago(time.Minute)}}
	},
	"probes-of-agents-that-hang": func(f *status.Facts) {
		onKubernetes(f)
		unready(f, "its state is NotReady", 2)
		fails(f, 1, "liveness", "failure", "connection refused")
		fails(f, 2, "readiness", "failure", "connection refused")
		f.Proxies[1].Agent.Unresponsive, f.Proxies[2].Agent.Unresponsive = true, true
	},
	"frozen": func(f *status.Facts) {
		onKubernetes(f)
		const reason = "Frozen: its node is not seen"
		db := f.Services[0]
		db.Endpoints[0].Reason = reason // its agent is connected
		db.Endpoints[1].Reason, db.Endpoints[1].Health, db.Endpoints[1].GetsTraffic = reason, adminv1.Endpoint_DRAINING, false
		db.Endpoints = append(db.Endpoints, &adminv1.Endpoint{Address: "10.0.0.9:80", Health: adminv1.Endpoint_DRAINING, Reason: reason})
	},
	"restarts": restartsFail,
	"restarts-of-a-namespace": func(f *status.Facts) {
		restartsFail(f)
		f.Restarts.Round = &adminv1.RestartRound{Mode: "enforce", Failed: 5, Guarded: 9, Workloads: 3, BreakerNamespace: "shop", BreakerNamespaceFailed: 4}
	},
	"of-another-namespace": func(f *status.Facts) {
		onKubernetes(f)
		unready(f, "health.ready is false", 1)
		f.Namespace = "edge"
	},
	"two-meshes": func(f *status.Facts) {
		addMesh(f, "shop")
		addProxy(f, "shop", "web-1", "web", 9)
		phase(f, 1, adminv1.AgentState_LOST, "")
		phase(f, 3, adminv1.AgentState_LOST, "")
	},
	"worst-first": func(f *status.Facts) {
		meshLost(f)
		unready(f, "application probe failed: GET /ready: 500", 1, 2)
		phase(f, 0, adminv1.AgentState_RECONNECTING, "")
		f.Health[0] = &adminv1.HealthCheck{Group: "livez", Name: "loop-view", Status: adminv1.HealthCheck_FAILED, Reason: "stuck for 2m"}
		f.Services[1].Endpoints[0].Unchecked = true
	},
	"more-than-shown": func(f *status.Facts) {
		for i := range 30 {
			f.Problems = append(f.Problems, &adminv1.Problem{File: fmt.Sprintf("/mesh/%02d.yaml", i), Document: 1, Line: 1, Text: "is empty", Object: fmt.Sprintf("dataplane/x-%d", i), Mesh: fmt.Sprintf("m%02d", i)})
		}
	},
}

func meshLost(f *status.Facts) {
	f.Meshes[0].Recorded = true
	f.Problems = append(f.Problems, &adminv1.Problem{File: "/mesh", Text: f.Specs[0].LostError().Error(), Object: "mesh/default", Since: ago(time.Minute)})
}

// manyLost makes twenty agents lost, one after the other.
func manyLost(f *status.Facts) {
	for i := range 20 {
		addProxy(f, "default", fmt.Sprintf("api-%02d", i), "api", 10+i)
		phase(f, 3+i, adminv1.AgentState_LOST, "")
		f.Proxies[3+i].AgentState.Since = ago(time.Duration(i+1) * time.Minute)
	}
}

func refuses(f *status.Facts, i int, resource, reason string) {
	f.Proxies[i].Streams[0].Types = []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{{Resource: resource, Reason: reason, At: ago(time.Minute)}}}}
}

func restartsFail(f *status.Facts) {
	onKubernetes(f)
	since := func(d time.Duration) *timestamppb.Timestamp { return ago(d) }
	f.Restarts = &adminv1.ListRestartsResponse{
		Guarded: 9, Round: &adminv1.RestartRound{Mode: "enforce", BreakerOpen: true, Failed: 5, Guarded: 9, Workloads: 3},
		Restarts: []*adminv1.Restart{
			{Namespace: "shop", Pod: "web-1", Container: "app", State: adminv1.Restart_WAITING, Since: since(time.Minute), Why: "the breaker is open", Failure: "connection refused"},
			{Namespace: "shop", Pod: "db-1", Container: "db", State: adminv1.Restart_UNHELPFUL, Since: since(time.Hour), Workload: "StatefulSet/shop/db", Why: "2 restarts in a row did not help"},
			{Namespace: "shop", Pod: "db-2", Container: "db", State: adminv1.Restart_RESTARTING, Since: since(time.Second), Why: "the container has restarted"},
		},
	}
}

// TestGoldenJudgements compares the report for each fault with its file in testdata.
func TestGoldenJudgements(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			f := well()
			fault(f)
			r := status.Judge(f)
			var out printer.Output
			if err := r.Write(&out, printer.Text, false); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("exit code: %d\n%s", exit.Code(r.Err()), &out)
			golden.Compare(t, name, got)
		})
	}
}

// TestGoldenOrphans finds files without a fault.
func TestGoldenOrphans(t *testing.T) {
	golden.Orphans(t, func(name string) bool { return faults[name] != nil })
}

// TestOneLine shows that the output is one line for a healthy mesh, and always with --short.
func TestOneLine(t *testing.T) {
	for name, short := range map[string]bool{"well": false, "drained": false, "unchecked": false, "worst-first": true, "more-than-shown": true} {
		f := well()
		faults[name](f)
		var out printer.Output
		if err := status.Judge(f).Write(&out, printer.Text, short); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%s: %d lines:\n%s", name, n, &out)
		}
	}
}
