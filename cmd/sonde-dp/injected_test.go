package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// injected is the part of a container of an injected pod that this test reads.
type injected struct {
	Name      string
	Command   []string
	Args      []string
	Lifecycle struct {
		PostStart, PreStop struct{ Exec struct{ Command []string } }
	}
}

// commands returns the arguments of each call of sonde-dp.
func (c injected) commands() (all [][]string) {
	switch c.Name {
	case "kuma-init":
		all = append(all, append(c.Command[1:], c.Args...))
	case "kuma-sidecar":
		all = append(all, c.Args)
		for _, hook := range [][]string{c.Lifecycle.PostStart.Exec.Command, c.Lifecycle.PreStop.Exec.Command} {
			if len(hook) > 0 {
				all = append(all, hook[1:])
			}
		}
	}
	return all
}

// TestArgumentsOfInjectedPods parses the arguments in the golden files of the webhook.
func TestArgumentsOfInjectedPods(t *testing.T) {
	files, err := filepath.Glob("../../testdata/inject/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no injected pods: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pod struct {
			Spec struct{ InitContainers, Containers []injected }
		}
		if err := yaml.Unmarshal(text, &pod); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var commands [][]string
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			commands = append(commands, c.commands()...)
		}
		want := map[string]int{
			"native.yaml":    3, // the redirection, the agent, and its preStop hook
			"container.yaml": 4, // and its postStart hook
		}[filepath.Base(file)]
		if len(commands) != want {
			t.Errorf("%s runs sonde-dp %d times, want %d", file, len(commands), want)
		}
		for _, args := range commands {
			cmd, rest, err := newCommand(noGuard).Find(args)
			if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
				t.Errorf("%s: %q: no such command: %v", file, args, err)
			} else if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: %q: %v", file, args, err)
			}
		}
	}
}

// TestRedirectionWithoutInit checks that kuma-init and the CNI plugin's daemon write the same rules for a pod.
func TestRedirectionWithoutInit(t *testing.T) {
	files, err := filepath.Glob("../../testdata/inject/*/redirection.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no redirections: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := mesh.ParseRedirection(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		o := redirect.Of(&r)
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if diff := cmp.Diff(describedByInit(t, filepath.Join(filepath.Dir(file), "native.yaml")), redirect.Describe(o)); diff != "" {
			t.Errorf("%s: -kuma-init +plugin:\n%s", file, diff)
		}
	}
}

// describedByInit returns the rules that the kuma-init container of an injected pod writes.
func describedByInit(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pod struct {
		Spec struct{ InitContainers []injected }
	}
	if err := yaml.Unmarshal(text, &pod); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var flags redirectFlags
	cmd := &cobra.Command{RunE: flags.action(func(io.Writer, redirect.Options) error { return nil })}
	flags.add(cmd)
	cmd.SetArgs(pod.Spec.InitContainers[0].Args)
	var out strings.Builder
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return out.String()
}
