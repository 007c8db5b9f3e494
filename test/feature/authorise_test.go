package feature

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestAuthorisation(t *testing.T) {
	tests := map[string]struct {
		certificate, node string
		want              codes.Code
	}{
		"its own node":                 {"default/web-1", "default/web-1", codes.OK},
		"another node":                 {"default/web-1", "default/api-1", codes.PermissionDenied},
		"another node of its workload": {"default/web-2", "default/web-1", codes.PermissionDenied},
		"a node that is not known":     {"default/web-1", "default/unknown", codes.PermissionDenied},
		"the same name, other mesh":    {"other/web-1", "default/web-1", codes.PermissionDenied},
		"the same name, other way":     {"default/web-1", "other/web-1", codes.PermissionDenied},
		"no certificate":               {"", "default/web-1", codes.Unauthenticated},
		"no node":                      {"default/web-1", "", codes.InvalidArgument},
		"no certificate and no node":   {"", "", codes.Unauthenticated},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, p envoysim.Protocol) {
				f := featuretest.Start(t, "two-meshes")
				stream := f.Open(tc.certificate, p)
				send(t, stream, &envoysim.Request{Node: tc.node, Type: resource.Cluster})
				r, err := stream.Recv()
				if status.Code(err) != tc.want {
					t.Errorf("Recv() error = %v, want %s", err, tc.want)
				}
				if err == nil && !slices.Equal(r.Names(), []string{"api", "db", "inbound:8080"}) {
					t.Errorf("first response has resources %q", r.Names())
				}
			})
		})
	}
}

// A certificate that the CA's key has signed and that names a proxy is not enough: it must be one that the control
// plane would issue.
func TestForgedCertificates(t *testing.T) {
	const own = "spiffe://default.sonde.internal/workload/web"
	tests := map[string]struct {
		spiffeIDs []string
		want      codes.Code
	}{
		"its own workload":        {[]string{own}, codes.OK},
		"another workload":        {[]string{apiIdentity}, codes.PermissionDenied},
		"a workload of no proxy":  {[]string{own + "/more"}, codes.PermissionDenied},
		"no workload":             {[]string{"spiffe://default.sonde.internal"}, codes.PermissionDenied},
		"no SPIFFE ID":            {nil, codes.Unavailable}, // the handshake fails
		"two SPIFFE IDs":          {[]string{own, apiIdentity}, codes.Unavailable},
		"its workload, elsewhere": {[]string{"spiffe://other.sonde.internal/workload/web"}, codes.Unavailable},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, p envoysim.Protocol) {
				f := featuretest.Start(t, "two-services")
				config, err := f.Forge("web-1", tc.spiffeIDs...)
				if err != nil {
					t.Fatal(err)
				}
				stream, err := f.OpenAs(config, p)
				if err == nil {
					send(t, stream, &envoysim.Request{Node: "default/web-1", Type: resource.Cluster})
					_, err = stream.Recv()
				}
				if status.Code(err) != tc.want {
					t.Errorf("error = %v, want %s", err, tc.want)
				}
			})
		})
	}
}

// The workload of a running proxy changes. Until its agent has a certificate for the new workload, ADS serves the old
// one, if it was issued to this proxy.
func TestWorkloadOfAProxyChanges(t *testing.T) {
	tests := map[string]struct {
		issued string
		want   codes.Code
	}{
		"a certificate that was issued to the proxy": {"/workload/web", codes.OK},
		"one that was not":                           {"/workload/db", codes.PermissionDenied},
		"nothing is known of it":                     {"", codes.PermissionDenied},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, p envoysim.Protocol) {
				f := featuretest.Start(t, "two-services")
				old, err := f.TLS("default/web-1")
				if err != nil {
					t.Fatal(err)
				}
				f.PutYAML(`
type: Dataplane
mesh: default
name: web-1
labels: {kuma.io/workload: another}
networking:
  address: 10.0.0.1
  inbound:
  - {port: 8080, tags: {kuma.io/service: web}}
`)
				f.Observe("web-1", mesh.Observation{Path: tc.issued})
				stream, err := f.OpenAs(old, p)
				if err != nil {
					t.Fatal(err)
				}
				send(t, stream, &envoysim.Request{Node: "default/web-1", Type: resource.Cluster})
				if _, err := stream.Recv(); status.Code(err) != tc.want {
					t.Errorf("Recv() error = %v, want %s", err, tc.want)
				}
			})
		})
	}
}

// The node of a stream cannot change.
func TestNodeChanges(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		stream := f.Open("default/web-1", p)
		send(t, stream, &envoysim.Request{Node: "default/web-1", Type: resource.Cluster})
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, &envoysim.Request{Type: resource.Cluster, Nonce: r.Nonce, Version: r.Version})
		send(t, stream, &envoysim.Request{Node: "default/api-1", Type: resource.Listener})
		if r, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Recv() = %v, %v, want PermissionDenied", r, err)
		}
	})
}

func send(t *testing.T, stream envoysim.Wire, r *envoysim.Request) {
	t.Helper()
	if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv says why the stream ended
		t.Fatal(err)
	}
}

// Each mesh has its own names: nothing of one mesh is visible in another.
func TestNamesOfAMeshAreItsOwn(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-meshes")
		here, there := f.Connect("web-1", p), f.Connect("other/web-1", p)
		here.Sent(firstSync...)
		there.Sent("cluster api db inbound:8080", "endpoint api db", allListeners)
		there.Expect(resource.Endpoint, "api").Addresses()
		f.PutYAML(`
type: Dataplane
mesh: other
name: api-1
networking:
  address: 10.1.0.3
  inbound:
  - {port: 80, tags: {kuma.io/service: api}}
`)
		there.Sent("cluster api", "endpoint api", "endpoint api")
		there.Expect(resource.Cluster, "api").Identities("spiffe://other.sonde.internal/workload/api")
		here.Sent()
		here.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
	})
}
