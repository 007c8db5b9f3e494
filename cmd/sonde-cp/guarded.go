package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// The flags of guarded liveness. Their keys are read again when the file changes.
const (
	flagGuardedMode       = "guarded-liveness-mode"
	flagGuardedPerMinute  = "guarded-liveness-per-minute"
	flagGuardedPerNode    = "guarded-liveness-per-node-per-minute"
	flagGuardedNamespaces = "guarded-liveness-blacklist-namespaces"
	flagGuardedWorkloads  = "guarded-liveness-blacklist-workloads"
	flagGuardedImages     = "guarded-liveness-blacklist-images"
	flagBreakerWorkloads  = "guarded-liveness-breaker-workloads"
	flagBreakerPercent    = "guarded-liveness-breaker-percent"
)

var guardedFlags = []string{
	flagGuardedMode, flagGuardedPerMinute, flagGuardedPerNode, flagGuardedNamespaces, flagGuardedWorkloads, flagGuardedImages, flagBreakerWorkloads,
	flagBreakerPercent,
}

// addGuardedFlags adds the flags that set s.
func addGuardedFlags(flags *pflag.FlagSet, s *restartbudget.Settings) {
	const rest = "; read again when the --config file changes, and without effect on a directory of files"
	flags.StringVar((*string)(&s.Mode), flagGuardedMode, string(restartbudget.Enforce),
		"`MODE` of guarded liveness: enforce, dryRun, which decides while the kubelet sees every failure, or off"+rest)
	flags.IntVar(&s.PerMinute, flagGuardedPerMinute, 0, "`NUMBER` of restarts that are granted in any minute; 0 for no limit"+rest)
	flags.IntVar(&s.PerNodePerMinute, flagGuardedPerNode, 0, "`NUMBER` of restarts that are granted on one node in any minute; 0 for no limit"+rest)
	flags.StringSliceVar(&s.Blacklist.Namespaces, flagGuardedNamespaces, nil, "`NAMES` of namespaces in which no restart is granted"+rest)
	flags.StringSliceVar(&s.Blacklist.Workloads, flagGuardedWorkloads, nil, "`WORKLOADS`, as Kind/namespace/name, of which no restart is granted"+rest)
	flags.StringSliceVar(&s.Blacklist.Images, flagGuardedImages, nil,
		"`IMAGES` of containers that are granted no restart, as pods have them, or without tag and digest for all of these"+rest)
	flags.IntVar(&s.Breaker.Workloads, flagBreakerWorkloads, restartbudget.DefaultBreakerWorkloads,
		"`NUMBER` of workloads of which containers are held within a minute from which on no restart is granted, if the percentage is reached, too"+rest)
	flags.IntVar(&s.Breaker.Percent, flagBreakerPercent, restartbudget.DefaultBreakerPercent,
		"`PERCENT` of all guarded containers that are held within a minute from which on no restart is granted, if the number of workloads is reached, too"+rest)
}

// validateBreaker refuses 0, which asks for the default elsewhere.
func (o *options) validateBreaker() error {
	var errs []error
	if o.Kubernetes.GuardedLiveness.Breaker.Workloads == 0 {
		errs = append(errs, &mesh.FieldError{Field: "--" + flagBreakerWorkloads, Value: "0", Allowed: restartbudget.AllowedBreakerWorkloads})
	}
	if o.Kubernetes.GuardedLiveness.Breaker.Percent == 0 {
		errs = append(errs, &mesh.FieldError{Field: "--" + flagBreakerPercent, Value: "0", Allowed: restartbudget.AllowedBreakerPercent})
	}
	return errors.Join(errs...)
}
