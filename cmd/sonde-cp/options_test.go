package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/webhook"
)

// parse parses a configuration file and a command line like the program.
func parse(t *testing.T, config string, args ...string) (*options, error) {
	t.Helper()
	var o options
	cmd := &cobra.Command{Use: "sonde-cp", SilenceErrors: true, SilenceUsage: true}
	cmd.RunE = func(*cobra.Command, []string) error { return o.validate(cmd.Flags()) }
	o.addFlags(cmd.Flags())
	settings.Install(cmd, settings.Options{Prefix: envPrefix, File: true, Keys: nested})
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.SetArgs(append(args, "--config="+path))
	return &o, cmd.ExecuteContext(t.Context())
}

func TestConfig(t *testing.T) {
	o, err := parse(t, "store: dir:/mesh\nagentsPort: 1234\ntrustDomain: example.org\n", "--agents-port=4321", "--state-dir=/state")
	if err != nil {
		t.Fatal(err)
	}
	if o.Store != "dir:/mesh" || o.TrustDomain != "example.org" || o.StateDir != "/state" || o.AdminPort != 5681 {
		t.Errorf("options = %+v", o)
	}
	if o.AgentsPort != 4321 {
		t.Errorf("agents port = %d: the flag must take precedence over the file", o.AgentsPort)
	}
}

