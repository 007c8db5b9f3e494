package chart_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestWhatIsReadAgainRestartsNothing changes each key that a running control plane reads again: the file changes, and
// the pods do not restart.
func TestWhatIsReadAgainRestartsNothing(t *testing.T) {
	live := map[string]string{ // a non-default value by key
		"drainAwareHealthz": "false", "guardedLiveness.mode": "dryRun", "guardedLiveness.hold": "warning", "guardedLiveness.perMinute": "10", "guardedLiveness.perNodePerMinute": "2",
		"guardedLiveness.blacklist.namespaces": "{kube-system}", "guardedLiveness.blacklist.workloads": "{Deployment/shop/web}",
		"freeze.mode": "dryRun", "guardedLiveness.blacklist.images": "{redis}", "guardedLiveness.breaker.workloads": "5", "guardedLiveness.breaker.percent": "50",
	}
	file, template := rendered(t)
	for key, value := range live {
		flag := "--set=config." + key + "=" + value
		if otherFile, otherTemplate := rendered(t, flag); otherFile == file || otherTemplate != template {
			t.Errorf("with %s the file changes: %t, the pods restart: %t", flag, otherFile != file, otherTemplate != template)
		}
	}
	if _, other := rendered(t, "--set=config.minServing=2"); other == template {
		t.Error("the pods do not restart for a key that is read at the start alone")
	}

	reference, err := os.ReadFile("../../docs/reference/sonde-cp.md")
	if err != nil {
		t.Fatal(err)
	}
	var keys, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `--.*reloaded when the --config file changes.*$").FindAllString(string(reference), -1) {
		keys = append(keys, strings.Trim(strings.Split(row, " | ")[2], "`"))
	}
	for key := range live {
		want = append(want, key)
	}
	slices.Sort(keys)
	slices.Sort(want)
	if d := cmp.Diff(want, keys); d != "" {
		t.Errorf("keys that are read again, here and in the reference (-here +there):\n%s", d)
	}
}

// rendered returns the configuration file of the control plane, and the annotation whose change restarts its
// pods.
func rendered(t *testing.T, flags ...string) (file, template string) {
	t.Helper()
	var config corev1.ConfigMap
	var d appsv1.Deployment
	only(t, "ConfigMap", &config, flags...)
	only(t, "Deployment", &d, flags...)
	return config.Data["config.yaml"], d.Spec.Template.Annotations["sonde.dev/config"]
}
