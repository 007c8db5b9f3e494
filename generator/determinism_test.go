package generator_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// The version of a resource is the hash of its bytes, so equal views must give equal bytes.
func TestSameViewSameBytes(t *testing.T) {
	first, second := readCases(t), readCases(t)
	for i := range first {
		for _, id := range first[i].proxies {
			m, p := first[i].view.Proxy(id)
			was := messagesOf(t, m, p)
			m, p = second[i].view.Proxy(id)
			for name, messages := range messagesOf(t, m, p) {
				for j, message := range messages {
					if string(resource.Any(message).GetValue()) != string(resource.Any(was[name][j]).GetValue()) {
						t.Errorf("case %s: resource %d of %s/%s differs the second time", first[i].name, j, id, name)
					}
				}
			}
		}
	}
}

// Envoy refuses a whole response in which two resources have the same name.
func TestNamesAreUnique(t *testing.T) {
	for _, c := range readCases(t) {
		for _, id := range c.proxies {
			m, p := c.view.Proxy(id)
			for file, messages := range messagesOf(t, m, p) {
				seen := map[string]bool{}
				for _, message := range messages {
					name := nameOf(message)
					if name != "" && seen[name] {
						t.Errorf("case %s: %s has two resources with the name %s", c.name, file, name)
					}
					seen[name] = true
				}
			}
		}
	}
}

func nameOf(m proto.Message) string {
	if n, ok := m.(interface{ GetName() string }); ok {
		return n.GetName()
	}
	return ""
}
