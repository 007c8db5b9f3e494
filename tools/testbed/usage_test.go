package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpUsage shows that up and binaries name an unsupported version of Kubernetes, and the supported ones.
func TestUpUsage(t *testing.T) {
	for _, args := range [][]string{{"up", "--kubernetes=1.28.0"}, {"up", "--node-kubernetes=1.37.2,1.28.0"}, {"binaries", "--kubernetes=1.28.0"}} {
		cmd := newCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"--state=" + filepath.Join(t.TempDir(), "state")}, args...))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), `version "1.28.0" of Kubernetes: choose of 1.37.2, 1.36.3,`) {
			t.Errorf("%q: error = %v", args, err)
		}
	}
}

// TestLinkUsage shows errors with the invalid value and the allowed ones.
func TestLinkUsage(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"node":       {[]string{"two", "down"}, `node "two": it must be a number`},
		"state":      {[]string{"2", "away"}, `state "away" of the link: it must be up or down`},
		"to":         {[]string{"2", "down", "--to=etcd"}, `--to "etcd": it must be apiserver`},
		"to nothing": {[]string{"2", "down", "--to="}, `--to "": it must be apiserver`},
		"no cluster": {[]string{"2", "down", "--to=apiserver"}, "there is no cluster in"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := newCommand()
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			cmd.SetArgs(append([]string{"--state=" + filepath.Join(t.TempDir(), "state"), "link"}, tc.args...))
			if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}
