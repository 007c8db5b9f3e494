package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// Repair checks all pods that the plugin redirects, and writes missing rules: the daemon did not run when the pod
// started, or the CNI configuration did not have the plugin yet. No container restarts, since the sidecar has been
// waiting. Repair returns the pods whose rules it could not write.
func (r *Redirector) Repair() (broken []Broken, err error) {
	known, complete := r.Source.Pods()
	if !complete {
		return nil, nil
	}
	sandboxes, err := r.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	redirected, reasons := 0, map[Key]string{}
	for _, key := range slices.SortedFunc(maps.Keys(known), Key.compare) {
		record := known[key]
		if record.Redirection == "" {
			continue
		}
		is, err := r.repairPod(key, record, sandboxes)
		switch {
		case err != nil:
			reasons[key] = reasonOf(err)
			if reasons[key] != r.reported[key] {
				r.Logger.Error("failed to repair the redirection of a pod, retrying", "pod", key.String(), "err", reasons[key])
			}
			broken = append(broken, Broken{key, err})
		case is:
			redirected++
		}
	}
	r.reported = reasons
	r.forget()
	r.Metrics.repaired(redirected, len(broken))
	return broken, nil
}

// Broken is a pod without its rules.
type Broken struct {
	Key
	Err error
}

// repairPod reports whether the pod has a sandbox. A pod that is only scheduled has none.
func (r *Redirector) repairPod(key Key, record Record, sandboxes []Sandbox) (is bool, err error) {
	o, err := optionsOf(record)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, s := range sandboxes {
		if s.Key != key || s.UID != "" && s.UID != record.UID {
			continue
		}
		if s.NetNS == "" {
			errs = append(errs, errNoNetNS)
			continue
		}
		has, err := r.repairSandbox(key, s, o)
		is = is || has
		errs = append(errs, err)
	}
	return is, errors.Join(errs...)
}

// errNoNetNS is for container runtimes with a CNI library before 1.2.
var errNoNetNS = errors.New(
	"the container runtime does not record network namespaces (containerd 2 and CRI-O 1.31 do): restart the pod")

func (r *Redirector) repairSandbox(key Key, s Sandbox, o redirect.Options) (is bool, err error) {
	if r.isVerified(s.NetNS) {
		return true, nil
	}
	differences, err := r.Kernel.Check(s.NetNS, o)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the runtime is removing this sandbox
		return false, nil
	case err != nil:
		return true, err
	case len(differences) == 0:
		r.verify(s.NetNS)
		return true, nil
	}
	if err := r.Kernel.Install(s.NetNS, o); err != nil {
		return true, err
	}
	r.verify(s.NetNS)
	r.Metrics.repairs.Inc()
	r.Logger.Info("repaired the redirection of a pod", "pod", key.String(), "netns", s.NetNS,
		"differences", len(differences))
	return true, nil
}

// String returns the name with its namespace.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

func (k Key) compare(other Key) int { return strings.Compare(k.String(), other.String()) }
