package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestHintsWorkInBothShells rejects what bash and interactive zsh read differently: comments, patterns, and unquoted
// variables.
func TestHintsWorkInBothShells(t *testing.T) {
	h := hints{
		dashboard: "http://127.0.0.1:1/#token=x", programs: "/home/a b/bin", address: "127.0.0.1:2", ca: "/tmp/it's/ca.crt", token: "/tmp/token",
		store: "/tmp/[1]", logs: "/tmp/logs", b: "http://127.0.0.1:3/", c: "http://127.0.0.1:4/", plain: "http://127.0.0.1:5/",
		probe: "http://127.0.0.1:6/tcp/7", application: "127.0.0.1:7", app: 8, agent: 9, cp: 10,
	}
	quoted := regexp.MustCompile(`'[^']*'|"[^"]*"|\\'`)
	commands := 0
	for line := range strings.Lines(h.String()) {
		command, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "  ")
		if !indented || command == h.dashboard {
			continue
		}
		commands++
		if bare := quoted.ReplaceAllString(command, ""); strings.ContainsAny(bare, `#?*[]{}$~^!'"`) {
			t.Errorf("%s: its rest without quoted words is %s", command, bare)
		}
	}
	if commands < 20 {
		t.Errorf("%d commands found:\n%s", commands, h)
	}
	for _, want := range []string{`export PATH='/home/a b/bin':"$PATH"`, `export SONDECTL_CA_CERT_FILE='/tmp/it'\''s/ca.crt'`, "rm '/tmp/[1]/bad.yaml'"} {
		if !strings.Contains(h.String(), "\n  "+want+"\n") {
			t.Errorf("the hints lack %s", want)
		}
	}
}
