package crds_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// definition has the fields of a CustomResourceDefinition that the test reads.
type definition struct {
	Spec struct {
		Names    struct{ Kind string }
		Versions []struct {
			Schema struct {
				OpenAPIV3Schema *schema `json:"openAPIV3Schema"`
			}
		}
	}
}

type schema struct {
	Properties                  map[string]*schema
	Items, AdditionalProperties *schema
	MaxItems, MaxProperties     *int64
}

// Each list and map that a tenant writes has a bound in the schema, equal to the one that Exceeds applies to older
// objects.
func TestListsHaveBounds(t *testing.T) {
	entries, err := crds.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	bounds := map[string]int64{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".yaml") {
			continue
		}
		data, err := crds.Files.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(data, &d); err != nil {
			t.Fatal(err)
		}
		collect(t, d.Spec.Names.Kind, d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], bounds)
	}
	for path, want := range map[string]int64{
		"Mesh.mtls.backends":                                            mesh.MaxBackends,
		"Dataplane.networking.inbound":                                  mesh.MaxInbounds,
		"Dataplane.networking.inbound.tags":                             mesh.MaxTags,
		"Dataplane.networking.inbound.serviceProbe.httpGet.httpHeaders": mesh.MaxProbeHeaders,
		"Dataplane.networking.outbound":                                 mesh.MaxOutbounds,
		"Dataplane.networking.outbound.tags":                            mesh.MaxTags,
		"Dataplane.networking.outbound.backendRef.labels":               mesh.MaxTags,
		"Dataplane.networking.gateway.tags":                             mesh.MaxTags,
		"Dataplane.networking.transparentProxying.reachableServices":    mesh.MaxReachableServices,
		"Dataplane.probes.endpoints":                                    mesh.MaxProbes,
		"Dataplane.tcpProbes":                                           mesh.MaxProbes,
	} {
		if bounds[path] != want {
			t.Errorf("%s may have %d items, want %d", path, bounds[path], want)
		}
	}
}

// collect adds the bounds of the lists and maps below a schema.
func collect(t *testing.T, path string, s *schema, bounds map[string]int64) {
	t.Helper()
	bound := func(of *int64) {
		if of == nil {
			t.Errorf("%s has no bound", path)
			return
		}
		bounds[path] = *of
	}
	for name, p := range s.Properties {
		collect(t, path+"."+name, p, bounds)
	}
	if s.Items != nil {
		bound(s.MaxItems)
		collect(t, path, s.Items, bounds)
	}
	if s.AdditionalProperties != nil {
		bound(s.MaxProperties)
	}
}
