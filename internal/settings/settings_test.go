package settings

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// program is a program with a flag of each type.
type program struct {
	Name   string
	Delay  time.Duration
	Port   uint16
	Shout  bool
	Number int
	Level  slog.Level
	Taints []string

	config  string
	unknown []string
	fail    error // error of its command
}

// run runs the program, with a file unless text is empty, and sets p to the values that its command got.
func (p *program) run(t *testing.T, text string, args ...string) error {
	t.Helper()
	cmd := &cobra.Command{Use: "thing", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return p.fail }}
	f := cmd.Flags()
	f.StringVar(&p.Name, "full-name", "no-name", "")
	f.DurationVar(&p.Delay, "delay", 0, "")
	f.Uint16Var(&p.Port, "port", 80, "")
	f.BoolVar(&p.Shout, "shout", true, "")
	f.IntVar(&p.Number, "number", 1, "")
	f.StringSliceVar(&p.Taints, "taints", nil, "")
	LevelVar(f, &p.Level, "")
	f.StringVar(&p.config, "config", "", "")
	Install(cmd, Options{
		Prefix: "THING_", File: true, Keys: map[string]string{"number": "deep.down."},
		Unknown: func(_ *cobra.Command, variables []string) { p.unknown = variables },
	})
	if text != "" {
		path := filepath.Join(t.TempDir(), "thing.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config="+path)
	}
	cmd.SetArgs(args)
	return cmd.ExecuteContext(t.Context())
}

