package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// replace replaces a file atomically, like a kubelet. Without text it removes the file.
func replace(t *testing.T, path, text string) {
	t.Helper()
	var err error
	if text == "" {
		err = os.Remove(path)
	} else {
		err = errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// noticed is long enough for the program to notice a change.
const noticed = 3*rereadPeriod + time.Second

// followed writes each content to the file and waits until the program notices it. It returns the applied settings and
// the log.
func followed(t *testing.T, each time.Duration, args, contents []string) (passed []controlplane.Live, log string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	replace(t, path, contents[0])
	var o options
	flags := pflag.NewFlagSet("sonde-cp", pflag.ContinueOnError)
	o.addFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if _, err := settings.ReadFile(path, flags, nested); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	file := &configFile{path: path, flags: flags, log: slog.New(slog.NewTextHandler(&text, nil)), options: &o}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- file.follow(ctx, func(_ context.Context, l controlplane.Live) error {
			passed = append(passed, l)
			return nil
		})
	}()
	for _, content := range contents[1:] {
		<-time.After(each)
		replace(t, path, content)
	}
	<-time.After(each)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return passed, text.String()
}

func TestFollow(t *testing.T) {
	const base = "store: kubernetes\ndrainTaints: [shop.example/going]\n"
	tests := map[string]struct {
		args  []string
		steps []string
		want  []bool // applied IgnoreNodes
		log   []string
	}{
		"nothing changes":                    {steps: []string{base}},
		"off and on":                         {steps: []string{base + "drainAwareHealthz: false\n", base + "drainAwareHealthz: true\n"}, want: []bool{true, false}},
		"off, then the key is removed":       {steps: []string{base + "drainAwareHealthz: false\n", base}, want: []bool{true, false}},
		"the flag takes precedence":          {args: []string{"--drain-aware-healthz=true"}, steps: []string{base + "drainAwareHealthz: false\n"}},
		"not valid":                          {steps: []string{base + "drainAwareHealthz: no way\n", base + "drainAwareHealthz: false\n"}, want: []bool{true}, log: []string{"must be true or false"}},
		"not valid, another key":             {steps: []string{base + "drainAwareHealthz: false\nx: y\n"}, log: []string{"x: is an unknown field"}},
		"no YAML":                            {steps: []string{"{", base + "drainAwareHealthz: false\n"}, want: []bool{true}, log: []string{"failed to reload"}},
		"a key that needs a restart":         {steps: []string{base + "minServing: 3\ndrainAwareHealthz: false\n"}, want: []bool{true}, log: []string{"needs a restart", "minServing"}},
		"a list that needs a restart":        {steps: []string{"store: kubernetes\ndrainTaints: [a, b]\n"}, log: []string{"needs a restart", "drainTaints"}},
		"a list from a flag stays":           {args: []string{"--drain-taints=a,b", "--drain-taints=c"}, steps: []string{base + "minServing: 1\n"}},
		"the file is removed, then restored": {steps: []string{"", base + "drainAwareHealthz: false\n"}, want: []bool{true}, log: []string{"no such file"}},
		"an invalid taint":                   {steps: []string{"store: kubernetes\ndrainTaints: [a b]\n"}, log: []string{"drainTaints: ", "a b"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				passed, log := followed(t, noticed, test.args, append([]string{base}, test.steps...))
				var got []bool
				for _, l := range passed {
					got = append(got, l.IgnoreNodes)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("applied %v, want %v", got, test.want)
				}
				for _, text := range test.log {
					if strings.Count(log, text) != 1 {
						t.Errorf("the log does not contain %q exactly once", text)
					}
				}
				if warned := strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR"); warned != (len(test.log) > 0) {
					t.Error("warned:", warned)
				}
				if t.Failed() {
					t.Log(log)
				}
			})
		})
	}
}

// TestFollowHalfWrittenFile reads a file while another program overwrites it in place.
func TestFollowHalfWrittenFile(t *testing.T) {
	const off = "drainAwareHealthz: false\n"
	synctest.Test(t, func(t *testing.T) {
		got, log := followed(t, rereadPeriod*11/10, []string{"--store=kubernetes"}, []string{off, "\n", off})
		if len(got) > 0 || log != "" {
			t.Errorf("applied %v, want nothing; the log:\n%s", got, log)
		}
	})
}

