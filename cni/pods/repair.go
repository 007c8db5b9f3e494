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

// Repair checks all pods that the plugin redirects, and writes missing rules: a pod has none if it started while the
// daemon did not run, or before the CNI configuration had the plugin. No container restarts, since the sidecar has been
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
	states, reasons := map[string]int{}, map[Key]string{}
	for _, key := range slices.SortedFunc(maps.Keys(known), Key.compare) {
		record := known[key]
		if record.Redirection == "" {
			continue
		}
		state, err := r.repairPod(key, record, sandboxes)
		states[state]++
		if err != nil {
			reasons[key] = reasonOf(err)
			r.report(key, state, reasons[key])
		}
		if state == stateBroken {
			broken = append(broken, Broken{key, err})
		}
	}
	r.reported = reasons
	r.forget(sandboxes)
	r.Metrics.repaired(states)
	return broken, nil
}

// report logs a pod when its error changes.
func (r *Redirector) report(key Key, state, reason string) {
	switch {
	case reason == r.reported[key]:
	case state == stateUnknown:
		r.Logger.Warn("failed to check the redirection of a pod, leaving it unchanged", "pod", key.String(), "err", reason)
	default:
		r.Logger.Error("failed to repair the redirection of a pod, retrying", "pod", key.String(), "err", reason)
	}
}

// Broken is a pod without its rules.
type Broken struct {
	Key
	Err error
}

// repairPod returns the state of a pod, "" if it has no sandbox: it is only scheduled.
func (r *Redirector) repairPod(key Key, record Record, sandboxes []Sandbox) (state string, err error) {
	o, err := optionsOf(record)
	if err != nil {
		return stateBroken, err
	}
	var errs []error
	unknown := false
	for _, s := range sandboxes {
		if s.Key != key || s.UID != "" && s.UID != record.UID {
			continue
		}
		has := true
		switch {
		case s.NetNS != "":
			has, err = r.repairSandbox(key, s, o)
			errs = append(errs, err)
		case !r.isAdded(s.ContainerID):
			unknown = true
		}
		if has {
			state = stateRedirected
		}
	}
	if err := errors.Join(errs...); err != nil {
		return stateBroken, err
	}
	if unknown {
		return stateUnknown, errNoNetNS
	}
	return state, nil
}

// errNoNetNS is for container runtimes with a CNI library before 1.2.
var errNoNetNS = errors.New("the container runtime does not record network namespaces (containerd 2 and CRI-O 1.31 do): " +
	"restart the pod if it does not become Ready")

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
