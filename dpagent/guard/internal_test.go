package guard

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

func TestProbeHeader(t *testing.T) {
	if probeHeader != mesh.ProbeHeader {
		t.Errorf("the guard looks for %s, the injector writes %s", probeHeader, mesh.ProbeHeader)
	}
	if alive.ID != mesh.ProbeAlive {
		t.Errorf("the guard takes %s for the liveness of the agent, the injector writes %s", alive.ID, mesh.ProbeAlive)
	}
}

func TestProbeID(t *testing.T) {
	tests := map[string]struct{ head, want string }{
		"none":            {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"the kubelet's":   {"GET / HTTP/1.1\r\nHost: x\r\nSonde-Probe: a-1\r\nAccept: */*\r\n\r\n", "a-1"},
		"another case":    {"GET / HTTP/1.1\nsonde-probe:a\n\n", "a"},
		"in the body":     {"GET / HTTP/1.1\r\n\r\nSonde-Probe: a\r\n", ""},
		"in the path":     {"GET /Sonde-Probe: HTTP/1.1\r\n\r\n", ""},
		"longer than any": {"GET / HTTP/1.1\r\nSonde-Probe: " + strings.Repeat("a", wire.MaxID+1) + "\r\n\r\n", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := string(probeID([]byte(tc.head))); got != tc.want {
				t.Errorf("probeID() = %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzHeadEnds(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nrest"), 20)
	f.Add([]byte("GET / HTTP/1.1\nHost: x\n\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		cut = min(max(cut, 0), len(b))
		first := headEnds(b[:cut], 0)
		if whole := headEnds(b, 0); whole != (first || headEnds(b, cut)) {
			t.Errorf("headEnds(%q) = %v, but not in two reads, of %d bytes first", b, whole, cut)
		}
		probeID(b)
	})
}

func TestLimits(t *testing.T) {
	tab := table{limits: map[string]*wire.Limit{}}
	tab.add(wire.Limit{ID: "two", Timeout: 2 * time.Second})
	tab.add(wire.Limit{Timeout: 9 * time.Second}) // found by its path
	tab.add(wire.Limit{ID: "hook", Hook: true})
	tests := map[string]struct {
		id    string
		given bool
		want  time.Duration // 0 for none
	}{
		"known":               {id: "two", want: 2 * time.Second},
		"known, at work":      {id: "two", given: true, want: 2*time.Second + verdictGrace},
		"a hook":              {id: "hook"},
		"unknown: any of all": {id: "x", want: 2 * time.Second},
		"unknown, at work":    {id: "", given: true, want: 9*time.Second + verdictGrace},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := tab.timeLimit(tab.limits[tc.id], tc.given)
			if got != tc.want || ok != (tc.want > 0) {
				t.Errorf("limit() = %s, %v, want %s", got, ok, tc.want)
			}
		})
	}
	if got, _ := tab.timeLimit(&alive, true); got < mesh.GuardedTimeoutSeconds*time.Second {
		t.Errorf("a worker that hangs is silent for %s, which must be longer than the kubelet asks for", got)
	}
	if got, _ := new(table).timeLimit(nil, true); got != defaultTimeout+verdictGrace {
		t.Errorf("limit() of an empty table = %s", got)
	}
}

func TestBackoff(t *testing.T) {
	now := time.Now()
	var b backoff
	if d := b.delay(now); d != 0 {
		t.Errorf("first delay = %s, want none", d)
	}
	for after, most := range map[time.Duration]time.Duration{
		0: minDelay, time.Second: minDelay, 30 * time.Second: time.Second, time.Minute: 2 * time.Second, time.Hour: maxDelay,
	} {
		if d := b.delay(now.Add(after)); d > most || d < most*3/4 {
			t.Errorf("delay after %s = %s, want up to a quarter less than %s", after, d, most)
		}
	}
}

func TestWithRole(t *testing.T) {
	role := wire.Role{Starts: 2, Addresses: []string{"127.0.0.1:9000"}}.String()
	env := []string{"A=b", "GOGC=50", wire.Env + "=guard", "GOMAXPROCS=3"}
	before := slices.Clone(env)
	want := []string{"A=b", "GOGC=50", "GOMAXPROCS=3", wire.Env + "=" + role}
	if diff := cmp.Diff(want, wire.WithRole(env, role)); diff != "" {
		t.Errorf("wire.WithRole() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, env); diff != "" {
		t.Errorf("wire.WithRole() changed what it was given:\n%s", diff)
	}
}

func TestLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	logger{w}.write("ERROR", "worker ended", "err", "signal: \"killed\"\n\x00\\ é", "pid", 4242)
	_ = w.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	at, _ := line["time"].(string)
	if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
		t.Error(err)
	}
	delete(line, "time")
	want := map[string]any{"level": "ERROR", "msg": "worker ended", "err": `signal: "killed"??\ ??`, "pid": 4242.0}
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}
