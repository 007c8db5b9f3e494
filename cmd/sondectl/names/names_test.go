package names_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		arg  string
		kind names.Kind
		name string
		err  string
	}{
		"a name":           {arg: "web-1", name: "web-1"},
		"of a kind":        {arg: "dataplane/web-1", kind: names.Dataplane, name: "web-1"},
		"a proxy":          {arg: "proxy/web-1", kind: names.Dataplane, name: "web-1"},
		"a short form":     {arg: "dp/web-1", kind: names.Dataplane, name: "web-1"},
		"a plural":         {arg: "services/web", kind: names.Service, name: "web"},
		"as in a manifest": {arg: "Dataplane/web-1", kind: names.Dataplane, name: "web-1"},
		"as kubectl":       {arg: "dataplane.sonde.dev/web-1", kind: names.Dataplane, name: "web-1"},
		"an invalid kind":  {arg: "foo/web-1", err: `"foo/web-1": must be NAME, dataplane/NAME or service/NAME`},
		"another kind":     {arg: "mesh/default", err: `"mesh/default": must be NAME, dataplane/NAME or service/NAME`},
		"no name":          {arg: "dataplane/", err: `"dataplane/": must be NAME, dataplane/NAME or service/NAME`},
		"no kind":          {arg: "/web-1", err: `"/web-1": must be NAME, dataplane/NAME or service/NAME`},
		"too much":         {arg: "dataplane/a/b", err: `"dataplane/a/b": must be NAME, dataplane/NAME or service/NAME`},
		"nothing":          {err: "NAME: must not be empty"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			kind, is, err := names.Parse(tc.arg, names.Dataplane, names.Service)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if kind != tc.kind || is != tc.name || text != tc.err {
				t.Errorf("Parse(%q) = %q, %q, %q", tc.arg, kind, is, text)
			}
		})
	}
}

func TestFlag(t *testing.T) {
	value := "default"
	f := &names.Flag{To: &value, Among: []names.Kind{names.Mesh}}
	for _, step := range []struct {
		set, want string
		fails     bool
	}{{"mesh/shop", "shop", false}, {"prod", "prod", false}, {"dataplane/web", "prod", true}, {"", "", false}} {
		if err := f.Set(step.set); (err != nil) != step.fails || value != step.want {
			t.Errorf("Set(%q): %v, the value is %q", step.set, err, value)
		}
	}
}
