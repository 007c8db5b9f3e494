package main

import (
	"io"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no state":      {nil, "--state is missing"},
		"no output":     {[]string{"--state=x"}, "--output is missing"},
		"no processes":  {[]string{"--state=x", "--output=x", "--procs=0"}, "--procs 0"},
		"bad focus":     {[]string{"--state=x", "--output=x", "--focus=["}, "--focus: "},
		"more than one": {[]string{"x"}, `unknown argument "x"`},
		"no cluster":    {[]string{"--state=" + t.TempDir(), "--output=x"}, "there is no cluster in "},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), tc.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("run() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}
