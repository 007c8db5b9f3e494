package main

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// injected is a container of an injected pod.
type injected struct {
	Name      string
	Command   []string
	Args      []string
	Lifecycle struct {
		PostStart, PreStop struct{ Exec struct{ Command []string } }
	}
}

// commands returns the arguments of each run of our program.
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

// TestArgumentsOfInjectedPods parses what the injector writes into its containers, in the golden files of webhook.
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
			t.Errorf("%s runs %d commands of ours, want %d", file, len(commands), want)
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
