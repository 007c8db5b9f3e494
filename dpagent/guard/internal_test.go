package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
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
		t.Errorf("the guard uses the header %s, the injector writes %s", probeHeader, mesh.ProbeHeader)
	}
	if alive.ID != mesh.ProbeAlive {
		t.Errorf("the guard uses the ID %s for the agent's liveness, the injector writes %s", alive.ID, mesh.ProbeAlive)
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
	tab.add(wire.Limit{Timeout: 9 * time.Second}) // matched by path
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
		t.Errorf("the guard waits %s for a hanging worker, want longer than the kubelet waits", got)
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
		t.Errorf("wire.WithRole() changed its argument:\n%s", diff)
	}
}

// written returns the log line about an ended worker.
func written(t *testing.T, asText bool) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	logger{w, asText}.write("ERROR", "worker ended", "err", "signal: \"killed\"\n\x00\\ é", "pid", 4242)
	_ = w.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTextLog(t *testing.T) {
	out := written(t, true)
	stamp, rest, _ := strings.Cut(out, " ")
	if _, err := time.Parse("time=2006-01-02T15:04:05.000Z07:00", stamp); err != nil {
		t.Error(err)
	}
	want := `level=ERROR msg="worker ended" err="signal: \"killed\"??\\ ??" pid=4242` + "\n"
	if diff := cmp.Diff(want, rest); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestLog(t *testing.T) {
	out := written(t, false)
	var line map[string]any
	if err := json.Unmarshal([]byte(out), &line); err != nil {
		t.Fatalf("%q: %v", out, err)
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

// TestUnanswered checks the guard's response while no worker answers.
func TestUnanswered(t *testing.T) {
	liveness, readiness := &wire.Limit{ID: "a", Liveness: true}, &wire.Limit{ID: "b"}
	for name, tc := range map[string]struct {
		told  []uint32 // messages of the worker
		limit *wire.Limit
		want  int
	}{
		"liveness":                {nil, liveness, 200},
		"liveness, warning":       {[]uint32{1}, liveness, 302},
		"liveness, errored again": {[]uint32{1, 0}, liveness, 200},
		"readiness, warning":      {[]uint32{1}, readiness, 200},
		"not known, warning":      {[]uint32{1}, nil, 200},
		"the agent's, warning":    {[]uint32{1}, &alive, 200},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{}
			for _, id := range tc.told {
				g.onMessage(wire.Header{Kind: wire.Hold, ID: id}, nil, nil)
			}
			answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(g.unanswered(tc.limit))), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			body, err := io.ReadAll(answer.Body)
			held := err == nil && strings.HasPrefix(string(body), wire.HeldText) && answer.Header.Get("Location") == wire.HeldLocation
			if answer.StatusCode != tc.want || held != (tc.want == 302) {
				t.Errorf("answer %d to %q, %q, %v, want %d", answer.StatusCode, answer.Header.Get("Location"), body, err, tc.want)
			}
		})
	}
}
