package cni

import (
	"strings"
	"testing"
)

func TestOptionsBadInput(t *testing.T) {
	o := Options{Node: "a", Namespace: "b", Socket: "/s", ConfigDir: "/c", PluginDir: "p", Plugin: "/p", CacheDir: ""}
	err := o.Validate()
	for _, want := range []string{"DaemonSet: must not be empty", `PluginDir: "p": must be an absolute path`, "CacheDir"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want %s", err, want)
		}
	}
}
