package session

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

func TestEnvoyState(t *testing.T) {
	e := NewEnvoyState()
	due := func() bool {
		select {
		case <-e.wake:
			return true
		default:
			return false
		}
	}
	e.all()
	e.Set(nil)
	if due() {
		t.Error("an Envoy that has not ended is reported")
	}
	tests := map[string]struct{ down, want string }{
		"several lines": {"run envoy:\n\texit status 1", "run envoy: exit status 1"},
		"no UTF-8":      {"run \xff envoy", "run ? envoy"},
		"long":          {strings.Repeat("ä", agentv1.MaxReason), strings.Repeat("ä", agentv1.MaxReason/2)},
		"cut inside":    {"x" + strings.Repeat("ä", agentv1.MaxReason), "x" + strings.Repeat("ä", agentv1.MaxReason/2-1)},
	}
	for name, tc := range tests {
		e.Set(errors.New(tc.down))
		if got := e.take().GetDown(); !due() || got != tc.want || !utf8.ValidString(got) {
			t.Errorf("%s: reported %q, want %q", name, got, tc.want)
		}
		if e.Set(errors.New(tc.down)); due() {
			t.Errorf("%s: the same is reported again", name)
		}
	}
	if e.all(); !due() {
		t.Error("a new session gets no report")
	}
	if e.Set(nil); !due() || e.take().GetDown() != "" {
		t.Error("an Envoy that answers again is not reported")
	}
}
