package mesh_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// portOrName is the number or the name of a port, like Kubernetes' IntOrString.
type portOrName struct{}

func (*portOrName) UnmarshalJSON(data []byte) error {
	var n int32
	var text string
	if json.Unmarshal(data, &text) == nil {
		return nil
	}
	return json.Unmarshal(data, &n)
}

func (*portOrName) OpenAPISchemaFormat() string { return "int-or-string" }

// length has a decoder that refuses a text in its own words, and any other value in encoding/json's.
type length time.Duration

func (l *length) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	_, err := time.ParseDuration(text)
	return err
}

type handler struct {
	Path string     `json:"path"`
	Port portOrName `json:"port"`
}

type container struct {
	Name  string `json:"name"`
	TTY   bool   `json:"tty,omitempty"`
	Probe *struct {
		handler `json:",inline"`

		Period int32  `json:"period"`
		Wait   length `json:"wait"`
	} `json:"probe"`
	Env []struct {
		Value string `json:"value"`
	} `json:"env"`
}

type document struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
		Seen   []byte            `json:"seen"`
	} `json:"metadata"`
	Count      uint16      `json:"count"`
	Share      float64     `json:"share"`
	Containers []container `json:"containers"`
	Other      any         `json:"other"`

	Validity  mesh.Duration `json:"validity"`
	Addresses []netip.Addr  `json:"addresses"`
}

func TestExplainJSON(t *testing.T) {
	tests := map[string]struct {
		data string
		path string
		want []string
	}{
		"no object":         {data: `[1]`, want: []string{`[...]: must be an object`}},
		"no object, within": {data: `"x"`, path: "spec", want: []string{`spec: "x": must be an object`}},
		"cut":               {data: `{"count": `, want: []string{"must be JSON: unexpected end of JSON input"}},
		"cut, within":       {data: `{`, path: "spec", want: []string{"spec: must be JSON: unexpected end of JSON input"}},
		"each field": {
			data: `{"metadata": {"labels": {"a/b": 5, "c": "d"}, "seen": 1}, "count": 70000, "share": "1",
				"containers": [null, {"name": "a", "tty": "yes"}, {"name": 1, "probe": {"path": {}, "port": {}, "period": 1.5, "wait": 1}}]}`,
			want: []string{
				`metadata.labels["a/b"]: 5: must be a text: put it in quotes`,
				`metadata.seen: 1: must be a text in base64`,
				`count: 70000: must be a whole number from 0 to 65535`,
				`share: "1": must be a number that a float64 holds: write 1 without quotes`,
				`containers[1].tty: "yes": must be true or false`,
				`containers[2].name: 1: must be a text: put it in quotes`,
				`containers[2].probe.path: {...}: must be a text`,
				`containers[2].probe.port: {...}: must be a whole number or a text`,
				`containers[2].probe.period: 1.5: must be a whole number from -2147483648 to 2147483647`,
				`containers[2].probe.wait: 1: must be a text`,
			},
		},
		"a decoder of its own": {data: `{"containers": [{"probe": {"wait": "x"}}]}`, want: []string{`containers[0].probe.wait: "x": time: invalid duration "x"`}},
		"a text of its own":    {data: `{"validity": "soon", "addresses": [5, {"a": 1}, "x", "::1", null]}`, want: []string{`validity: "soon": ` + mesh.AllowedDuration, `addresses[0]: 5: must be a text: put it in quotes`, `addresses[1]: {...}: must be a text`, `addresses[2]: "x": ParseAddr("x"): unable to parse IP`}},
		"no text of its own":   {data: `{"validity": 5, "count": -1}`, want: []string{`validity: 5: ` + mesh.AllowedDuration, `count: -1: must be a whole number from 0 to 65535`}},
		"a list":               {data: `{"containers": {}, "metadata": []}`, want: []string{`containers: {...}: must be a list`, `metadata: [...]: must be an object`}},
		"a map":                {data: `{"metadata": {"labels": ["x"]}}`, want: []string{`metadata.labels: [...]: must be an object`}},
		"perhaps a secret":     {data: `{"containers": [{"env": [{"value": 1234}]}]}`, want: []string{`containers[0].env[0].value: must be a text: put it in quotes`}},
		"a number beyond all":  {data: `{"other": {"x": [{}, 1e999]}, "unknown": [{"x": 1e999}]}`, want: []string{`other: 1e999: must be a number that a float64 holds`}},
		"long texts": {
			data: `{"metadata": {"labels": {"` + strings.Repeat("k", 1000) + `": 5}}, "count": "` + strings.Repeat("ä", 1000) + `"}`,
			want: []string{
				`metadata.labels["` + strings.Repeat("k", 100) + `..."]: 5: must be a text: put it in quotes`,
				`count: "` + strings.Repeat("ä", 50) + `...": must be a whole number from 0 to 65535`,
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var d document
			err := json.Unmarshal([]byte(tc.data), &d)
			if err == nil {
				t.Fatal("encoding/json reads it")
			}
			got := strings.Split(mesh.ExplainJSON(tc.path, []byte(tc.data), &d).Error(), "\n")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ExplainJSON() (-want +got):\n%s\nencoding/json: %v", diff, err)
			}
		})
	}
}

func TestExplainJSONHasLimits(t *testing.T) {
	items := strings.Repeat("5,", 100_000)
	var values []string
	err := mesh.ExplainJSON("", []byte("["+items+"5]"), &values)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("ExplainJSON() = %v, want several errors", err)
	}
	if got := len(joined.Unwrap()); got != 21 {
		t.Errorf("%d errors, want 20, and one that says that there may be more", got)
	}
}

// FuzzExplainJSON shows that whatever encoding/json refuses is explained in terms of fields.
func FuzzExplainJSON(f *testing.F) {
	for _, seed := range []string{`{`, `5`, `{"count": -1}`, `{"containers": [{"probe": {"port": []}}]}`, `{"other": 1e999}`, `{"metadata": {"labels": {"": {}}}}`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d document
		if json.Unmarshal(data, &d) == nil {
			return
		}
		err := mesh.ExplainJSON("", data, &d)
		if err == nil {
			t.Fatalf("%q is not explained", data)
		}
		if text := fmt.Sprint(err); !strings.Contains(string(data), " Go ") && strings.Contains(text, " Go ") {
			t.Errorf("ExplainJSON(%q) = %s", data, text)
		}
	})
}