// TestFollowHold changes the answer to kubelets for held failures.
func TestFollowHold(t *testing.T) {
	const base = "store: kubernetes\n"
	synctest.Test(t, func(t *testing.T) {
		passed, log := followed(t, noticed, nil, []string{base, base + "guardedLiveness: {hold: redirect}\n", base + "guardedLiveness: {hold: warning}\n", base})
		var got []mesh.LivenessHold
		for _, l := range passed {
			got = append(got, l.LivenessHold)
		}
		if diff := cmp.Diff([]mesh.LivenessHold{mesh.HoldWarning, mesh.HoldErrored}, got); diff != "" {
			t.Errorf("applied settings (-want +got):\n%s", diff)
		}
		for _, text := range []string{`line 2: guardedLiveness.hold: \"redirect\": must be errored or warning`, "key=guardedLiveness.hold before=errored value=warning"} {
			if !strings.Contains(log, text) {
				t.Errorf("the log lacks %q:\n%s", text, log)
			}
		}
	})
}

// TestFollowGuardedLiveness changes the settings of guarded liveness, one after the other.
func TestFollowGuardedLiveness(t *testing.T) {
	def := restartbudget.Settings{Mode: restartbudget.Enforce, Breaker: restartbudget.BreakerLimits{Workloads: 3, Percent: 30}}
	dryRun, limited := def, def
	dryRun.Mode = restartbudget.DryRun
	limited.PerMinute, limited.PerNodePerMinute, limited.Breaker = 10, 2, restartbudget.BreakerLimits{Workloads: 5, Percent: 50}
	limited.Blacklist = restartbudget.Blacklist{Namespaces: []string{"kube-system"}, Workloads: []string{"Deployment/shop/web"}, Images: []string{"redis", "nginx:1"}}
	const base = "store: kubernetes\n"
	tests := map[string]struct {
		args  []string
		steps []string
		want  []restartbudget.Settings
		log   []string
	}{
		"dry run and back": {steps: []string{base + "guardedLiveness: {mode: dryRun}\n", base}, want: []restartbudget.Settings{dryRun, def}, log: []string{
			"key=guardedLiveness.mode before=enforce value=dryRun", "key=guardedLiveness.mode before=dryRun value=enforce",
		}},
		"all limits, then none": {steps: []string{base + `guardedLiveness:
  perMinute: 10
  perNodePerMinute: 2
  blacklist: {namespaces: [kube-system], workloads: [Deployment/shop/web], images: [redis, "nginx:1"]}
  breaker: {workloads: 5, percent: 50}
`, base}, want: []restartbudget.Settings{limited, def}, log: []string{
			"key=guardedLiveness.perMinute before=0 value=10", "key=guardedLiveness.blacklist.images before=[] value=[redis,nginx:1]", "key=guardedLiveness.breaker.percent before=30 value=50",
		}},
		"the flag takes precedence": {args: []string{"--guarded-liveness-mode=enforce"}, steps: []string{base + "guardedLiveness: {mode: dryRun}\n"}},
		"not valid, then valid": {
			steps: []string{base + "guardedLiveness: {mode: dry-run, breaker: {percent: 0}}\n", base + "guardedLiveness: {mode: dryRun}\n"}, want: []restartbudget.Settings{dryRun},
			log: []string{`line 2: guardedLiveness.mode: \"dry-run\": must be enforce, dryRun or off`, `line 2: guardedLiveness.breaker.percent: 0: must be from 1 to 100`},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				passed, log := followed(t, noticed, test.args, append([]string{base}, test.steps...))
				var got []restartbudget.Settings
				for _, l := range passed {
					got = append(got, l.GuardedLiveness)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("applied settings (-want +got):\n%s", diff)
				}
				for _, text := range test.log {
					if strings.Count(log, text) != 1 {
						t.Errorf("the log does not contain %q exactly once", text)
					}
				}
				if t.Failed() {
					t.Log(log)
				}
			})
		})
	}
}
