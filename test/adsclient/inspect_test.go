package adsclient

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestRefusedVersionIsNotApplied(t *testing.T) {
	t.Parallel()
	old, other := cluster(t, "a", ""), cluster(t, "b", "")
	p := startPlane(t, anyone, old, assignment(t, "a"))
	refused := cluster(t, "a", "refused")
	s := NewState(NewCatalog())
	o := p.options(s)
	o.Inspect = func(_ resource.Type, name, version, body []byte) (string, error) {
		if string(version) == refused.Version && string(body) == string(refused.Body.GetValue()) {
			return "I do not like " + string(name), nil
		}
		return "", nil
	}
	p.run(o)
	until(t, "the proxy has what was there first", has(s, old, assignment(t, "a")))

	p.publish(refused, assignment(t, "a"))
	until(t, "the server knows what was refused", func() bool {
		all := p.server.Status()
		return len(all) == 1 && slices.ContainsFunc(all[0].Types, func(t xds.TypeStatus) bool {
			return len(t.NACKs) == 1 && t.NACKs[0].Version == refused.Version && t.NACKs[0].Reason == "I do not like a"
		})
	})
	p.publish(refused, assignment(t, "a"), other, assignment(t, "b"))
	until(t, "all else goes on", has(s, old, assignment(t, "a"), other, assignment(t, "b")))
}

func TestInspectEndsTheStream(t *testing.T) {
	t.Parallel()
	p := startPlane(t, anyone, cluster(t, "a", ""))
	o := p.options(NewState(NewCatalog()))
	want := errors.New("these bytes are wrong")
	o.Inspect = func(resource.Type, []byte, []byte, []byte) (string, error) { return "", want }
	if err := Run(t.Context(), o); !errors.Is(err, want) {
		t.Errorf("Run() error = %v, want %v", err, want)
	}
}

func TestLackingNamesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	p := startPlane(t, anyone, cluster(t, "a", ""), assignment(t, "a"), cluster(t, "b", ""))
	s := NewState(NewCatalog())
	p.run(p.options(s))
	until(t, "one assignment is lacking", func() bool {
		return s.Count()[resource.Endpoint] == 1 && strings.Join(s.Lacking()[resource.Endpoint], " ") == "b"
	})
}
