// Package agentv1 is the API between agents and the control plane.
package agentv1

// Features of a session. A control plane names in Welcome what it sends or reads, an agent in Hello what it does: neither waits for what
// the other one is too old for.
const (
	// FeatureInbounds, FeatureDrainState, FeaturePerPortProbes: a control plane sends Inbounds, DrainState, Probes.
	FeatureInbounds      = "inbounds"
	FeatureDrainState    = "drain-state"
	FeaturePerPortProbes = "per-port-probes"
	// FeatureProbeFailures, FeatureEnvoyState: a control plane reads ProbeFailures, EnvoyState.
	FeatureProbeFailures = "probe-failures"
	FeatureEnvoyState    = "envoy-state"
	// FeatureServiceProbes: a control plane sends ServiceProbes and reads Readiness; an agent does the reverse.
	FeatureServiceProbes = "service-probes"
	// FeatureEndpoints: a control plane sends Endpoints, an agent reads them.
	FeatureEndpoints = "endpoints"
	// FeatureOutbounds: a control plane sends Outbounds, an agent reads them.
	FeatureOutbounds = "outbounds"
	// FeatureServingCA: an agent reads ServingCA, and its Envoy the file with it. In JoinRequest, too.
	FeatureServingCA = "serving-ca"
	// FeatureRestartGrants: a control plane reads Liveness and sends Restarts; an agent does the reverse.
	FeatureRestartGrants = "restart-grants"
	// FeaturePlaintext: a control plane reads Plaintext, an agent sends it. In JoinRequest, too: Envoy may record for it.
	FeaturePlaintext = "plaintext"
	// FeatureQueries, FeaturePong, FeatureAskPlaintext: an agent answers Query, Ping, AskPlaintext.
	FeatureQueries      = "queries"
	FeaturePong         = "pong"
	FeatureAskPlaintext = "ask-plaintext"
	// FeatureProbePorts: an agent holds the ports for probes of the per-port mode itself. One without it waits for Envoy's listeners,
	// which there are not any more.
	FeatureProbePorts = "probe-ports"
)

// knownFeatures are all of this version.
var knownFeatures = []string{
	FeatureInbounds, FeatureDrainState, FeaturePerPortProbes, FeatureProbeFailures, FeatureEnvoyState, FeatureServiceProbes, FeatureEndpoints, FeatureServingCA,
	FeatureRestartGrants, FeaturePlaintext, FeatureQueries, FeatureOutbounds, FeaturePong, FeatureAskPlaintext, FeatureProbePorts,
}

// Limits of what an agent reports.
const (
	// MaxReported is how many entries a ProbeFailures, a Readiness, a Liveness or a Plaintext may have.
	MaxReported = 20
	// MaxReason limits each reason, in bytes: the rest is cut off.
	MaxReason = 512
)
