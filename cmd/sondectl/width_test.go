package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer/printertest"
	"github.com/sonde-mesh/sonde/webhook"
)

// tableOf writes the table of a collection with these entries.
func tableOf[Entry any](of collection, header string, show shower[Entry], entries ...Entry) func(*testing.T, *printer.Output) {
	return func(t *testing.T, out *printer.Output) {
		t.Helper()
		l, err := newListing(header, entries, show)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&getOutput{format: printer.Table}).write(out, of, l, false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTablesFit writes each table with names of usual length and the longest states.
func TestTablesFit(t *testing.T) {
	minutes := timestamppb.New(time.Unix(0, 0))
	proxy := func(phase adminv1.AgentState_Phase, version string) *adminv1.Proxy {
		return &adminv1.Proxy{
			Mesh: "default", Name: printertest.Proxy, AgentState: &adminv1.AgentState{Phase: phase, Since: minutes},
			Agent: &adminv1.Agent{Version: version, EnvoyVersion: "1.40.0", BundleId: "bundle", CertificateExpires: minutes},
		}
	}
	health := func(all ...adminv1.Endpoint_Health) (of []*adminv1.InboundHealth) {
		for _, h := range all {
			of = append(of, &adminv1.InboundHealth{Health: h, Services: []string{printertest.Service}})
		}
		return of
	}
	inbounds := `{"type":"Dataplane","mesh":"default","name":"` + printertest.Proxy + `","spec":{"networking":{"address":"10.244.101.117","inbound":[{"port":8080},{"port":8081}]}}}`
	why := func(kind names.Kind, asked string, services []string, state string) func(*testing.T, *printer.Output) {
		return func(t *testing.T, out *printer.Output) {
			t.Helper()
			f := finding{Kind: kind, Mesh: "default", Services: services, Endpoint: "10.244.101.117:8080", Dataplane: printertest.Proxy, State: state}
			if err := whyListing([]finding{f}, asked, false).write(out, printer.Table); err != nil {
				t.Fatal(err)
			}
		}
	}
	grants := &adminv1.RestartWorkload{Grants: []*adminv1.RestartGrant{{
		Pod: printertest.Pod, Container: "application", Outcome: "unhelpful", DryRun: true, Restarts: 12, Granted: minutes, Spent: minutes, Judged: minutes, Ended: minutes,
	}}}
	tests := map[string]func(*testing.T, *printer.Output){
		"proxies, different versions": tableOf(proxies, proxiesHeader, showMessage(proxyRow),
			proxy(adminv1.AgentState_NEVER_JOINED, "0.1.0"), proxy(adminv1.AgentState_RECONNECTING, "0.2.0")),
		"meshes": tableOf(meshes, meshesHeader, showMesh, &adminv1.Mesh{
			Object:  []byte(`{"type":"Mesh","name":"default","mtls":{"enabledBackend":"ca-1","backends":[{"name":"ca-1","type":"builtin","mode":"PERMISSIVE"}]}}`),
			Proxies: 1200, Connected: 1199, Services: 100, CaExpires: timestamppb.New(time.Now().Add(90000 * time.Hour)),
		}),
		"dataplanes": tableOf(dataplanes, dataplanesHeader, showDataplane, &adminv1.Dataplane{
			Object: []byte(inbounds), Inbounds: health(adminv1.Endpoint_READY, adminv1.Endpoint_NOT_READY),
		}),
		"services": tableOf(services, servicesHeader, showService, &adminv1.Service{
			Mesh: "default", Name: printertest.Service, Protocol: "http", Addresses: []string{"10.96.100.101:80", "240.0.0.1:80"},
			Identities: []string{"spiffe://default.sonde.internal/ns/shop/sa/web"}, Endpoints: []*adminv1.Endpoint{
				{Address: "10.244.101.117:8080", Health: adminv1.Endpoint_READY, Unchecked: true},
			},
		}),
		"meshservices": tableOf(meshServices, meshServicesHeader, showMeshService, &adminv1.MeshService{
			Object: []byte(`{"type":"MeshService","mesh":"default","name":"web","spec":{"selector":{"dataplaneTags":{"app":"web"}},"ports":[{"port":80,"appProtocol":"http"},{"port":9090,"appProtocol":"grpc"}]}}`),
			Ports:  []*adminv1.MeshServicePort{{Service: "web_msvc_80", Ready: 12, Endpoints: 12, Unchecked: 12}, {Service: "web_msvc_9090"}},
		}),
		"why a service":   why(names.Service, printertest.Service, []string{printertest.Service}, "not-ready"),
		"why a dataplane": why(names.Dataplane, printertest.Proxy, []string{printertest.Service, "other"}, "outbound-no-endpoints"),
		"health": tableOf(collection{}, "GROUP NAME STATUS AGE TOOK", showMessage(healthRow), &adminv1.HealthCheck{
			Group: "readyz", Name: "webhook-configuration", Status: adminv1.HealthCheck_WARNING, At: minutes, Took: durationpb.New(12345678),
		}),
		"restarts": tableOf(collection{}, restartsHeader, showMessage(restartRow), &adminv1.Restart{
			Namespace: "sonde-system", Pod: printertest.Pod, Container: "application", State: adminv1.Restart_RESTARTING, Since: minutes,
			Why: "2 restarts in a row did not help: waiting for another pod template, or for sondectl restarts release",
		}),
		"inspect clusters": func(t *testing.T, out *printer.Output) {
			t.Helper()
			at := printertest.Service + "::10.244.101.117:8080::"
			_, table, err := activeClusters([]byte(at + "health_flags::/failed_outlier_check\n" + at + "rq_total::12345678\n"))
			if err != nil {
				t.Fatal(err)
			}
			printer.WriteTable(out, table.header, table.rows)
		},
		"restarts explain": func(_ *testing.T, out *printer.Output) { writeGrants(out, grants, false) },
		"probes explain": func(_ *testing.T, out *printer.Output) {
			writeDecisions(out, []webhook.Decision{{Container: "application", Type: mesh.ProbeLiveness, Written: "httpGet HTTPS :8443 /healthz/ready"}}, 9000)
		},
	}
	for name, write := range tests {
		t.Run(name, func(t *testing.T) {
			var out printer.Output
			write(t, &out)
			printertest.Fits(t, out.String())
		})
	}
}

// TestVersionsThatDiffer shows that a table has a varying column only if its values differ.
func TestVersionsThatDiffer(t *testing.T) {
	for want, versions := range map[string][2]string{
		"MESH      NAME   AGENT   SINCE   SYNCED\n":           {"0.1.0", "0.1.0"},
		"MESH      NAME   AGENT   SINCE   SYNCED   VERSION\n": {"0.1.0", "0.2.0"},
	} {
		var out printer.Output
		tableOf(proxies, proxiesHeader, showMessage(proxyRow), proxyOf(versions[0]), proxyOf(versions[1]))(t, &out)
		if line, _ := out.ReadString('\n'); line != want {
			t.Errorf("header = %q, want %q", line, want)
		}
	}
}

func proxyOf(version string) *adminv1.Proxy {
	return &adminv1.Proxy{Mesh: "default", Name: "a", Agent: &adminv1.Agent{Version: version}}
}
