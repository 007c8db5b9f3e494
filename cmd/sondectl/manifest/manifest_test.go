package manifest

import (
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/sonde-mesh/sonde/store"
)

const (
	blockPod    = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}\n"
	flowPod     = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a}]}}\n"
	jsonPod     = `{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a"}]}}` + "\n"
	jsonService = `{"apiVersion": "v1", "kind": "Service"}` + "\n"
)

func inUTF16(text string) string {
	b := []byte("\xff\xfe")
	for _, unit := range utf16.Encode([]rune(text)) {
		b = append(b, byte(unit), byte(unit>>8))
	}
	return string(b)
}

// No part of a file is silently ignored.
func TestManifestsAreReadWhole(t *testing.T) {
	const more = "invalid document after the first object"
	tests := map[string]struct {
		text string
		want int    // number of documents with content
		err  string // error of the last invalid document, or of the whole file
	}{
		"nothing":                    {"", 0, ""},
		"documents without content":  {"---\n\n---\n# comment\n---\nnull\n---\n" + blockPod + "---\n---", 1, ""},
		"line ends of Windows":       {strings.ReplaceAll(blockPod+"---\n"+blockPod, "\n", "\r\n"), 2, ""},
		"byte order marks":           {"\uFEFF---\n" + blockPod + "\uFEFF---\n\uFEFF" + jsonPod, 2, ""},
		"flow style, both marked":    {"---\n" + flowPod + "---\n" + flowPod, 2, ""},
		"a comment behind":           {flowPod + "# the end\n...\n", 1, ""},
		"JSON in a row":              {jsonPod + jsonService + jsonPod, 3, ""},
		"JSON, then YAML":            {jsonPod + "---\n" + blockPod, 2, ""},
		"flow style in a row":        {flowPod + flowPod, 1, more},
		"JSON and a word":            {jsonPod + "oops\n", 1, more},
		"JSON that is cut":           {jsonPod + jsonService[:20], 1, more},
		"JSON with commas":           {strings.TrimSpace(jsonPod) + ",\n" + jsonPod, 1, more},
		"JSON, then YAML, unmarked":  {jsonPod + blockPod, 1, more},
		"a bracket too many":         {flowPod + "}\n", 1, more},
		"line ends of old Macs":      {strings.ReplaceAll(blockPod+"---\n"+blockPod, "\n", "\r"), 1, more},
		"YAML and a word":            {blockPod + "oops\n", 1, "could not find expected ':'"},
		"a key twice":                {blockPod + "kind: Pod\n", 1, `line 4: key "kind" already set in map`},
		"another encoding":           {inUTF16(blockPod + "---\n" + blockPod), 0, "must be UTF-8"},
		"another, within the object": {"# \xe9\n" + blockPod, 0, "must be UTF-8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			all, wrong, err := split("-", []byte(tc.text))
			got := 0
			for _, m := range all {
				if store.HasContent(m.Text) && m.JSON != nil {
					got++
				}
			}
			if err == nil && len(wrong) > 0 {
				err, got = wrong[len(wrong)-1], len(all)
			}
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("splitManifests() = %d documents, %v, want %d, %q", got, err, tc.want, tc.err)
			}
			if err != nil && strings.Contains(err.Error(), "unmarshal") {
				t.Errorf("error %q says more than what is wrong", err)
			}
		})
	}
}
