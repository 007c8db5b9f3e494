// Package buildinfo describes the version of a program, in one form for all programs of Sonde.
package buildinfo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// unknown replaces values that the Go build has not recorded, as in a build outside the repository.
const unknown = "unknown"

// Info describes a program.
type Info struct {
	// Program is the program's name, such as sonde-cp.
	Program string `json:"program"`
	// Version of the module, such as v0.3.0.
	Version string `json:"version"`
	// Commit is the revision of the repository; the suffix "-modified" means uncommitted changes.
	Commit string `json:"commit"`
	// SupportedEnvoys names the versions of Envoy that Sonde is tested with.
	SupportedEnvoys string `json:"supportedEnvoys"`
}

// Of returns what the Go build has recorded about this program.
func Of(program string) Info {
	build, _ := debug.ReadBuildInfo()
	return of(program, build)
}

func of(program string, build *debug.BuildInfo) Info {
	i := Info{Program: program, Version: unknown, Commit: unknown, SupportedEnvoys: mesh.SupportedEnvoys()}
	if build == nil {
		return i
	}
	i.Version = cmp.Or(build.Main.Version, unknown)
	settings := map[string]string{}
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	if revision := settings["vcs.revision"]; revision != "" {
		i.Commit = revision
		if settings["vcs.modified"] == "true" {
			i.Commit += "-modified"
		}
	}
	return i
}

// String returns the human-readable form, without a final newline.
func (i Info) String() string {
	return i.Program + " version " + i.afterVersion()
}

// afterVersion is String without the prefix that cobra adds by itself.
func (i Info) afterVersion() string {
	return fmt.Sprintf("%s\ncommit: %s\nsupported Envoys: %s", i.Version, i.Commit, i.SupportedEnvoys)
}

// Metric returns a metric that is always 1, with the version and the commit of the program as labels.
func Metric() prometheus.Collector {
	i := Of("")
	m := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sonde_build_info", Help: "Always 1, with the version and the commit of the program.",
	}, []string{"version", "commit"})
	m.WithLabelValues(i.Version, i.Commit).Set(1)
	return m
}

// Add adds the flag --version and the command version to a program.
func Add(root *cobra.Command) {
	info := Of(root.Name())
	// not a template: with text/template the linker keeps every exported method, which adds 3 MiB to an agent
	root.Version = info.afterVersion()
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show version, commit and supported versions of Envoy",
		Example: "  " + root.Name() + " version\n  " + root.Name() + " version -o json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return write(cmd.OutOrStdout(), info, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"},
		cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag exists
	}
	root.AddCommand(cmd)
}

func write(w io.Writer, i Info, output string) error {
	switch output {
	case "text":
		_, err := fmt.Fprintln(w, i)
		return err
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(i)
	default:
		return &mesh.FieldError{Field: "--output", Value: output, Allowed: "must be text or json"}
	}
}
