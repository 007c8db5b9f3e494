package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/watchdog"
)

// The API server rejects invalid objects.
func TestSchemaRefuses(t *testing.T) {
	s := newScene(t, "schema", 0)
	const one = "{ref: {apiVersion: apps/v1, kind: Deployment, name: a}, scaleUp: {level: 0}, scaleDown: {level: 0}}"
	tests := map[string]struct{ spec, want string }{
		"neither":           {"{dependants: [" + one + "]}", "exactly one of kubeconfigSecretName and local: true must be given"},
		"both":              {"{local: true, kubeconfigSecretName: a, dependants: [" + one + "]}", "exactly one of kubeconfigSecretName and local: true must be given"},
		"not local":         {"{local: false, dependants: [" + one + "]}", "exactly one of kubeconfigSecretName and local: true must be given"},
		"no dependant":      {"{local: true, dependants: []}", "spec.dependants in body should have at least 1 items"},
		"twice":             {"{local: true, dependants: [" + one + ", " + one + "]}", "each dependant may be given once"},
		"negative level":    {"{local: true, dependants: [" + strings.Replace(one, "level: 0", "level: -1", 1) + "]}", "spec.dependants[0].scaleUp.level in body should be greater than or equal to 0"},
		"scaleDown missing": {"{local: true, dependants: [" + strings.Replace(one, ", scaleDown: {level: 0}", "", 1) + "]}", "spec.dependants[0].scaleDown: Required value"},
		"fraction 0":        {"{local: true, dependants: [" + one + "], settings: {nodeLeaseFailureFraction: 0}}", "spec.settings.nodeLeaseFailureFraction in body should be greater than 0"},
		"fraction 1.5":      {"{local: true, dependants: [" + one + "], settings: {nodeLeaseFailureFraction: 1.5}}", "spec.settings.nodeLeaseFailureFraction in body should be less than or equal to 1"},
		"leave above enter": {"{local: true, dependants: [" + one + "], settings: {nodeLeaseRecoveryFraction: 0.7}}", "nodeLeaseRecoveryFraction must be at most nodeLeaseFailureFraction"},
		"unknown setting":   {"{local: true, dependants: [" + one + "], settings: {probeIntervall: 1s}}", "spec.settings.probeIntervall"},
		"valid":             {"{kubeconfigSecretName: a, dependants: [" + one + "], settings: {nodeLeaseFailureFraction: 0.9, nodeLeaseRecoveryFraction: 0.7}}", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := "{apiVersion: sonde.dev/v1alpha1, kind: WatchedCluster, metadata: {generateName: a-}, spec: " + tc.spec + "}"
			_, err := cluster.Do(t.Context(), http.MethodPost, s.path()+"?fieldValidation=Strict&dryRun=All", "application/yaml", body)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// condition waits until the object has a condition with this text in its message.
func (s *scene) condition(kind, status, text string) {
	s.t.Helper()
	must.Poll(s.t, kind+" to be "+status, func(ctx context.Context) error {
		o, err := s.object(ctx)
		if err != nil {
			return err
		}
		for _, c := range o.Status.Conditions {
			if c.Type == kind && string(c.Status) == status && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %+v", o.Status.Conditions)
	})
}

// The condition reports errors that the schema cannot detect. An invalid change has no effect on the watched cluster.
func TestRefusedObjects(t *testing.T) {
	s := newScene(t, "refused", 3)
	patch := func(text string) {
		t.Helper()
		if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/"+s.name, "application/json-patch+json", text); err != nil {
			t.Fatal(err)
		}
	}
	s.watch("local: true")
	patch(`[{"op": "replace", "path": "/spec/dependants/0/ref/name", "value": "sonde-watchdog"}]`)
	s.start("a")
	s.condition("Accepted", "False", `spec.dependants[0].ref.name: "sonde-watchdog": must not be the watchdog itself`)
	patch(`[{"op": "replace", "path": "/spec/dependants/0/ref/name", "value": "kcm"}]`)
	s.condition("Accepted", "True", "the spec is valid and in use")
	s.verdict("seen", "")
	patch(`[{"op": "replace", "path": "/spec/settings/probeInterval", "value": "-1s"}]`)
	s.condition("Accepted", "False", `spec.settings.probeInterval: "-1s": must be from 100ms to 1h0m0s`)
	s.connect(false)
	s.scaled(0, 0, 0)
	s.connect(true)
	s.scaled(2, 1, 1)
}

// A configuration file of the Dependency Watchdog is watched like an object, and other settings of an
// operator stay.
func TestConfigFile(t *testing.T) {
	s := newScene(t, "file", 3)
	path := filepath.Join(t.TempDir(), "dep-config.yaml")
	text := "kubeConfigSecretName: dwd-api-server-probe-secret\nkcmNodeMonitorGraceDuration: " + grace + "\nprobeInterval: " + interval + "\ninitialDelay: 0s\ndependentResourceInfos: " + example + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if _, err := cluster.Do(context.Background(), http.MethodDelete, s.path()+"/mine", "", ""); err != nil {
			t.Error(err)
		}
	})
	fromFile := func(o *watchdog.Options) { o.File, o.FileCluster, o.Local = path, "mine", true }
	stop := s.start("a", fromFile)
	seen := func() {
		t.Helper()
		must.Poll(t, "the cluster of the file to be seen", func(ctx context.Context) error {
			text, err := cluster.Do(ctx, http.MethodGet, s.path()+"/mine", "", "")
			if err != nil {
				return err
			}
			var o v1alpha1.WatchedCluster
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				return err
			}
			if o.Status.Verdict != "seen" || !o.Spec.Local || o.Spec.KubeconfigSecretName != "" || len(o.Spec.Dependants) != 3 {
				return fmt.Errorf("it is %+v, %+v", o.Spec, o.Status)
			}
			return nil
		})
	}
	seen()
	s.connect(false)
	s.scaled(0, 0, 0)
	s.ordered("mcm 0, ca 0", "kcm 0")
	s.connect(true)
	s.scaled(2, 1, 1)
	s.taken()
	if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/mine", "application/merge-patch+json", `{"spec":{"paused":true}}`); err != nil {
		t.Fatal(err)
	}
	stop()
	s.start("b", fromFile)
	seen()
	s.connect(false)
	s.stays("paused by an operator", longEnough)
}

// Metrics and health of a leading replica.
func TestMetrics(t *testing.T) {
	s := newScene(t, "metrics", 3)
	s.watch("local: true")
	s.start("a")
	s.verdict("seen", "")
	s.connect(false)
	s.scaled(0, 0, 0)
	must.Poll(t, "the metrics", func(ctx context.Context) error {
		text, err := body(ctx, s.health+"/metrics")
		if err != nil {
			return err
		}
		var errs []error
		for _, want := range []string{
			`sonde_watchdog_state{cause="all",cluster="metrics/metrics",group="whole"} 1`, `sonde_watchdog_leases{state="expired"} 3`, `sonde_watchdog_leases{state="renewed"} 0`,
			`sonde_watchdog_actions_total{action="scale-down",result="success"} 3`, "sonde_watchdog_probe_duration_seconds_count", `sonde_healthcheck{group="livez",name="probes",severity="error"} 1`,
		} {
			if !strings.Contains(text, want) {
				errs = append(errs, fmt.Errorf("no %s", want))
			}
		}
		return errors.Join(errs...)
	})
	s.connect(true)
	s.scaled(2, 1, 1)
}

func body(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r.Close = true
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}
