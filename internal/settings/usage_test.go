package settings

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// newProgram returns a program whose command "work thing" ends with an error.
func newProgram(fail error) *cobra.Command {
	root := &cobra.Command{Use: "program", SilenceErrors: true, SilenceUsage: true}
	work := &cobra.Command{Use: "work", Short: "work"}
	thing := &cobra.Command{Use: "thing", Short: "thing", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return fail }}
	thing.Flags().Uint16("port", 80, "")
	thing.Flags().String("name", "", "")
	if err := thing.MarkFlagRequired("name"); err != nil {
		panic(err)
	}
	root.AddCommand(work)
	work.AddCommand(thing)
	Install(root, Options{Prefix: "PROGRAM_", Replaced: map[string]string{
		"apply": "write work thing", "work old": "write thing", "work old job": "write work thing", "work thing --prot": "write --port", "-p": "write --port", "--host": "leave it out",
	}, Unknown: func(*cobra.Command, []string) {}})
	return root
}

// A misspelt key is reported, instead of a missing required flag.
func TestMisspeltKeyOfARequiredFlag(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program.yaml")
	if err := os.WriteFile(path, []byte("naem: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{Use: "program", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
	cmd.Flags().String("name", "", "")
	cmd.Flags().String("mesh", "", "")
	cmd.Flags().String("config", "", "")
	Must(cmd.MarkFlagRequired("name"))
	Must(cmd.MarkFlagRequired("mesh"))
	Install(cmd, Options{Prefix: "PROGRAM_", File: true, Unknown: func(*cobra.Command, []string) {}})
	cmd.SetArgs([]string{"--config=" + path})
	_, err := Execute(t.Context(), cmd)
	if want := path + ", line 1: naem: is an unknown field: did you mean name?\n--mesh: is required"; err == nil || err.Error() != want {
		t.Errorf("Execute() = %v, want %s", err, want)
	}
}

func TestUsage(t *testing.T) {
	taken := &mesh.FieldError{Field: "--port", Value: "81", Err: errors.New("is in use")}
	bad := &mesh.FieldError{Field: "--port", Value: "81", Allowed: "must be another one"}
	tests := map[string]struct {
		args string
		env  map[string]string
		fail error
		code int
		want string // prefix of stderr
	}{
		"nothing":                           {},
		"help":                              {args: "help work"},
		"help of help":                      {args: "help help"},
		"the flag":                          {args: "work --help"},
		"done":                              {args: "work thing --name=x"},
		"failed":                            {args: "work thing --name=x", fail: errors.New("no luck"), code: 1, want: "program: no luck\n"},
		"a value cannot be used":            {args: "work thing --name=x", fail: taken, code: 1, want: `program: --port: "81": is in use`},
		"a value is refused":                {args: "work thing --name=x", fail: bad, code: 2, want: `program: --port: "81": must be another one`},
		"one of several errors":             {args: "work thing --name=x", fail: errors.Join(taken, bad), code: 2, want: `program: --port: "81": is in use`},
		"a variable is refused":             {args: "work thing --name=x", env: map[string]string{"PROGRAM_PORT": "81"}, fail: bad, code: 2, want: `program: PROGRAM_PORT: "81": must be another one`},
		"a field of an object":              {args: "work thing --name=x", fail: &mesh.FieldError{Field: "port", Allowed: "must be another one"}, code: 1, want: "program: port: must be another one\n"},
		"a variable that does not parse":    {args: "work thing --name=x", env: map[string]string{"PROGRAM_PORT": "x"}, code: 2, want: `program: PROGRAM_PORT: "x": must be a port`},
		"unknown command":                   {args: "worx", code: 2, want: "program: command \"worx\" not found: did you mean work?\n"},
		"unknown command, and --help":       {args: "nosuch --help", code: 2, want: "program: command \"nosuch\" not found: must be one of completion, work\n"},
		"unknown command below":             {args: "work nosuch", code: 2, want: "program: command \"nosuch\" not found: must be one of thing\n"},
		"no command below":                  {args: "work", code: 2, want: "program: a command is missing: thing\n"},
		"help of an unknown command":        {args: "help nosuch", code: 2, want: "program: command \"nosuch\" not found"},
		"help of an unknown command below":  {args: "help work nosuch", code: 2, want: "program: command \"nosuch\" not found: must be one of thing\n"},
		"help of more than a command":       {args: "help work thing nosuch", code: 2, want: "program: \"nosuch\": unknown command below program work thing\n"},
		"completion of an unknown shell":    {args: "completion tcsh", code: 2, want: "program: command \"tcsh\" not found: did you mean bash, zsh, fish?\n"},
		"completion of no shell":            {args: "completion", code: 2, want: "program: a command is missing: bash, fish, powershell, zsh\n"},
		"unknown flag":                      {args: "work thing --name=x --prt=1", code: 2, want: "program: --prt: is an unknown flag: did you mean --port?\n"},
		"a replaced command":                {args: "apply -f x", code: 2, want: "program: command \"apply\" not found: write work thing\n"},
		"one below":                         {args: "work old task", code: 2, want: "program: command \"old\" not found: write thing\n"},
		"the longest one":                   {args: "work old job --name=x", code: 2, want: "program: command \"old job\" not found: write work thing\n"},
		"a replaced flag":                   {args: "work thing --name=x --prot=1", code: 2, want: "program: --prot: is an unknown flag: write --port\n"},
		"one of any command":                {args: "work thing --host=x", code: 2, want: "program: --host: is an unknown flag: leave it out\n"},
		"a short one":                       {args: "work thing -p 1", code: 2, want: "program: -p: is an unknown flag: write --port\n"},
		"unknown flag of a group":           {args: "work --prot=1", code: 2, want: "program: --prot: is an unknown flag\n"},
		"bad value":                         {args: "work thing --name=x --port=x", code: 2, want: `program: --port: "x": must be a port`},
		"a flag without its value":          {args: "work thing --name", code: 2, want: "program: flag needs an argument: --name\n"},
		"a required flag is missing":        {args: "work thing", code: 2, want: "program: --name: is required\n"},
		"an argument too many":              {args: "work thing --name=x y", code: 2, want: `program: unknown command "y" for "program work thing"`},
		"an argument too many, of cobra's":  {args: "completion bash now", code: 2, want: `program: unknown command "now"`},
		"a required flag from its variable": {args: "work thing", env: map[string]string{"PROGRAM_NAME": "x"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			var stdout, stderr bytes.Buffer
			root := newProgram(tc.fail)
			root.SetArgs(strings.Fields(tc.args))
			root.SetOut(&stdout)
			root.SetErr(&stderr)
			if code := Main(t.Context(), root); code != tc.code {
				t.Errorf("exit code = %d, want %d", code, tc.code)
			}
			got := stderr.String()
			if diff := cmp.Diff(tc.want, got[:min(len(tc.want), len(got))]); diff != "" || tc.want == "" && got != "" {
				t.Errorf("stderr = %q, want %q", got, tc.want)
			}
			if tc.code != 0 && stdout.Len() > 0 {
				t.Errorf("stdout = %q, want nothing", &stdout)
			}
		})
	}
}
