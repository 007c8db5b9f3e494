package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

var self = Self{Namespace: "garden", Name: "sonde-watchdog"}

// read reads a file with this text.
func read(t *testing.T, text string, local bool) (*v1alpha1.WatchedClusterSpec, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadFile(path, "garden", local, self)
}

// dependant is a dependant in the format of the file.
func dependant(name string, up, down string) string {
	return "- ref: {apiVersion: apps/v1, kind: Deployment, name: " + name + "}\n  scaleUp: " + up + "\n  scaleDown: " + down + "\n"
}

const secret = "kubeConfigSecretName: probe\n"

// one is a minimal file.
var one = secret + "dependentResourceInfos:\n" + dependant("kcm", "{level: 0}", "{level: 1}")

func TestDefaults(t *testing.T) {
	spec, err := read(t, one, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Of(spec, "garden", self)
	if err != nil {
		t.Fatal(err)
	}
	want := &Cluster{
		Secret: "probe",
		Probe:  Probe{Interval: 10 * time.Second, Jitter: 0.2, InitialDelay: 30 * time.Second, Timeout: 30 * time.Second, Throttled: 10 * time.Second},
		Judge:  partition.Settings{Silence: 30 * time.Second, Enter: 0.6, Leave: 0.6 * 2 / 3, Calm: 3, Quiet: 30 * time.Second},
		Dependants: []Dependant{{
			Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "kcm"},
			Up:  Scaling{Level: 0, Timeout: 30 * time.Second}, Down: Scaling{Level: 1, Timeout: 30 * time.Second},
		}},
	}
	want.Judge.Leave = partition.LeaveFor(0.6)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := got.Judge.Validate(); err != nil {
		t.Error(err)
	}
}

