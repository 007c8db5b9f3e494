package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestDecodeJSON has documents that are valid JSON, but not YAML 1.1.
func TestDecodeJSON(t *testing.T) {
	tests := map[string]struct {
		text string
		want map[string]string // labels
		line int               // line of the problem, if there are no labels
	}{
		"slash":                    {`{"type":"Service","name":"a","labels":{"kuma.io\/x":"b\/c"}}`, map[string]string{"kuma.io/x": "b/c"}, 0},
		"slash after a backslash":  {`{"type":"Service","name":"a","labels":{"a":"b\\/c\\\/d\\"}}`, map[string]string{"a": `b\/c\/d\`}, 0},
		"surrogates":               {`{"type":"Service","name":"a","labels":{"a":"\ud83d\uDE00\u00e9\\ud83d"}}`, map[string]string{"a": `😀é\ud83d`}, 0},
		"half a character":         {`{"type":"Service","name":"a",` + "\n" + `"labels":{"a":"\/\ud83d"}}`, nil, 2},
		"other escapes":            {`{"type":"Service","name":"a","labels":{"a":"\"\t\n\r\b\f\u0041"}}`, map[string]string{"a": "\"\t\n\r\b\fA"}, 0},
		"behind a marker":          {"---\n" + `{"type":"Service","name":"a","labels":{"a":"\/"}}`, map[string]string{"a": "/"}, 0},
		"indented with tabs":       {"\t{\n\t\"type\":\t\"Service\",\n\t\"name\": \"a\",\n\t\"labels\": {\"a\": \"b\"}\n\t}\n", map[string]string{"a": "b"}, 0},
		"line of a problem":        {"\n{\"type\": \"Service\",\n\t\"labels\": {\"a\": \"\\/\"},\n\t\"name\": \"a\\/b\"}", nil, 4},
		"YAML has no such escapes": {"type: Service\nname: a\nlabels: {a: \"\\/\"}\n", nil, 3},
		"a slash in YAML":          {"type: Service\nname: a\nlabels: {a: '\\/', b: \\/}\n", map[string]string{"a": `\/`, "b": `\/`}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("f.json", []byte(tc.text))
			if tc.want == nil {
				if len(documents) != 0 || len(problems) != 1 || problems[0].Line != tc.line {
					t.Errorf("%d documents, problems %v, want one at line %d", len(documents), problems, tc.line)
				}
				return
			}
			if len(documents) != 1 || len(problems) != 0 {
				t.Fatalf("%d documents, problems %v", len(documents), problems)
			}
			if diff := cmp.Diff(tc.want, documents[0].Object.(*mesh.Service).Labels); diff != "" { //nolint:forcetypeassert // it is one
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}
