package main

import (
	"bytes"
	"context"
	_ "embed" // the policy
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/cluster"
)

const (
	// chosen selects the tests that the table covers: tests of the pod lifecycle, which a sidecar changes, of the network,
	// and of controllers of pods.
	chosen = `\[sig-network\]|\[sig-apps\]|\[sig-node\] (Container Lifecycle Hook|InitContainer|Lifecycle|Pods |PreStop|Probing container|` +
		`\[NodeConformance\] \[FeatureGate:SidecarContainers\])`
	// left selects tests to omit, which change nodes, need other nodes or take long.
	left = `\[Serial\]|\[Disruptive\]|\[Slow\]|\[Flaky\]|\[Alpha\]|\[Beta\]|Windows|GPU|HugePages|\[Feature:`

	// runLimit bounds a complete run, and endLimit the cleanup of namespaces after an interruption.
	runLimit = 6 * time.Hour
	endLimit = 2 * time.Minute
	// policyLimit bounds the time until the API server enforces an admission policy.
	policyLimit = time.Minute
)

//go:embed inject.yaml
var policy string

// suite has Kubernetes' tests for one cluster.
type suite struct {
	cluster *cluster.Cluster
	// programs is the directory of e2e.test and ginkgo, output the directory of logs and results.
	programs, output string
	progress         io.Writer
}

// imageTags returns the images that the tests use.
func (s *suite) imageTags(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, "e2e.test"), "--list-images")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of the tests: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// setMesh puts every new namespace of the tests into the mesh, or into none, and returns when this is in effect.
func (s *suite) setMesh(ctx context.Context, mesh bool) error {
	args := []string{"apply", "--filename=-"}
	if !mesh {
		args = []string{"delete", "--ignore-not-found", "--filename=-"}
	}
	if _, err := s.kubectl(ctx, policy, args...); err != nil {
		return err
	}
	const namespace = `{"apiVersion": "v1", "kind": "Namespace",
		"metadata": {"name": "kubee2e", "labels": {"e2e-framework": "kubee2e"}}}`
	ctx, cancel := context.WithTimeout(ctx, policyLimit)
	defer cancel()
	for {
		labels, err := s.kubectl(ctx, namespace, "create", "--dry-run=server",
			"--output=jsonpath={.metadata.labels}", "--filename=-")
		if err == nil && strings.Contains(labels, "kuma.io/sidecar-injection") == mesh {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("a namespace of the tests has the labels %s", labels))
		case <-time.After(time.Second):
		}
	}
}

func (s *suite) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.cluster.Kubectl(), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return string(out), nil
}

// run runs the tests whose names match a pattern, several in parallel, on the network of node 1, and returns their
// outcomes. Failed tests are not an error.
func (s *suite) run(ctx context.Context, name, focus string, procs int) (results, error) {
	directory := filepath.Join(s.output, name)
	if err := errors.Join(os.RemoveAll(directory), os.MkdirAll(directory, 0o755)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(directory, "log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	if _, err := fmt.Fprintf(s.progress, "running Kubernetes' e2e tests: see %s\n", log.Name()); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.cluster.Node(), "1", filepath.Join(s.programs, "ginkgo"),
		"--procs="+strconv.Itoa(procs), "--no-color", "--silence-skips", "--timeout="+runLimit.String(),
		"--focus="+focus, "--skip="+left,
		filepath.Join(s.programs, "e2e.test"), "--", "--provider=local", "--num-nodes=2", "--report-dir="+directory)
	cmd.Stdout, cmd.Stderr = log, log
	// ginkgo forwards the interrupt, so that tests delete their namespaces.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = endLimit
	runError := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	report, err := os.ReadFile(filepath.Join(directory, "junit_01.xml"))
	if err != nil {
		return nil, errors.Join(runError, fmt.Errorf("the tests left no result (log: %s): %w", log.Name(), err))
	}
	r, err := readJUnit(report)
	if err != nil {
		return nil, fmt.Errorf("read the result of the tests: %w", err)
	}
	if len(r) == 0 {
		return nil, fmt.Errorf("no test matches %q, without those that match %q", focus, left)
	}
	return r, nil
}
