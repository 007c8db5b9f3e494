package generator_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
)

// An Envoy whose bootstrap does not request records gets the listeners of the golden files without their access logs,
// and no other difference. So an upgrade of the control plane changes no filter chains of running Envoys, and ends no
// connection.
func TestRecordsAreAllThatTheBootstrapAdds(t *testing.T) {
	recorded := 0
	for _, c := range readCases(t) {
		for _, id := range c.proxies {
			m, p := c.view.Proxy(id)
			t.Run(c.name+"/"+p.Dataplane.Name, func(t *testing.T) {
				with, without := inboundListeners(t, m, p, true), inboundListeners(t, m, p, false)
				removed := withoutAccessLogs(with)
				if diff := cmp.Diff(with, without); diff != "" {
					t.Errorf("without records (-access logs removed +now):\n%s", diff)
				}
				if n := withoutAccessLogs(without); n > 0 {
					t.Errorf("%d access logs without records", n)
				}
				if permissive := m.Spec.Mode() == mesh.ModePermissive; !permissive && removed > 0 {
					t.Errorf("%d access logs in mode %q", removed, m.Spec.Mode())
				} else if permissive && generator.RecordsCluster(m, true) == nil || generator.RecordsCluster(m, false) != nil {
					t.Error("the cluster of the records is missing with records, or present without them")
				}
				recorded += removed
			})
		}
	}
	if recorded == 0 {
		t.Error("no listener of any case has an access log")
	}
}

func inboundListeners(t *testing.T, m *meshview.Mesh, p *meshview.Proxy, records bool) (listeners []any) {
	t.Helper()
	var messages []proto.Message
	for _, l := range generator.InboundListeners(m, p, mesh.DefaultTrustDomain, records) {
		messages = append(messages, l)
	}
	if err := yaml.Unmarshal(toYAMLList(t, messages), &listeners); err != nil {
		t.Fatal(err)
	}
	return listeners
}

// withoutAccessLogs removes all access logs and their options, and returns the number of logs.
func withoutAccessLogs(in any) (logs int) {
	switch in := in.(type) {
	case []any:
		for _, element := range in {
			logs += withoutAccessLogs(element)
		}
	case map[string]any:
		if _, ok := in["access_log"]; ok {
			logs++
		}
		delete(in, "access_log")
		delete(in, "access_log_options")
		for _, value := range in {
			logs += withoutAccessLogs(value)
		}
	}
	return logs
}
