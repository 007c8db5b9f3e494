package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parse(t *testing.T, config string, args ...string) (*options, error) {
	t.Helper()
	var o options
	flags := pflag.NewFlagSet("sonde-cp", pflag.ContinueOnError)
	o.addFlags(flags)
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := readConfig(path, flags); err != nil {
		return &o, err
	}
	return &o, o.validate(flags)
}

func TestConfig(t *testing.T) {
	o, err := parse(t, "store: dir:/mesh\nagentsPort: 1234\ntrustDomain: example.org\n", "--agents-port=4321", "--state-dir=/state")
	if err != nil {
		t.Fatal(err)
	}
	if o.Store != "dir:/mesh" || o.TrustDomain != "example.org" || o.StateDir != "/state" || o.AdminPort != 5681 {
		t.Errorf("options are %+v", o)
	}
	if o.AgentsPort != 4321 {
		t.Errorf("agents port is %d: the flag must win over the file", o.AgentsPort)
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	tests := map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"unknown key":         {config: "stoer: dir:/x\n", want: []string{"stoer", "unknown key", "stateDir"}},
		"duplicate key":       {config: "store: dir:/x\nstore: dir:/y\n", want: []string{"store", "already"}},
		"port too large":      {config: "store: dir:/x\nadminPort: 70000\n", want: []string{"adminPort", "70000"}},
		"port is no number":   {config: "store: dir:/x\nadminPort: web\n", want: []string{"adminPort", `"web"`}},
		"a list":              {config: "store: [dir:/x]\n", want: []string{"store", "one value"}},
		"null":                {config: "store:\n", want: []string{"store", "one value"}},
		"no YAML":             {config: "store: [\n", want: []string{"read --config"}},
		"no store":            {want: []string{"--store: must be dir:PATH"}},
		"unknown store":       {args: []string{"--store=etcd:/x"}, want: []string{"--store", `"etcd:/x"`, "dir:PATH"}},
		"address is a name":   {args: []string{"--store=dir:/x", "--bind-address=localhost"}, want: []string{"--bind-address", `"localhost"`, "IP"}},
		"trust domain":        {args: []string{"--store=dir:/x", "--trust-domain=Ex ample"}, want: []string{"--trust-domain", "Ex ample"}},
		"empty trust domain":  {args: []string{"--store=dir:/x", "--trust-domain="}, want: []string{"--trust-domain", "empty"}},
		"no port for probes":  {args: []string{"--store=kubernetes", "--virtual-probes-port=0"}, want: []string{"--virtual-probes-port", `"0"`, "1 to 65535"}},
		"sidecar form":        {args: []string{"--store=kubernetes", "--sidecar-form=pod"}, want: []string{"--sidecar-form", `"pod"`, "native or container"}},
		"unknown nested key":  {config: "store: kubernetes\nruntime: {kubernetes: {injector: {port: 1}}}\n", want: []string{"runtime.kubernetes.injector.port", "unknown key"}},
		"namespace":           {args: []string{"--store=kubernetes", "--namespace=Bad_Name"}, want: []string{"--namespace", "Bad_Name", "DNS label"}},
		"log level":           {args: []string{"--store=dir:/x", "--log-level=loud"}, want: []string{"--log-level", "loud", "debug, info"}},
		"two errors, not one": {args: []string{"--log-level=loud"}, want: []string{"--log-level", "--store"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tc.config, tc.args...)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// TestRunNamesFlags checks that errors of the control plane name flags, not fields of its options.
func TestRunNamesFlags(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nothing was sent
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cmd := newCommand()
	cmd.SetArgs([]string{
		"--store=dir:" + t.TempDir(), "--state-dir=" + filepath.Join(t.TempDir(), "state"), "--bind-address=127.0.0.1",
		"--agents-port=0", "--admin-port=" + port, "--health-port=0",
	})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), `--admin-port: "`+port+`": `) {
		t.Errorf("the error is %v, want one that names --admin-port and its value", err)
	}
}

func TestEveryFlagIsAKey(t *testing.T) {
	for flag, want := range map[string]string{"store": "store", "state-dir": "stateDir", "agents-port": "agentsPort"} {
		if got := camelCase(flag); got != want {
			t.Errorf("key of --%s is %q, want %q", flag, got, want)
		}
	}
}
