package feature

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
		"a node that is not known":     {"default/web-1", "default/nobody", codes.PermissionDenied},
		"the same name, other mesh":    {"other/web-1", "default/web-1", codes.PermissionDenied},
		"the same name, other way":     {"default/web-1", "other/web-1", codes.PermissionDenied},
		"no certificate":               {"", "default/web-1", codes.Unauthenticated},
		"no node":                      {"default/web-1", "", codes.InvalidArgument},
		"no certificate and no node":   {"", "", codes.InvalidArgument},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, p featuretest.Protocol) {
				f := featuretest.Start(t, "two-meshes")
				c := f.DialAs(tc.certificate, p)
				c.Send(&featuretest.Request{Node: tc.node, Type: resource.Cluster})
				if tc.want == codes.OK {
					expect(t, c.Next(), resource.Cluster, "api", "db", "inbound:8080")
					return
				}
				if err := c.Ended(); status.Code(err) != tc.want {
					t.Errorf("the stream ended with %v, want %s", err, tc.want)
				}
				if got := c.Received(); got != 0 {
					t.Errorf("sent %d responses", got)
				}
			})
		})
	}
}

// The node of a stream cannot change.
func TestNodeChanges(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Cluster})
		web.Ack(web.Next())
		web.Send(&featuretest.Request{Node: "default/api-1", Type: resource.Listener})
		if err := web.Ended(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the stream ended with %v, want PermissionDenied", err)
		}
	})
}

// Each mesh has its own names: nothing of one mesh is visible in the other.
func TestMeshesAreApart(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
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
		here.ExpectQuiet()
		here.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
	})
}
