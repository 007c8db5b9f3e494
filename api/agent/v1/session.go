// Package agentv1 is the API between agents and the control plane.
package agentv1

// Features of a session. A control plane announces in Welcome what it sends and reads, an agent in Hello, so that
// neither waits for messages that the other side is too old to send.
const (
	// FeatureInbounds, FeatureDrainState, FeaturePerPortProbes: a control plane sends Inbounds, DrainState, Probes.
	FeatureInbounds      = "inbounds"
	FeatureDrainState    = "drain-state"
	FeaturePerPortProbes = "per-port-probes"
	// FeatureProbeFailures, FeatureEnvoyState: a control plane reads ProbeFailures, EnvoyState.
	FeatureProbeFailures = "probe-failures"
	FeatureEnvoyState    = "envoy-state"
	// FeatureRefusals: a control plane reads Refusals.
	FeatureRefusals = "refusals"
	// FeatureServiceProbes: a control plane sends ServiceProbes and reads Readiness; an agent does the reverse.
	FeatureServiceProbes = "service-probes"
	// FeatureEndpoints: a control plane sends Endpoints, an agent reads them.
	FeatureEndpoints = "endpoints"
	// FeatureOutbounds: a control plane sends Outbounds, an agent reads them.
	FeatureOutbounds = "outbounds"
	// FeatureServingCA: an agent reads ServingCA, and its Envoy reads the file with it. JoinRequest has this feature, too.
	FeatureServingCA = "serving-ca"
	// FeatureRestartGrants: a control plane reads Liveness and sends Restarts; an agent does the reverse.
	FeatureRestartGrants = "restart-grants"
	// FeatureLivenessHold: an agent reads Restarts.hold.
	FeatureLivenessHold = "liveness-hold"
	// FeatureVerdicts: a control plane reads Verdicts, an agent sends them.
	FeatureVerdicts = "verdicts"
	// FeaturePlaintext: a control plane reads Plaintext, an agent sends it. JoinRequest has this feature, too, since
	// Envoy's bootstrap depends on it.
	FeaturePlaintext = "plaintext"
	// FeatureQueries, FeaturePong, FeatureAskPlaintext: an agent answers Query, Ping, AskPlaintext.
	FeatureQueries      = "queries"
	FeaturePong         = "pong"
	FeatureAskPlaintext = "ask-plaintext"
	// FeatureProbePorts: an agent opens the ports of per-port probes itself. An agent without this feature waits for
	// listeners of Envoy that no longer exist.
	FeatureProbePorts = "probe-ports"
)

// knownFeatures are all features of this version.
var knownFeatures = []string{
	FeatureInbounds, FeatureDrainState, FeaturePerPortProbes, FeatureProbeFailures, FeatureEnvoyState,
	FeatureServiceProbes, FeatureEndpoints, FeatureServingCA,
	FeatureRestartGrants, FeatureLivenessHold, FeaturePlaintext, FeatureQueries, FeatureOutbounds, FeaturePong,
	FeatureAskPlaintext, FeatureProbePorts, FeatureRefusals, FeatureVerdicts,
}

// Limits of reports.
const (
	// MaxReported is how many entries a ProbeFailures, a Readiness, a Liveness, a Plaintext or a Refusals may have.
	MaxReported = 20
	// MaxReason limits each reason, in bytes: the rest is cut off.
	MaxReason = 512
)
