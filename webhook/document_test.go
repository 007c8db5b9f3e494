package webhook_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// The API server rejects lists with duplicate names, so it must get all their elements.
func TestElementsWithoutNamesStay(t *testing.T) {
	for name, volumes := range map[string]string{
		"without a name": `[{"future":{"size":1}}]`,
		"two of a name":  `[{"name":"a","future":{"size":1}},{"name":"a"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			injected, _, err := webhook.InjectJSON([]byte(`{"spec":{"containers":[{"name":"app"}],"volumes":`+volumes+`}}`), webhook.Options{})
			if err != nil || !strings.Contains(string(injected), `"future":{"size":1}`) || !strings.Contains(string(injected), `"sonde-work"`) {
				t.Errorf("InjectJSON() = %s, %v", injected, err)
			}
		})
	}
}
