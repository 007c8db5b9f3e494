package webhook

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// metricsPortFlag is kuma-init's flag for the port for Prometheus.
const metricsPortFlag = "--metrics-port"

// metricsPortName names the user of the port for Prometheus in errors if no annotation sets it.
const metricsPortName = "the metrics of the pod"

// parsePortOrNone returns nil only with an error.
func parsePortOrNone(value string) (*int32, error) {
	if value == "0" {
		return new(int32(0)), nil
	}
	port, err := mesh.ParsePort[int32](value)
	if err != nil {
		return nil, errPortOrNone
	}
	return &port, nil
}

// AddMetricsFlags adds the flags for Prometheus of the control plane and sondectl.
func (o *Options) AddMetricsFlags(flags *pflag.FlagSet) {
	o.MetricsPort = new(int32(mesh.PortPodMetrics))
	flags.Int32Var(o.MetricsPort, "sidecar-metrics-port", mesh.PortPodMetrics, "`PORT` of the agent for Prometheus; a pod's annotation takes precedence; 0: none")
	flags.StringSliceVar(&o.MetricsInclude, "sidecar-metrics-include", nil, "name `PREFIXES` of Envoy's metrics at --sidecar-metrics-port; default those in docs/metrics.md")
}

// validateMetrics returns a *mesh.FieldError for each invalid value.
func (o *Options) validateMetrics() error {
	err := mesh.CheckMetricPrefixes("MetricsInclude", o.MetricsInclude)
	port := *o.MetricsPort
	var allowed string
	switch use := reservedPorts[port]; {
	case port != 0 && !isPort(port):
		allowed = errPortOrNone.Error()
	case use != "":
		allowed = "must not be the port of " + use
	case port == o.VirtualProbesPort:
		allowed = "must not be the port for probes"
	default:
		return err
	}
	return errors.Join(err, &mesh.FieldError{Field: "MetricsPort", Value: number(port), Allowed: allowed})
}

// reserveMetricsPort reserves the port for Prometheus, before the agent's other ports are chosen. An injected pod keeps
// its port or has none.
func (in *injection) reserveMetricsPort() error {
	asked, field := in.settings.metricsPort, annotationField(mesh.AnnotationMetricsPort)
	in.metricsPort = *in.options.MetricsPort
	if in.earlier != nil {
		if in.metricsPort = in.earlier.metricsPort; asked != nil && *asked != in.metricsPort {
			return fmt.Errorf("%s: %q: %s already has %s", field, number(*asked), mesh.ContainerSidecar, in.earlier.describeMetricsPort())
		}
	} else if asked != nil {
		in.metricsPort = *asked
	}
	port := in.metricsPort
	if port == 0 {
		return nil
	}
	if use := reservedPorts[port]; use != "" { // the options cannot have these ports
		return fmt.Errorf("%s: %q: reserved for %s", field, number(port), use)
	}
	if by := in.used[port]; by != "" {
		return fmt.Errorf("%s: port %d is reserved for %s: set %s to another port, or to \"0\" for none", by, port, metricsPortName, field)
	}
	in.used[port] = metricsPortName + " (" + field + ")"
	return nil
}

// describeMetricsPort returns the name of the setting for the port and its value.
func (e *earlier) describeMetricsPort() string {
	if e.metricsPort == 0 {
		return "no " + strings.TrimSuffix(mesh.ArgMetricsAddress, "=")
	}
	return mesh.ArgMetricsAddress + metricsAddress(e.metricsPort)
}

// metricsAddress returns the address at which the agent answers Prometheus: all addresses of the pod, which may be
// dual-stack.
func metricsAddress(port int32) string { return net.JoinHostPort("", number(port)) }

// metricsArgs returns the arguments of the sidecar for Prometheus.
func (in *injection) metricsArgs() []string {
	if in.metricsPort == 0 {
		return nil
	}
	args := []string{mesh.ArgMetricsAddress + metricsAddress(in.metricsPort)}
	if include := in.options.MetricsInclude; len(include) > 0 {
		args = append(args, mesh.ArgMetricsInclude+strings.Join(include, ","))
	}
	return args
}

// annotateMetrics writes annotations with which Prometheus finds the pod's metrics. set keeps existing annotations.
func (in *injection) annotateMetrics(set func(key, value string)) {
	if in.metricsPort == 0 {
		return
	}
	set(mesh.AnnotationMetricsPort, number(in.metricsPort))
	ours := []struct{ key, value string }{
		{mesh.AnnotationPrometheusScrape, "true"}, {mesh.AnnotationPrometheusPort, number(in.metricsPort)}, {mesh.AnnotationPrometheusPath, mesh.PathMetrics},
	}
	var theirs []string
	others := false // an existing annotation differs
	for _, a := range ours {
		if value, ok := in.pod.Annotations[a.key]; ok {
			theirs = append(theirs, annotationField(a.key))
			others = others || value != a.value
		}
	}
	if len(theirs) == 0 {
		for _, a := range ours {
			set(a.key, a.value)
		}
		return
	}
	if others || len(theirs) < len(ours) {
		in.warn("%s: not changed, so a Prometheus that uses this annotation does not scrape %s at port %d", strings.Join(theirs, ", "), metricsPortName, in.metricsPort)
	}
}
