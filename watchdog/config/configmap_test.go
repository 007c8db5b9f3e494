package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configMap returns a deployed ConfigMap with this data.
func configMap(texts map[string]string) string {
	var all strings.Builder
	all.WriteString("# of the prober\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: prober\n")
	if len(texts) > 0 {
		all.WriteString("data:\n")
	}
	for key, text := range texts {
		all.WriteString("  " + key + ": |\n    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n")
	}
	return all.String()
}

func TestImport(t *testing.T) {
	two := configMap(map[string]string{"a.yaml": one, "b.yaml": "probeIntervall: 1s"})
	for name, tc := range map[string]struct{ text, key, want string }{
		"the file itself":     {text: one},
		"a ConfigMap":         {text: configMap(map[string]string{"dep-config.yaml": one})},
		"by its key":          {text: two, key: "a.yaml"},
		"several keys":        {text: two, want: "--key: is required: the ConfigMap has the keys a.yaml, b.yaml"},
		"no such key":         {text: two, key: "c", want: `--key: "c": must be a key of the data of the ConfigMap: a.yaml, b.yaml`},
		"wrong in a key":      {text: two, key: "b.yaml", want: `FILE, data["b.yaml"]: probeIntervall: is an unknown field: did you mean probeInterval?`},
		"no data":             {text: configMap(nil), want: "data: is missing: must contain the file of a prober"},
		"data of other types": {text: "kind: ConfigMap\ndata: {a: {b: c}}\n", want: `data["a"]: {...}: must be a text`},
		"a key of no data":    {text: one, key: "a", want: `--key: "a": must only be given for a ConfigMap`},
		"a map in a map":      {text: configMap(map[string]string{"a": "kind: ConfigMap"}), want: "must be the file inside the ConfigMap"},
		"no YAML":             {text: "a: b: c\n", want: "mapping values are not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			spec, err := Import(path, tc.key, "garden", false)
			switch {
			case tc.want == "" && (err != nil || spec.KubeconfigSecretName != "probe"):
				t.Errorf("Import() = %+v, %v, want the Secret probe", spec, err)
			case tc.want != "" && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), path, "FILE"), tc.want)):
				t.Errorf("Import() = %v, want %q", err, tc.want)
			}
		})
	}
}
