package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Flags of guarded liveness. They are reloaded when the --config file changes.
const (
	flagGuardedMode       = "guarded-liveness-mode"
	flagGuardedHold       = "guarded-liveness-hold"
	flagGuardedPerMinute  = "guarded-liveness-per-minute"
	flagGuardedPerNode    = "guarded-liveness-per-node-per-minute"
	flagGuardedNamespaces = "guarded-liveness-blacklist-namespaces"
	flagGuardedWorkloads  = "guarded-liveness-blacklist-workloads"
	flagGuardedImages     = "guarded-liveness-blacklist-images"
	flagBreakerWorkloads  = "guarded-liveness-breaker-workloads"
	flagBreakerPercent    = "guarded-liveness-breaker-percent"
)

var guardedFlags = []string{
	flagGuardedMode, flagGuardedHold, flagGuardedPerMinute, flagGuardedPerNode, flagGuardedNamespaces,
	flagGuardedWorkloads, flagGuardedImages, flagBreakerWorkloads, flagBreakerPercent,
}

// addGuardedFlags adds the flags that set s and hold.
func addGuardedFlags(flags *pflag.FlagSet, s *restartbudget.Settings, hold *mesh.LivenessHold) {
	const rest = "; reloaded when the --config file changes; ignored with --store=dir:PATH"
	flags.StringVar((*string)(&s.Mode), flagGuardedMode, string(restartbudget.Enforce),
		"`MODE` of guarded liveness: enforce; dryRun, which decides but reports every failure to the kubelet; or off"+rest)
	flags.StringVar((*string)(hold), flagGuardedHold, string(mesh.HoldErrored),
		"`ANSWER` to kubelets while a liveness failure is held back: errored, which kubelets discard, or warning, for kubelets that count errored probes as failures"+rest)
	flags.IntVar(&s.PerMinute, flagGuardedPerMinute, 0, "maximum `NUMBER` of restarts that the control plane grants per minute; 0 means unlimited"+rest)
	flags.IntVar(&s.PerNodePerMinute, flagGuardedPerNode, 0, "maximum `NUMBER` of restarts that the control plane grants per minute on each node; 0 means unlimited"+rest)
	flags.StringSliceVar(&s.Blacklist.Namespaces, flagGuardedNamespaces, nil, "`NAMES` of namespaces in which the control plane grants no restarts"+rest)
	flags.StringSliceVar(&s.Blacklist.Workloads, flagGuardedWorkloads, nil, "`WORKLOADS`, as Kind/namespace/name, to which the control plane grants no restarts"+rest)
	flags.StringSliceVar(&s.Blacklist.Images, flagGuardedImages, nil,
		"`IMAGES`, as written in pods, whose containers the control plane grants no restarts; without tag and digest, all versions"+rest)
	flags.IntVar(&s.Breaker.Workloads, flagBreakerWorkloads, restartbudget.DefaultBreakerWorkloads,
		"minimum `NUMBER` of workloads with containers held within a minute that, together with the percentage, opens the breaker; an open breaker stops all restarts"+rest)
	flags.IntVar(&s.Breaker.Percent, flagBreakerPercent, restartbudget.DefaultBreakerPercent,
		"minimum `PERCENT` of all guarded containers held within a minute that, together with the number of workloads, opens the breaker; an open breaker stops all restarts"+rest)
}

// validateBreaker rejects 0, which restartbudget.Settings replaces by the default.
func (o *options) validateBreaker() error {
	var errs []error
	if o.Kubernetes.GuardedLiveness.Breaker.Workloads == 0 {
		errs = append(errs, &mesh.FieldError{Field: "--" + flagBreakerWorkloads, Value: "0", Allowed: restartbudget.AllowedBreakerWorkloads})
	}
	if o.Kubernetes.GuardedLiveness.Breaker.Percent == 0 {
		errs = append(errs, &mesh.FieldError{
			Field: "--" + flagBreakerPercent, Value: "0", Allowed: restartbudget.AllowedBreakerPercent,
		})
	}
	return errors.Join(errs...)
}
