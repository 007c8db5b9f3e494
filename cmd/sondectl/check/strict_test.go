package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

var localNow = time.Date(2026, 11, 27, 15, 0, 0, 0, time.Local)

func at(ago time.Duration) *timestamppb.Timestamp { return timestamppb.New(localNow.Add(-ago)) }

func tally(count uint64, open uint32, first, last time.Duration) *adminv1.StrictTally {
	return &adminv1.StrictTally{Count: count, Open: open, First: at(first), Last: at(last)}
}

func ofMesh(ports ...*adminv1.StrictPort) *adminv1.StrictMesh {
	return &adminv1.StrictMesh{Mesh: "shop", Mode: "PERMISSIVE", Since: at(58 * time.Minute), Proxies: 3, Telling: 3, Ports: ports}
}

// web is a port with one source.
func web(s *adminv1.StrictSource) *adminv1.StrictPort {
	return &adminv1.StrictPort{
		Workload: "/ns/shop/sa/web", Services: []string{"web_shop_svc_80"}, Port: 8080, Kind: adminv1.StrictPort_PLAINTEXT, Requests: true, Sources: []*adminv1.StrictSource{s},
	}
}

const known = ", since 2026-11-27 14:02 (58m), as reported by 3 of 3 proxies; traffic of deleted pods is included for a day\n"

// TestStrictLines compares the output.
// All sources are shown, since STRICT would reject each of them.
func TestStrictShowsAllSources(t *testing.T) {
	port := &adminv1.StrictPort{Workload: "web", Port: 80, Others: tally(1, 0, time.Minute, time.Minute)}
	for i := range 20 {
		port.Sources = append(port.Sources, &adminv1.StrictSource{Address: fmt.Sprintf("10.0.0.%d", i), Tally: tally(1, 0, time.Minute, time.Minute)})
	}
	l := &strict{now: localNow, quiet: defaultQuiet}
	l.port("mesh shop", port)
	var out printer.Output
	_ = write(&out, l.all, printer.Text) // the error says only that a line fails
	if got := strings.Count(out.String(), "\n       from "); got != 21 {
		t.Errorf("%d senders are shown, want 20, and the others:\n%s", got, &out)
	}
}

// machineLines are the lines for requests from a machine two hours ago.
func machineLines(requests, from string) string {
	return "[warn] mesh shop: workload /ns/shop/sa/web, port 8080 (service web_shop_svc_80): " + requests + " in plaintext, none for 2h\n" +
		"       from " + from + ": " + requests + " since 2026-11-27 13:00, last 2h ago\n" +
		"       do: on machines, make programs call through the sidecar: at an outbound of its Dataplane, or with redirection\n" +
		"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known
}

