// Package chart renders the chart of deploy/chart with Helm, for tests.
package chart

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

// Namespace is the one of the release.
const Namespace = "sonde-system"

// Manifest is one object of the chart.
type Manifest struct {
	Kind, Name, YAML string
}

// Decode reads a manifest into a type of the API, which has to have all its fields.
func (m Manifest) Decode(into any) error {
	if err := yaml.UnmarshalStrict([]byte(m.YAML), into); err != nil {
		return fmt.Errorf("decode %s %s: %w", m.Kind, m.Name, err)
	}
	return nil
}

// Helm runs a command of Helm on the chart, such as lint. Helm is built if it is not in the cache. The error has what Helm says.
func Helm(ctx context.Context, command string, args ...string) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	path, err := output(exec.CommandContext(ctx, "make", "--silent", "--no-print-directory", "-C", root, "helm"))
	if err != nil {
		return "", fmt.Errorf("build helm: %w", err)
	}
	return output(exec.CommandContext(ctx, strings.TrimSpace(path), append([]string{command, filepath.Join(root, "deploy", "chart")}, args...)...))
}

func output(cmd *exec.Cmd) (string, error) {
	var all, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &all, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s%s", err, all.String(), problems.String())
	}
	return all.String(), nil
}

// Render returns what the chart installs with these flags of Helm, such as --set=…, but for the CustomResourceDefinitions and its hooks.
func Render(ctx context.Context, flags ...string) ([]Manifest, error) {
	return render(ctx, append([]string{"--no-hooks"}, flags...)...)
}

// Hooks returns what is there while the chart is installed or upgraded.
func Hooks(ctx context.Context, flags ...string) ([]Manifest, error) {
	return render(ctx, append([]string{"--show-only=templates/crds-hook.yaml"}, flags...)...)
}

func render(ctx context.Context, flags ...string) ([]Manifest, error) {
	text, err := Helm(ctx, "template", append([]string{"--namespace=" + Namespace}, flags...)...)
	if err != nil {
		return nil, err
	}
	var all []Manifest
	for document := range strings.SplitSeq(text, "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			return nil, fmt.Errorf("decode what the chart installs: %w", err)
		}
		if head.Kind != "" {
			all = append(all, Manifest{Kind: head.Kind, Name: head.Metadata.Name, YAML: document})
		}
	}
	return all, nil
}