// Helm writes large numbers with exponents.
func TestQuantities(t *testing.T) {
	const injector = "runtime: {kubernetes: {injector: {sidecarCpu: 0.2, sidecarCpuLimit: 2, sidecarMemory: '', sidecarMemoryLimit: 2.68435456e+08}}}"
	o, err := parse(t, "store: kubernetes\n"+injector)
	if want := (webhook.Resources{CPU: "0.2", CPULimit: "2", MemoryLimit: "2.68435456e+08"}); err != nil || o.Kubernetes.Injection.Resources != want {
		t.Errorf("resources %+v, %v, want %+v", o.Kubernetes.Injection.Resources, err, want)
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	tests := map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"unknown key":          {config: "stoer: dir:/x\n", want: []string{"line 1: stoer: is an unknown field: did you mean store?"}},
		"duplicate key":        {config: "store: dir:/x\nstore: dir:/y\n", want: []string{"store", "already"}},
		"port too large":       {config: "store: dir:/x\nadminPort: 70000\n", want: []string{"adminPort", "70000"}},
		"port is not a number": {config: "store: dir:/x\nadminPort: web\n", want: []string{"adminPort", `"web"`}},
		"a list":               {config: "store: [dir:/x]\n", want: []string{"store", "one value"}},
		"null":                 {config: "store:\n", want: []string{"store", "one value"}},
		"no YAML":              {config: "store: [\n", want: []string{"read --config"}},
		"no store":             {want: []string{"--store: must be dir:PATH"}},
		"bad taint":            {args: []string{"--store=kubernetes", "--drain-taints=shop.example/going,a b"}, want: []string{"--drain-taints", `"a b"`, "must be keys of taints"}},
		"bad taint, files":     {args: []string{"--store=dir:/x", "--state-dir=/y", "--drain-taints=a b"}, want: []string{"--drain-taints", `"a b"`, "must be keys of taints"}},
		"bad condition":        {args: []string{"--store=kubernetes", "--drain-conditions=Drained,a b"}, want: []string{"--drain-conditions", `"a b"`, "types of"}},
		"condition of all":     {config: "store: kubernetes\ndrainConditions: [Ready]\n", want: []string{"drainConditions", `"Ready"`, "each healthy node"}},
		"taints no list":       {config: "store: kubernetes\ndrainTaints: {a: b}\n", want: []string{"line 2: drainTaints", "list of texts"}},
		"taints not texts":     {config: "store: kubernetes\ndrainTaints: [1]\n", want: []string{"drainTaints", "one value", "list of texts"}},
		"negative guard":       {config: "store: kubernetes\nminServing: -1\n", want: []string{"line 2: minServing: -1: ", "0, for no limit, or more"}},
		"guard no number":      {config: "store: kubernetes\nminServing: all\n", want: []string{"minServing", `"all"`}},
		"unknown store":        {args: []string{"--store=etcd:/x"}, want: []string{"--store", `"etcd:/x"`, "dir:PATH"}},
		"address is a name":    {args: []string{"--store=dir:/x", "--bind-address=localhost"}, want: []string{"--bind-address", `"localhost"`, "IP"}},
		"trust domain":         {args: []string{"--store=dir:/x", "--trust-domain=Ex ample"}, want: []string{"--trust-domain", "Ex ample"}},
		"empty trust domain":   {args: []string{"--store=dir:/x", "--trust-domain="}, want: []string{"--trust-domain", "empty"}},
		"no port for probes":   {args: []string{"--store=kubernetes", "--virtual-probes-port=0"}, want: []string{"--virtual-probes-port", `"0"`, "1 to 65535"}},
		"CNI":                  {args: []string{"--store=kubernetes", "--cni=some"}, want: []string{`--cni: "some": must be off, namespaces or all`}},
		"sidecar form":         {args: []string{"--store=kubernetes", "--sidecar-form=pod"}, want: []string{"--sidecar-form", `"pod"`, "native or container"}},
		"unknown nested key":   {config: "store: kubernetes\nruntime: {kubernetes: {injector: {port: 1}}}\n", want: []string{"runtime.kubernetes.injector.port: is an unknown field: known here are cni, controlPlaneAddress, sidecarCpu, sidecarCpuLimit, sidecarForm, sidecarImage, sidecarMemory, sidecarMemoryLimit, sidecarMetricsInclude, sidecarMetricsPort, virtualProbesPort"}},
		"metrics port":         {args: []string{"--store=kubernetes", "--sidecar-metrics-port=70000"}, want: []string{`--sidecar-metrics-port: "70000": must be a port from 1 to 65535, or 0 for none`}},
		"metrics, inbound":     {args: []string{"--store=kubernetes", "--sidecar-metrics-port=15006"}, want: []string{`--sidecar-metrics-port: "15006": must not be the port of redirection`}},
		"metrics, health":      {args: []string{"--store=kubernetes", "--sidecar-metrics-port=9902"}, want: []string{`--sidecar-metrics-port: "9902": must not be the port of the metrics of the sidecar`}},
		"metrics, probes":      {args: []string{"--store=kubernetes", "--sidecar-metrics-port=9000"}, want: []string{`--sidecar-metrics-port: "9000": must not be the port for probes`}},
		"metrics in a file":    {config: "store: kubernetes\nruntime: {kubernetes: {injector: {sidecarMetricsPort: x}}}\n", want: []string{"runtime.kubernetes.injector.sidecarMetricsPort", `"x"`}},
		"metrics, prefix":      {config: "store: kubernetes\nruntime: {kubernetes: {injector: {sidecarMetricsInclude: [envoy_server_, go_]}}}\n", want: []string{`runtime.kubernetes.injector.sidecarMetricsInclude: "go_": must be prefixes of Envoy's metrics`}},
		"quantity":             {args: []string{"--store=kubernetes", "--sidecar-memory=128"}, want: []string{`--sidecar-memory: "128": must be a quantity of at least 32Mi, such as 128Mi`}},
		"quantity in a file":   {config: "store: kubernetes\nruntime:\n  kubernetes:\n    injector:\n      sidecarCpuLimit: 0\n", want: []string{`config.yaml, line 5: runtime.kubernetes.injector.sidecarCpuLimit: 0: must be a quantity of at least 50m, such as 500m or 1.5`}},
		"request above limit":  {config: "store: kubernetes\nruntime: {kubernetes: {injector: {sidecarCpu: 2, sidecarCpuLimit: 1500m}}}\n", want: []string{`runtime.kubernetes.injector.sidecarCpu: 2: must be at most the sidecar's limit, 1500m`}},
		"replicas of files":    {args: []string{"--store=dir:/mesh", "--peer-port=5682"}, want: []string{`--peer-port: "5682"`, "must not be given with --store=dir:PATH"}},
		"freeze mode":          {args: []string{"--store=kubernetes", "--freeze-mode=dry"}, want: []string{`--freeze-mode: "dry": must be enforce, dryRun or off`}},
		"no freeze mode":       {args: []string{"--store=kubernetes", "--freeze-mode="}, want: []string{"--freeze-mode: must not be empty"}},
		"freeze key":           {config: "store: kubernetes\nfreeze: {mod: off}\n", want: []string{"line 2: freeze.mod: is an unknown field: did you mean mode?"}},
		"freeze in a file":     {config: "store: kubernetes\nfreeze: {mode: on}\n", want: []string{`config.yaml, line 2: freeze.mode: "on": must be enforce, dryRun or off`}},
		"guarded mode":         {args: []string{"--store=kubernetes", "--guarded-liveness-mode=dry"}, want: []string{`--guarded-liveness-mode: "dry": must be enforce, dryRun or off`}},
		"no guarded mode":      {args: []string{"--store=kubernetes", "--guarded-liveness-mode="}, want: []string{"--guarded-liveness-mode: must not be empty"}},
		"guarded key":          {config: "store: kubernetes\nguardedLiveness: {prMinute: 1}\n", want: []string{"line 2: guardedLiveness.prMinute: is an unknown field: did you mean perMinute?"}},
		"guarded text":         {config: "store: kubernetes\nguardedLiveness: off\n", want: []string{"line 2: guardedLiveness: must be keys with values"}},
		"guarded limits": {config: "store: kubernetes\nguardedLiveness:\n  perMinute: -1\n  perNodePerMinute: many\n", want: []string{
			`config.yaml, line 4: guardedLiveness.perNodePerMinute: "many": must be a whole number`,
		}},
		"guarded limit below 0": {config: "store: kubernetes\nguardedLiveness:\n  perMinute: -1\n", args: []string{"--guarded-liveness-per-node-per-minute=-2"}, want: []string{
			`config.yaml, line 3: guardedLiveness.perMinute: -1: must be 0, for no limit, or more`, `--guarded-liveness-per-node-per-minute: "-2": must be 0, for no limit, or more`,
		}},
		"blacklist": {config: "store: kubernetes\nguardedLiveness:\n  blacklist:\n    namespaces: ['']\n    workloads: [shop/web]\n    images: [a b]\n", want: []string{
			"config.yaml, line 4: guardedLiveness.blacklist.namespaces: must be names of namespaces", `config.yaml, line 5: guardedLiveness.blacklist.workloads: "shop/web": must be Kind/namespace/name`,
			`config.yaml, line 6: guardedLiveness.blacklist.images: "a b": must be images`,
		}},
		"breaker": {config: "store: dir:/x\nguardedLiveness: {breaker: {workloads: 0}}\n", args: []string{"--guarded-liveness-breaker-percent=101"}, want: []string{
			`config.yaml, line 2: guardedLiveness.breaker.workloads: 0: must be 1 or more`, `--guarded-liveness-breaker-percent: "101": must be from 1 to 100`,
		}},
		"breaker, 0 %":        {args: []string{"--store=kubernetes", "--guarded-liveness-breaker-percent=0"}, want: []string{`--guarded-liveness-breaker-percent: "0": must be from 1 to 100`}},
		"replica":             {args: []string{"--store=kubernetes", "--replica=a/b"}, want: []string{`--replica: "a/b"`, "at most 253 characters without /"}},
		"namespace":           {args: []string{"--store=kubernetes", "--namespace=Bad_Name"}, want: []string{"--namespace", "Bad_Name", "DNS label"}},
		"log level":           {args: []string{"--store=dir:/x", "--log-level=loud"}, want: []string{"--log-level", "loud", "debug, info"}},
		"log format":          {args: []string{"--store=dir:/x", "--log-format=xml"}, want: []string{`--log-format: "xml": must be text or json`}},
		"health address":      {args: []string{"--store=dir:/x", "--health-addr=localhost:80"}, want: []string{"--health-addr", `"localhost:80"`, "IP address"}},
		"health port twice":   {args: []string{"--store=dir:/x", "--health-addr=:80", "--health-port=81"}, want: []string{"--health-addr", "--health-port"}},
		"health port taken":   {config: "store: dir:/x\nhealthAddr: '*:5678'\n", want: []string{"line 2: healthAddr", `"*:5678"`, "must not have the port for agents"}},
		"connection age":      {args: []string{"--store=dir:/x", "--connection-age=1s"}, want: []string{"--connection-age", `"1s"`, "must be from 1m to 24h"}},
		"no connection age":   {args: []string{"--store=dir:/x", "--connection-age=0"}, want: []string{"--connection-age", `"0s"`, "must be from 1m to 24h"}},
		"long connection age": {config: "connectionAge: 25h\n", args: []string{"--store=dir:/x"}, want: []string{"line 1: connectionAge", `"25h0m0s"`, "must be from 1m to 24h"}},
		"shutdown delay":      {args: []string{"--store=dir:/x", "--shutdown-delay=-1s"}, want: []string{"--shutdown-delay", `"-1s"`, "0s to 20s"}},
		"two errors, not one": {args: []string{"--bind-address=localhost"}, want: []string{"--bind-address", "--store"}},
		"all values that do not parse": {
			config: "healthPort: web\nshutdownDelay: long\n", args: []string{"--log-level=loud", "--agents-port=70000"},
			want: []string{
				`--log-level: "loud": must be debug, info, warn or error`, `--agents-port: "70000": must be a port from 0 to 65535`,
				`config.yaml, line 1: healthPort: "web": must be a port from 0 to 65535`, `config.yaml, line 2: shutdownDelay: "long": must be a duration such as 30s`,
			},
		},
		"the line of a value": {config: "store: dir:/x\n\ntrustDomain: Ex\n", want: []string{`config.yaml, line 3: trustDomain: "Ex": must be a DNS name`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tc.config, tc.args...)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}