func TestPrecedence(t *testing.T) {
	defaults := program{Name: "no-name", Port: 80, Shout: true, Number: 1}
	with := func(change func(*program)) program {
		p := defaults
		change(&p)
		return p
	}
	tests := map[string]struct {
		file string
		env  map[string]string
		args []string
		want program
	}{
		"nothing": {want: defaults},
		"file": {
			file: "fullName: file\ndelay: 1m30s\nport: 0x50\nshout: no\ndeep:\n  down: {number: 1000000}\ntaints: [a, 'b,c']\nlogLevel: warn\n",
			want: program{Name: "file", Delay: 90 * time.Second, Port: 80, Number: 1000000, Taints: []string{"a", "b,c"}, Level: slog.LevelWarn},
		},
		"a list as one text":         {file: "taints: a,b\n", want: with(func(p *program) { p.Taints = []string{"a", "b"} })},
		"an alias":                   {file: "fullName: &x file\ntaints: *x\n", want: with(func(p *program) { p.Name, p.Taints = "file", []string{"file"} })},
		"comments alone":             {file: "# nothing\n", want: defaults},
		"variable":                   {env: map[string]string{"THING_FULL_NAME": "variable", "THING_NUMBER": "7"}, want: with(func(p *program) { p.Name, p.Number = "variable", 7 })},
		"empty variable":             {env: map[string]string{"THING_FULL_NAME": ""}, want: with(func(p *program) { p.Name = "" })},
		"variable over file":         {file: "fullName: file\nport: 81\n", env: map[string]string{"THING_FULL_NAME": "variable"}, want: with(func(p *program) { p.Name, p.Port = "variable", 81 })},
		"of a Service in Kubernetes": {env: map[string]string{"THING_PORT": "tcp://10.96.0.7:443"}, want: defaults},
		"flag over both": {
			file: "fullName: file\n", env: map[string]string{"THING_FULL_NAME": "variable"}, args: []string{"--full-name=flag"},
			want: with(func(p *program) { p.Name = "flag" }),
		},
		"a bad value that a flag replaces": {env: map[string]string{"THING_PORT": "x"}, args: []string{"--port=82"}, want: with(func(p *program) { p.Port = 82 })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			var got program
			if err := got.run(t, tc.file, tc.args...); err != nil {
				t.Fatal(err)
			}
			got.config = ""
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(program{})); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheFileIsNamedByAVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing.yaml")
	if err := os.WriteFile(path, []byte("port: 81\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("THING_CONFIG", path)
	var p program
	if err := p.run(t, ""); err != nil || p.Port != 81 {
		t.Errorf("port = %d, %v, want the file's", p.Port, err)
	}
}

// TestMistakes checks the errors that a user gets. FILE stands for the path of the file.
func TestMistakes(t *testing.T) {
	keys := "deep, delay, fullName, logLevel, port, shout, taints"
	tests := map[string]struct {
		file string
		env  map[string]string
		args []string
		fail error
		want []string // all lines
	}{
		"all at once": {
			file: "shout: loud\nlogLevel: loud\n",
			env:  map[string]string{"THING_NUMBER": "many", "THING_FULL_NAME": "fine"},
			args: []string{"--port=70000", "--delay", "5"},
			want: []string{
				`--port: "70000": must be a port from 0 to 65535`,
				`--delay: "5": must be a duration such as 30s, 5m or 1h30m`,
				`THING_NUMBER: "many": must be a whole number`,
				`FILE, line 1: shout: "loud": must be true or false`,
				`FILE, line 2: logLevel: "loud": must be debug, info, warn or error`,
			},
		},
		"one that parsed before an unknown flag": {args: []string{"--port=x", "--prot=1"}, want: []string{`--port: "x": must be a port from 0 to 65535`, "--prot: is an unknown flag: did you mean --port?"}},
		"a flag in the writing of a key":         {args: []string{"--fullName=x"}, want: []string{"--fullName: is an unknown flag: did you mean --full-name?"}},
		"a flag like no other":                   {args: []string{"--zzzzzz"}, want: []string{"--zzzzzz: is an unknown flag"}},
		"a short flag":                           {args: []string{"-z"}, want: []string{"unknown shorthand flag: 'z' in -z"}},
		"a flag of every program":                {args: []string{"--help=much"}, want: []string{`--help: "much": must be true or false`}},
		"unknown key":                            {file: "port: 1\nprot: 1\n", want: []string{"FILE, line 2: prot: is an unknown field: did you mean port?"}},
		"unknown key below":                      {file: "deep:\n  down:\n    numbre: 1\n", want: []string{"FILE, line 3: deep.down.numbre: is an unknown field: did you mean number?"}},
		"a key at another place":                 {file: "number: 1\n", want: []string{"FILE, line 1: number: is an unknown field: known here are " + keys}},
		"not a flag of the file":                 {file: "config: x\n", want: []string{"FILE, line 1: config: is an unknown field: known here are " + keys}},
		"the same key again":                     {file: "port: 1\nshout: true\nport: 2\n", want: []string{"FILE, line 3: port: is already on line 1"}},
		"nothing for a key":                      {file: "port:\n", want: []string{"FILE, line 1: port: must be one value, as --port"}},
		"a list":                                 {file: "port: [1]\n", want: []string{"FILE, line 1: port: must be one value, as --port"}},
		"keys for a value":                       {file: "taints: {a: b}\n", want: []string{"FILE, line 1: taints: must be one value, as --taints, or a list of texts"}},
		"a list of other things":                 {file: "taints: [1]\n", want: []string{"FILE, line 1: taints: must be one value, as --taints, or a list of texts"}},
		"a value for keys":                       {file: "deep: 1\n", want: []string{"FILE, line 1: deep: must be keys with values"}},
		"no keys":                                {file: "- port\n", want: []string{"FILE, line 1: must be keys with values"}},
		"a mapping in itself":                    {file: "deep: &x\n  down: *x\n", want: []string{"FILE, line 2: deep.down: must be keys with values"}},
		"no YAML":                                {file: "port: [\n", want: []string{"read --config FILE: yaml: line 1: did not find expected node content"}},
		"two documents":                          {file: "port: 1\n---\nport: 2\n", want: []string{"read --config FILE: must be one YAML document"}},
		"too long":                               {file: "# " + strings.Repeat("x", maxFile), want: []string{"read --config FILE: must be at most 1048576 bytes"}},
		"no file":                                {args: []string{"--config=/nowhere/thing.yaml"}, want: []string{"read --config: open /nowhere/thing.yaml: no such file or directory"}},
		"found later, on the command line":       {args: []string{"--port=1"}, fail: &mesh.FieldError{Field: "--port", Value: "1", Allowed: "must be another one"}, want: []string{`--port: "1": must be another one`}},
		"found later, in a variable":             {env: map[string]string{"THING_PORT": "1"}, fail: &mesh.FieldError{Field: "--port", Value: "1", Allowed: "must be another one"}, want: []string{`THING_PORT: "1": must be another one`}},
		"found later, in the file":               {file: "\nport: 1\n", fail: &mesh.FieldError{Field: "--port", Value: "1", Allowed: "must be another one"}, want: []string{`FILE, line 2: port: 1: must be another one`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			p := program{fail: tc.fail}
			err := p.run(t, tc.file, tc.args...)
			if err == nil {
				t.Fatal("no error")
			}
			got := err.Error()
			if p.config != "" && tc.file != "" {
				got = strings.ReplaceAll(got, p.config, "FILE")
			}
			if diff := cmp.Diff(tc.want, strings.Split(got, "\n")); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// Variables that a kubelet sets for the Services thing, thing-web and thing-2 are not reported; similar ones are.
func TestUnknownVariables(t *testing.T) {
	for name, value := range map[string]string{
		"THING_PRT": "secret", "THING_HELP": "1", "THING_PORT": "1", "OTHER_THING_X": "1", "THING_FULL_NAM": "secret",
		"THING_WEB_PORTS": "1", "THING_PROT_PORT": "81", "THING_DELY_SERVICE_PORT": "1", "THING_WEB_PORT_ADMIN": "tcp://10.96.0.7:443",
		"THING_SERVICE_HOST": "10.96.0.7", "THING_SERVICE_PORT": "443", "THING_SERVICE_PORT_ADMIN_API": "443",
		"THING_PORT_80_TCP": "tcp://10.96.0.7:80", "THING_PORT_80_TCP_PROTO": "tcp", "THING_PORT_80_TCP_PORT": "80", "THING_PORT_80_TCP_ADDR": "10.96.0.7",
		"THING_WEB_SERVICE_HOST": "fd00::7", "THING_WEB_SERVICE_PORT": "443", "THING_WEB_PORT": "tcp://[fd00::7]:443", "THING_WEB_PORT_53_UDP": "udp://[fd00::7]:53",
		"THING_WEB_PORT_53_UDP_ADDR": "fd00::7", "THING_2_SERVICE_HOST": "none", "THING_2_PORT": "81",
	} {
		t.Setenv(name, value)
	}
	var p program
	if err := p.run(t, ""); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"THING_2_PORT: did you mean THING_PORT?", "THING_2_SERVICE_HOST", "THING_DELY_SERVICE_PORT", "THING_FULL_NAM: did you mean THING_FULL_NAME?", "THING_HELP",
		"THING_PROT_PORT", "THING_PRT: did you mean THING_PORT?", "THING_WEB_PORTS", "THING_WEB_PORT_ADMIN",
	}
	if diff := cmp.Diff(want, p.unknown); diff != "" {
		t.Errorf("unknown variables (-want +got):\n%s", diff)
	}
}

func TestKey(t *testing.T) {
	for flag, want := range map[string]string{"store": "store", "state-dir": "stateDir", "ca-cert-file": "caCertFile"} {
		if got := Key(flag); got != want {
			t.Errorf("Key(%q) = %q, want %q", flag, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	keys := Keys{"cpu": "runtime.", "cpu-limit": "runtime.", "guard-mode": "guard.mode"}
	for flag, want := range map[string]string{"store": "store", "cpu": "runtime.cpu", "cpu-limit": "runtime.cpuLimit", "guard-mode": "guard.mode"} {
		if got := keys.Of(flag); got != want {
			t.Errorf("Of(%q) = %q, want %q", flag, got, want)
		}
	}
}
