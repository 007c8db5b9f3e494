package execwire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/execwire"
)

func TestArgs(t *testing.T) {
	tests := map[string]execwire.Start{
		"alone":               {Directory: "/run/a", Peer: 5678, Timeout: time.Second, Command: []string{"/alive"}},
		"with another":        {Directory: "/run/a", Peer: 1, Timeout: time.Hour, Command: []string{"sh", "-c", ""}, Then: []string{"/started", "--", "-x"}},
		"flags in its words":  {Directory: "/run/a", Timeout: time.Second, Command: []string{"--words=9", "--"}},
		"retried":             {Directory: "/run/a", Timeout: time.Second, Command: []string{"/alive"}, Retried: true},
		"of the largest user": {Directory: "/run/a", Peer: 1<<32 - 1, Timeout: time.Second, Command: []string{"a"}},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			mode, got, err := execwire.Parse(want.Args(execwire.ModeFork))
			if err != nil || mode != execwire.ModeFork {
				t.Fatalf("Parse() = %q, %v", mode, err)
			}
			if len(got.Then) == 0 {
				got.Then = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadArgs(t *testing.T) {
	const enough = "start --directory=/a --timeout=1s "
	tests := map[string]string{
		"":                                    "arguments: must begin with start",
		"start --nothing":                     "parse arguments: flag provided but not defined: -nothing",
		enough + "--words=0 -- a":             "--words: 0: must be 1 to 1, the number of arguments after --",
		enough + "--words=2 -- a":             "--words: 2: must be 1 to 1",
		"start --directory=/a --words=1 -- a": "--directory and --timeout: are required",
		"start --timeout=1s --words=1 -- a":   "--directory and --timeout: are required",
	}
	for args, want := range tests {
		t.Run(args, func(t *testing.T) {
			if _, _, err := execwire.Parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Parse() error = %v, want %q", err, want)
			}
		})
	}
}

// FuzzRead reads what a hostile helper may answer.
func FuzzRead(f *testing.F) {
	f.Add("")
	f.Add("\x01\x7f")
	f.Add("\x09\x00")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := execwire.Read(strings.NewReader(text))
		if err == nil && !strings.HasPrefix(text, string(a.Encode())) {
			t.Errorf("Read(%q) = %+v", text, a)
		}
	})
}
