package buildinfo

import (
	"bytes"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestInfo(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0fe2dec"}
	tests := map[string]struct {
		build *debug.BuildInfo
		want  Info
	}{
		"a release": {build("v0.3.0", revision, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), Info{Version: "v0.3.0", Commit: "0fe2dec"}},
		"changes":   {build("v0.3.0+dirty", revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), Info{Version: "v0.3.0+dirty", Commit: "0fe2dec-modified"}},
		"no git":    {build(""), Info{Version: "unknown", Commit: "unknown"}},
		"no record": {nil, Info{Version: "unknown", Commit: "unknown"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.want.Program, tc.want.SupportedEnvoys = "sonde-cp", mesh.SupportedEnvoys()
			if diff := cmp.Diff(tc.want, of("sonde-cp", tc.build)); diff != "" {
				t.Errorf("of() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestString(t *testing.T) {
	i := Info{Program: "sonde-dp", Version: "v0.3.0", Commit: "0fe2dec", SupportedEnvoys: "1.38 to 1.40"}
	if got, want := i.String(), "sonde-dp version v0.3.0\ncommit: 0fe2dec\nsupported Envoys: 1.38 to 1.40"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestCommand(t *testing.T) {
	info := Of("sonde-cp")
	text := info.String() + "\n"
	var asJSON bytes.Buffer
	if err := write(&asJSON, info, "json"); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args      []string
		want, err string
	}{
		"the command": {args: []string{"version"}, want: text},
		"the flag":    {args: []string{"--version"}, want: text},
		"JSON":        {args: []string{"version", "-o", "json"}, want: asJSON.String()},
		"a bad form":  {args: []string{"version", "-o", "xml"}, err: `--output: "xml": must be text or json`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &cobra.Command{Use: "sonde-cp", Run: func(*cobra.Command, []string) { t.Error("the program itself ran") }, SilenceErrors: true, SilenceUsage: true}
			Add(root)
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetArgs(tc.args)
			err := root.ExecuteContext(t.Context())
			if got := errorText(err); got != tc.err {
				t.Errorf("error = %q, want %q", got, tc.err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
