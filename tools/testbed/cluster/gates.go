package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// gatePattern matches a setting of a feature gate.
var gatePattern = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]*)=(true|false)$`)

// knownGate matches a feature gate in a program's help.
var knownGate = regexp.MustCompile(`\b([A-Za-z][A-Za-z0-9]*)=true\|false \(`)

// checkGates returns the errors in Options.FeatureGates.
func checkGates(gates []string) (faults []error) {
	var names []string
	for _, gate := range gates {
		parts := gatePattern.FindStringSubmatch(gate)
		switch {
		case parts == nil:
			faults = append(faults, fmt.Errorf("feature gate %q: it must be Name=true or Name=false", gate))
			continue
		case slices.Contains(names, parts[1]):
			faults = append(faults, fmt.Errorf("feature gate %q: %s must be given once", gate, parts[1]))
		}
		names = append(names, parts[1])
	}
	return faults
}

// split splits gates into gates that a program's help lists, and others.
func split(gates []string, help string) (has, lacks []string) {
	known := map[string]bool{}
	for _, m := range knownGate.FindAllStringSubmatch(help, -1) {
		known[m[1]] = true
	}
	for _, gate := range gates {
		if name, _, _ := strings.Cut(gate, "="); known[name] {
			has = append(has, gate)
		} else {
			lacks = append(lacks, gate)
		}
	}
	return has, lacks
}

// gates are the arguments for feature gates, by the path of the program.
type gates map[string]string

// gatesOf finds the gates of each program. The API server must have all gates; an older kubelet may lack some.
func gatesOf(ctx context.Context, o Options, r programs) (gates, error) {
	all := gates{}
	if len(o.FeatureGates) == 0 {
		return all, nil
	}
	apiServer := filepath.Join(r.control, "kube-apiserver")
	paths := []string{
		apiServer, filepath.Join(r.control, "kube-controller-manager"), filepath.Join(r.control, "kube-scheduler"),
	}
	for _, directory := range r.nodes {
		paths = append(paths, filepath.Join(directory, "kubelet"))
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		help, err := machine.Run(ctx, "", path, "--help")
		if err != nil {
			return nil, fmt.Errorf("ask %s for its feature gates: %w", path, err)
		}
		has, lacks := split(o.FeatureGates, help)
		if path == apiServer && len(lacks) > 0 {
			return nil, fmt.Errorf("feature gates %s: the kube-apiserver of Kubernetes %s has none of this name to set; `%s --help` lists them",
				strings.Join(lacks, ", "), o.Kubernetes, path)
		}
		if len(has) > 0 {
			all[path] = "--feature-gates=" + strings.Join(has, ",")
		}
	}
	return all, nil
}

// on returns a process with its program's gates.
func (g gates) on(p process) process {
	if argument, ok := g[p.Command[0]]; ok {
		p.Command = append(slices.Clone(p.Command), argument)
	}
	return p
}