// All keys of the Dependency Watchdog, and Sonde's.
func TestAllKeys(t *testing.T) {
	spec, err := read(t, `
kubeConfigSecretName: "probe"
probeInterval: 20s
initialDelay: 5s
probeTimeout: 3s
backOffJitterFactor: 0.5 # the letter case does not matter to the Dependency Watchdog
kcmNodeMonitorGraceDuration: 2m
nodeLeaseFailureFraction: 0.8
leaseExpiryFraction: 0.5
nodeLeaseRecoveryFraction: 0.3
backOffDurationForThrottledRequests: 7s
dependentResourceInfos:
- ref: {kind: StatefulSet, name: kcm, apiVersion: apps/v1}
  optional: true
  scaleUp: {level: 2, initialDelay: 30s, timeout: 1m}
  scaleDown: {level: 0, initialDelay: 1s, timeout: 2m}
`, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Of(spec, "garden", self)
	if err != nil {
		t.Fatal(err)
	}
	want := &Cluster{
		Secret: "probe",
		Probe:  Probe{Interval: 20 * time.Second, Jitter: 0.5, InitialDelay: 5 * time.Second, Timeout: 3 * time.Second, Throttled: 7 * time.Second},
		Judge:  partition.Settings{Silence: time.Minute, Enter: 0.8, Leave: 0.3, Calm: 3, Quiet: time.Minute},
		Dependants: []Dependant{{
			Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "kcm"}, Optional: true,
			Up: Scaling{Level: 2, Delay: 30 * time.Second, Timeout: time.Minute}, Down: Scaling{Level: 0, Delay: time.Second, Timeout: 2 * time.Minute},
		}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLocal(t *testing.T) {
	for name, text := range map[string]string{"with a Secret": one, "without": strings.TrimPrefix(one, secret)} {
		spec, err := read(t, text, true)
		if err != nil || !spec.Local || spec.KubeconfigSecretName != "" {
			t.Errorf("%s: %+v, %v, want the local cluster alone", name, spec, err)
		}
	}
}

// wrong maps files to all their expected errors.
var wrong = map[string]struct {
	text string
	want []string
}{
	"nothing": {"", []string{"kubeConfigSecretName: is required", "dependentResourceInfos: must have at least one"}},
	"no mandatory value": {"kubeConfigSecretName: ''\nprobeInterval: 20s\ndependentResourceInfos:\n" +
		"- ref: {kind: Deployment, name: a, apiVersion: apps/v/1}\n" + dependant("b", "{level: 1}", "{level: 0}") +
		"- ref: {kind: Deployment, name: c, apiVersion: apps/v1}\n  scaleUp: {level: 0}\n", []string{
		"kubeConfigSecretName: is required", `dependentResourceInfos[0].ref.apiVersion: "apps/v/1": must be the version of a kind, such as apps/v1`,
		"dependentResourceInfos[0].scaleUp: is required", "dependentResourceInfos[0].scaleDown: is required", "dependentResourceInfos[2].scaleDown: is required",
	}},
	"no YAML":           {secret + "a: b: c\n", []string{"mapping values are not allowed"}},
	"a key twice":       {one + "probeInterval: 1s\nprobeInterval: 2s\n", []string{`key "probeInterval" already set`}},
	"a text for levels": {secret + "dependentResourceInfos:\n- ref: {kind: Deployment, name: a, apiVersion: apps/v1}\n  scaleUp: level\n  scaleDown: {level: 0}\n", []string{`dependentResourceInfos[0].scaleUp: "level": must be an object`}},
	"a duration":        {one + "probeInterval: soon\n", []string{`probeInterval: "soon": time: invalid duration`}},
	"unknown key":       {one + "probeIntervall: 1s\n", []string{"probeIntervall: is an unknown field: did you mean probeInterval?"}},
	"unknown deep key":  {secret + "dependentResourceInfos:\n" + dependant("a", "{level: 0, delay: 3s}", "{level: 0}"), []string{"dependentResourceInfos[0].scaleUp.delay: is an unknown field"}},
	"keys of 1.0": {"internalKubeConfigSecretName: a\nexternalKubeConfigSecretName: b\nfailureThreshold: 3\ninternalProbeFailureBackoffDuration: 30s\n", []string{
		"internalKubeConfigSecretName: is a key of earlier releases of the Dependency Watchdog: remove it, and write kubeConfigSecretName",
		"externalKubeConfigSecretName: is a key of earlier releases of the Dependency Watchdog: write kubeConfigSecretName",
		"failureThreshold: is a key of earlier releases of the Dependency Watchdog: remove it: one probe decides", "internalProbeFailureBackoffDuration: is a key of earlier",
	}},
	"keys of 0.8": {"namespace: x\nprobes:\n- name: a\n", []string{
		"namespace: is a key of earlier releases of the Dependency Watchdog: remove it", "probes: is a key of earlier releases of the Dependency Watchdog: write a file for each",
	}},
	"a dependant of 0.8": {secret + "dependentResourceInfos:\n- scaleRef: {kind: Deployment}\n  scaleUpDelaySeconds: 3\n", []string{
		"dependentResourceInfos[0].scaleRef: is a key of earlier releases of the Dependency Watchdog: write ref", "dependentResourceInfos[0].scaleUpDelaySeconds: is a key of earlier",
	}},
	"the weeder's file":           {"watchDuration: 5m\nservicesAndDependantSelectors: {}\n", []string{"watchDuration: is a key of the Dependency Watchdog's weeder, not of its prober", "servicesAndDependantSelectors: is a key of the"}},
	"unknown and of a wrong type": {one + "probeIntervall: 1s\nprobeTimeout: soon\n", []string{"probeIntervall: is an unknown field: did you mean probeInterval?\nprobeTimeout: \"soon\""}},
	"two documents":               {one + "---\n" + one, []string{"must be one YAML document"}},
	"a ConfigMap":                 {"apiVersion: v1\nkind: ConfigMap\ndata: {}\n", []string{"must be the file inside the ConfigMap"}},
	"fraction 0":                  {one + "nodeLeaseFailureFraction: 0\n", []string{`nodeLeaseFailureFraction: 0: must be more than 0 and at most 1`}},
	"fraction 1.5":                {one + "nodeLeaseFailureFraction: 1.5\n", []string{`nodeLeaseFailureFraction: 1.5: must be more than 0 and at most 1`}},
	"fraction text":               {one + "nodeLeaseFailureFraction: most\n", []string{`nodeLeaseFailureFraction: "most": must be a number`}},
	"leave above enter":           {one + "nodeLeaseRecoveryFraction: 0.61\n", []string{`nodeLeaseRecoveryFraction: 0.61: must be at most nodeLeaseFailureFraction, 0.6`}},
	"expiry":                      {one + "leaseExpiryFraction: -1\n", []string{`leaseExpiryFraction: -1: must be more than 0`}},
	"jitter":                      {one + "backoffJitterFactor: -0.1\n", []string{`backoffJitterFactor: -0.1: must be from 0 to 10`}},
	"no grace":                    {one + "kcmNodeMonitorGraceDuration: 0s\n", []string{`kcmNodeMonitorGraceDuration: "0s": must be from 1ms to 1h0m0s`}},
	"negative interval":           {one + "probeInterval: -1s\n", []string{`probeInterval: "-1s": must be from 100ms to 1h0m0s`}},
	"negative level":              {secret + "dependentResourceInfos:\n" + dependant("a", "{level: -1}", "{level: 0, timeout: 0s}"), []string{`dependentResourceInfos[0].scaleUp.level: -1: must be 0 or more`, `dependentResourceInfos[0].scaleDown.timeout: "0s"`}},
	"twice":                       {secret + "dependentResourceInfos:\n" + dependant("a", "{level: 0}", "{level: 0}") + dependant("a", "{level: 1}", "{level: 1}"), []string{`dependentResourceInfos[1].ref.name: "a": must be given once: it is dependentResourceInfos[0] already`}},
	"twice, two versions": {secret + "dependentResourceInfos:\n" + dependant("a", "{level: 0}", "{level: 0}") +
		strings.Replace(dependant("a", "{level: 1}", "{level: 1}"), "apps/v1", "apps/v1beta1", 1), []string{`must be given once`}},
	"itself":      {secret + "dependentResourceInfos:\n" + dependant("sonde-watchdog", "{level: 0}", "{level: 0}"), []string{`dependentResourceInfos[0].ref.name: "sonde-watchdog": must not be the watchdog itself`}},
	"no kind":     {secret + "dependentResourceInfos:\n- ref: {name: a, apiVersion: apps/v1}\n  scaleUp: {level: 0}\n  scaleDown: {level: 0}\n", []string{"dependentResourceInfos[0].ref.kind: is required"}},
	"a bad name":  {secret + "dependentResourceInfos:\n" + dependant("A/b", "{level: 0}", "{level: 0}"), []string{`dependentResourceInfos[0].ref.name: "A/b": must be the name of an object`}},
	"no ref":      {secret + "dependentResourceInfos:\n- scaleUp: {level: 0}\n  scaleDown: {level: 0}\n", []string{"dependentResourceInfos[0].ref.apiVersion", "dependentResourceInfos[0].ref.kind", "dependentResourceInfos[0].ref.name"}},
	"bad Secret":  {strings.Replace(one, "probe", "Probe_", 1), []string{`kubeConfigSecretName: "Probe_": must be the name of an object`}},
	"a list":      {"[]\n", []string{"must be an object"}},
	"far too big": {one + "# " + strings.Repeat("x", maxFile) + "\n", []string{"must be at most 1048576 bytes"}},
}

func TestWrongFiles(t *testing.T) {
	for name, tc := range wrong {
		t.Run(name, func(t *testing.T) {
			spec, err := read(t, tc.text, false)
			if err == nil || spec != nil {
				t.Fatalf("no error, but %+v", spec)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nhas no %q", err, want)
				}
			}
		})
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none.yaml"), "garden", false, self); err == nil || !strings.Contains(err.Error(), "none.yaml: no such file") {
		t.Errorf("no file: %v", err)
	}
}

// Errors about an object name its fields.
func TestWrongObjects(t *testing.T) {
	valid := v1alpha1.WatchedDependant{
		Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}, ScaleUp: &v1alpha1.ScaleInfo{}, ScaleDown: &v1alpha1.ScaleInfo{},
	}
	tests := map[string]struct {
		spec v1alpha1.WatchedClusterSpec
		want string // "" for none
	}{
		"local":           {v1alpha1.WatchedClusterSpec{Local: true}, ""},
		"by a kubeconfig": {v1alpha1.WatchedClusterSpec{KubeconfigSecretName: "a"}, ""},
		"both":            {v1alpha1.WatchedClusterSpec{Local: true, KubeconfigSecretName: "a"}, `spec.kubeconfigSecretName: "a": must not be given with local: true`},
		"neither":         {v1alpha1.WatchedClusterSpec{}, "spec.kubeconfigSecretName: is required without local: true"},
		"a setting":       {v1alpha1.WatchedClusterSpec{Local: true, Settings: v1alpha1.WatchSettings{ProbeTimeout: &metav1.Duration{}}}, `spec.settings.probeTimeout: "0s": must be from 1ms`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.spec.Dependants = []v1alpha1.WatchedDependant{valid}
			_, err := Of(&tc.spec, "garden", self)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Of() = %v, want %q", err, tc.want)
			}
		})
	}
}