func TestStrictLines(t *testing.T) {
	curl := &adminv1.StrictSource{Address: "10.0.0.7", Pod: "shop/curl", Node: "worker-1", Tally: tally(12, 0, 20*time.Minute, 9*time.Second)}
	tests := map[string]struct {
		found    *adminv1.CheckStrictResponse
		want     string
		wantFail bool
	}{
		"no mesh": {
			found: &adminv1.CheckStrictResponse{},
			want:  "[warn] no mesh found: no traffic is counted\n       do: create a Mesh in mode PERMISSIVE\n",
		},
		"nothing": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh()}},
			want:  "[ok]   mesh shop: no traffic that STRICT would reject" + known,
		},
		"modes": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{{Mesh: "a", Mode: "STRICT"}, {Mesh: "b"}}},
			want: "[ok]   mesh a is already in mode STRICT\n" +
				"[fail] mesh b has no mTLS: its proxies send all traffic in plaintext\n       do: set mode PERMISSIVE, then check again\n",
			wantFail: true,
		},
		"a pod without a sidecar": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(web(curl))}},
			want: "[fail] mesh shop: workload /ns/shop/sa/web, port 8080 (service web_shop_svc_80): 12 requests in plaintext, last 9s ago\n" +
				"       from 10.0.0.7, pod shop/curl without a sidecar: 12 requests since 2026-11-27 14:40, last 9s ago\n" +
				"       do: inject the sidecar into the pods without one\n" +
				"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known,
			wantFail: true,
		},
		"a sidecar that is not used, a node, and others": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(&adminv1.StrictPort{
				Workload: "/ns/shop/sa/db", Port: 5432, Kind: adminv1.StrictPort_PLAINTEXT, Others: tally(1, 0, time.Minute, time.Minute),
				Sources: []*adminv1.StrictSource{
					{Address: "10.0.0.8", Mesh: "shop", Dataplane: "job.shop", Workload: "/ns/shop/sa/job", Tally: tally(3, 2, 2*time.Hour, 2*time.Hour)},
					{Address: "172.18.0.2", Node: "worker-1", Tally: tally(1, 0, 3*time.Hour, 3*time.Hour)},
				},
			})}},
			want: "[fail] mesh shop: workload /ns/shop/sa/db, port 5432: 5 connections and 2 open in plaintext, last 60s ago\n" +
				"       from 10.0.0.8, which has a sidecar: dataplane job.shop of mesh shop, workload /ns/shop/sa/job: 3 connections and 2 open since 2026-11-27 13:00, last 2h ago\n" +
				"       from 172.18.0.2, node worker-1: a pod with hostNetwork, the node itself, or a client outside of the cluster: 1 connection since 2026-11-27 12:00, last 3h ago\n" +
				"       from other sources: 1 connection since 2026-11-27 14:59, last 60s ago\n" +
				"       do: make senders with a sidecar call the service by its name or ClusterIP: they call a pod's address, or exclude the port from redirection; " +
				"make senders outside of the mesh use a gateway, or exclude the port from the mesh: traffic.kuma.io/exclude-inbound-ports\n" +
				"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known,
			wantFail: true,
		},
		"programs on machines": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(web(&adminv1.StrictSource{
				Address: "10.0.0.8", Machine: true, Dataplanes: []string{"shop/db-1", "shop/web-1"}, Tally: tally(3, 0, 2*time.Hour, 2*time.Hour),
			})), ofMesh(web(&adminv1.StrictSource{
				Address: "10.0.0.9", Machine: true, Mesh: "shop", Dataplane: "vm-1", Workload: "vm", Tally: tally(2, 0, 2*time.Hour, 2*time.Hour),
			})), ofMesh(web(&adminv1.StrictSource{Address: "127.0.0.1", Machine: true, Tally: tally(1, 0, 2*time.Hour, 2*time.Hour)}))}},
			want: machineLines("3 requests", "10.0.0.8, a machine with several dataplanes (shop/db-1, shop/web-1): one of them, or a program without a sidecar") +
				machineLines("2 requests", "10.0.0.9, the machine of dataplane vm-1 of mesh shop, workload vm: its application, or a program without a sidecar") +
				machineLines("1 request", "127.0.0.1, a loopback address: any program in the proxy's pod or on its machine"),
		},
		"mended": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(web(&adminv1.StrictSource{Address: "10.0.0.7", Tally: tally(12, 0, 5*time.Hour, 3*time.Hour)}))}},
			want: "[warn] mesh shop: workload /ns/shop/sa/web, port 8080 (service web_shop_svc_80): 12 requests in plaintext, none for 3h\n" +
				"       from 10.0.0.7, an unknown pod or client: 12 requests since 2026-11-27 10:00, last 3h ago\n" +
				"       do: make senders outside of the mesh use a gateway, or exclude the port from the mesh: traffic.kuma.io/exclude-inbound-ports\n" +
				"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known,
		},
		"it goes on since long": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(&adminv1.StrictPort{
				Workload: "db", Kind: adminv1.StrictPort_NO_INBOUND, Sources: []*adminv1.StrictSource{{Address: "192.0.2.1", Tally: tally(0, 1, 5*time.Hour, 2*time.Hour)}},
			})}},
			want: "[fail] mesh shop: workload db, further ports: 1 open connection to a port without an inbound, last 2h ago\n" +
				"       from 192.0.2.1, an unknown pod or client: 1 open connection since 2026-11-27 10:00, last 2h ago\n" +
				"       do: make the port an inbound: declare it in a Service or in the pod's containers; or exclude it from the mesh: traffic.kuma.io/exclude-inbound-ports\n" +
				"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known,
			wantFail: true,
		},
		"probes alone": {
			found: &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{ofMesh(&adminv1.StrictPort{Workload: "web", Port: 80, Requests: true, Probes: tally(9, 0, time.Minute, time.Second)})}},
			want: "[fail] mesh shop: workload web, port 80: probes of the kubelet come in plaintext, last 1s ago: STRICT would reject them, and the pod would not be Ready\n" +
				"       9 requests since 2026-11-27 14:59, last 1s ago\n" +
				"       do: let the agent answer them: remove kuma.io/virtual-probes: disabled, and see sondectl probes explain for probes that cannot be translated\n" +
				"[ok]   mesh shop: no traffic to other ports that STRICT would reject" + known,
			wantFail: true,
		},
		"proxies that cannot tell, and a replica": {
			found: &adminv1.CheckStrictResponse{MissingReplicas: []string{"cp-b"}, Meshes: []*adminv1.StrictMesh{{
				Mesh: "shop", Mode: "PERMISSIVE", Since: at(time.Minute), Proxies: 9, Telling: 6, GapsLeftOut: 1, PortsLeftOut: 2, Gaps: []*adminv1.StrictGap{
					{Dataplane: "old-1.shop", Reason: "its agent of version 0.1.0 is too old to count plaintext: restart it with a newer one"},
					{Dataplane: "gone-1.shop", Reason: "its agent is not connected"},
					{Dataplane: "old-2.shop", Reason: "its agent of version 0.1.0 is too old to count plaintext: restart it with a newer one"},
				},
			}}},
			want: "[warn] replica cp-b of the control plane is disconnected: recent counts from its agents are missing\n       do: see sondectl health\n" +
				"[fail] mesh shop: 2 more ports get traffic that STRICT would reject, and are not shown\n" +
				"[warn] mesh shop: dataplane old-1.shop, old-2.shop does not report its traffic: its agent of version 0.1.0 is too old to count plaintext: restart it with a newer one\n" +
				"[warn] mesh shop: dataplane gone-1.shop does not report its traffic: its agent is not connected\n" +
				"[warn] mesh shop: 1 more proxies do not report their traffic\n" +
				"[warn] mesh shop: no traffic that STRICT would reject, since 2026-11-27 14:59 (60s), as reported by 6 of 9 proxies; traffic of deleted pods is included for a day\n",
			wantFail: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lines := strictLines(tc.found, localNow, defaultQuiet)
			var out printer.Output
			err := write(&out, lines, printer.Text)
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("it prints (-want +got):\n%s", diff)
			}
			if found, ok := errors.AsType[*exit.Error](err); ok != tc.wantFail || ok && found.Code != exit.Unhealthy {
				t.Errorf("error %v, want one of code 6: %t", err, tc.wantFail)
			}
			out.Reset()
			_ = write(&out, lines, printer.JSON)
			var documents []map[string]any
			if err := json.Unmarshal(out.Bytes(), &documents); err != nil || len(documents) != len(lines) {
				t.Errorf("JSON has %d documents for %d lines: %v", len(documents), len(lines), err)
			}
		})
	}
}

// answering is a control plane that reports a pod without a sidecar.
type answering struct {
	adminv1.AdminServiceClient
	asked *adminv1.CheckStrictRequest
}

func (a *answering) CheckStrict(_ context.Context, r *adminv1.CheckStrictRequest, _ ...grpc.CallOption) (*adminv1.CheckStrictResponse, error) {
	a.asked = r
	return &adminv1.CheckStrictResponse{Meshes: []*adminv1.StrictMesh{{Mesh: r.GetMesh(), Mode: "STRICT"}}}, nil
}

func TestStrictCommand(t *testing.T) {
	var out printer.Output
	api := &answering{}
	run := func(args ...string) error {
		cmd := Command(&out, Options{Call: func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
			return work(ctx, api)
		}})
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.ExecuteContext(t.Context())
	}
	if err := run("strict", "--mesh=shop"); err != nil || api.asked.GetMesh() != "shop" || out.String() != "[ok]   mesh shop is already in mode STRICT\n" {
		t.Errorf("%v, asked for %v, prints %q", err, api.asked, out.String())
	}
	if err := run("strict", "--quiet=-1s"); err == nil || err.Error() != "--quiet: -1s: must be at least 0s" {
		t.Errorf("a negative --quiet: %v", err)
	}
}
