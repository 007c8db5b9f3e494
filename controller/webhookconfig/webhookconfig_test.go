package webhookconfig

import (
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// The patch changes only wrong values, and only of the version that was read.
func TestPatchOf(t *testing.T) {
	ca := []byte("new")
	tests := map[string]struct {
		bundles [][]byte
		before  string
		after   string // "" for no patch
	}{
		"right":         {[][]byte{ca, ca}, ``, ``},
		"no webhooks":   {nil, ``, ``},
		"installed now": {[][]byte{nil}, `[{"clientConfig":{}}]`, `[{"clientConfig":{"caBundle":"bmV3"}}]`},
		"one is old": {
			[][]byte{ca, []byte("old")}, `[{"clientConfig":{"caBundle":"bmV3"}},{"clientConfig":{"caBundle":"b2xk"}}]`,
			`[{"clientConfig":{"caBundle":"bmV3"}},{"clientConfig":{"caBundle":"bmV3"}}]`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text := patchOf(&configuration{version: "7", bundles: tc.bundles}, ca)
			if tc.after == "" {
				if text != nil {
					t.Errorf("patch %s", text)
				}
				return
			}
			patch, err := jsonpatch.DecodePatch(text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := patch.Apply([]byte(`{"metadata":{"resourceVersion":"7"},"webhooks":` + tc.before + `}`))
			if want := `{"metadata":{"resourceVersion":"7"},"webhooks":` + tc.after + `}`; err != nil || !jsonpatch.Equal(got, []byte(want)) {
				t.Errorf("after the patch: %s, %v; want %s", got, err, want)
			}
			if _, err := patch.Apply([]byte(`{"metadata":{"resourceVersion":"8"},"webhooks":` + tc.before + `}`)); err == nil {
				t.Error("the patch changes a later version")
			}
		})
	}
}
