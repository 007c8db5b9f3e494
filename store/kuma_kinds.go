package store

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Consequences of the absence of a kind of Kuma's.
const (
	noPermissions = "every workload of the mesh may call every other, whatever it allows or denies"
	noIdentities  = "mtls of the Mesh configures identities and mTLS, with the backend builtin, and a certificate names the workload of its Dataplane"
	noRoutes      = "each request and connection goes to the service that the outbound names"
	noRetries     = "a proxy only retries requests that no application has received"
	noTimeouts    = "a proxy has 5s to connect to an endpoint; requests and connections have no other timeout than the applications'"
	noChecks      = "an endpoint gets no traffic while its health, its agent or its probes say that it is not ready, or while it does not answer"
	noBreakers    = "Envoy ejects dead endpoints for some seconds; there are no other limits"
	noLimits      = "requests are not limited"
	noFaults      = "no faults are injected"
	noLogs        = "proxies write no access logs"
	noTraces      = "proxies record no traces"
	noMetrics     = "each sonde-dp serves metrics on its own ports, 9902 and in pods 5670"
	noBalancing   = "requests are spread equally over all ready endpoints, wherever they are, unless the Service (type: Service) sets sessionAffinity or internalTrafficPolicy"
	noPatches     = "Sonde alone generates Envoy's configuration"
	noGateways    = "write a Dataplane with networking.gateway, type DELEGATED, for your own gateway, such as nginx or Kong"
	noZones       = "one control plane has all Dataplanes, without zones"
	noOutside     = "write a Service with the IP address as an endpoint; a Dataplane's outbound names this Service by the tag kuma.io/service"
	noHostnames   = "applications reach a service through an outbound, or at an address of its Service (type: Service); there are no host names"
	noSecrets     = "the control plane keeps its keys in its state directory"
	noInput       = "Kuma's control plane writes it; it is not configuration"
	noPassthrough = "applications can reach all destinations outside the mesh, or none if networking.outbound.passthrough of the Mesh is false"
)

// kumaKinds are the kinds of Kuma 2 and 3 that Sonde does not have, with the consequence. Source: the resources of Kuma
// 2.9 and of its master branch (api/mesh, api/system, pkg/core/resources/apis, pkg/plugins/policies). It also has kinds
// of derived products that are often mistaken for Kuma's.
var kumaKinds = map[string]string{
	"TrafficPermission":         noPermissions,
	"OPAPolicy":                 noPermissions,
	"MeshOPA":                   noPermissions,
	"MeshTrafficPermission":     noPermissions,
	"MeshIdentity":              noIdentities,
	"MeshTrust":                 noIdentities,
	"MeshTLS":                   noIdentities,
	"TrafficRoute":              noRoutes,
	"MeshHTTPRoute":             noRoutes,
	"MeshTCPRoute":              noRoutes,
	"VirtualOutbound":           noHostnames,
	"HostnameGenerator":         noHostnames,
	"Retry":                     noRetries,
	"MeshRetry":                 noRetries,
	"Timeout":                   noTimeouts,
	"MeshTimeout":               noTimeouts,
	"HealthCheck":               noChecks,
	"MeshHealthCheck":           noChecks,
	"CircuitBreaker":            noBreakers,
	"MeshCircuitBreaker":        noBreakers,
	"RateLimit":                 noLimits,
	"MeshRateLimit":             noLimits,
	"MeshGlobalRateLimit":       noLimits,
	"FaultInjection":            noFaults,
	"MeshFaultInjection":        noFaults,
	"TrafficLog":                noLogs,
	"MeshAccessLog":             noLogs,
	"TrafficTrace":              noTraces,
	"MeshTrace":                 noTraces,
	"MeshMetric":                noMetrics,
	"MeshOpenTelemetryBackend":  noTraces,
	"MeshLoadBalancingStrategy": noBalancing,
	"ProxyTemplate":             noPatches,
	"MeshProxyPatch":            noPatches,
	"ContainerPatch":            noPatches,
	"MeshGateway":               noGateways,
	"MeshGatewayRoute":          noGateways,
	"MeshGatewayInstance":       noGateways,
	"MeshGatewayConfig":         noGateways,
	"Zone":                      noZones,
	"ZoneIngress":               noZones,
	"ZoneEgress":                noZones,
	"MeshZoneAddress":           noZones,
	"MeshMultiZoneService":      noZones + "; a MeshService selects all its Dataplanes",
	"ExternalService":           noOutside,
	"MeshExternalService":       noOutside,
	"MeshPassthrough":           noPassthrough,
	"Secret":                    noSecrets,
	"GlobalSecret":              noSecrets,
	"Config":                    "the control plane is configured by its flags and its configuration file",
	"Workload":                  "all Dataplanes with the same label kuma.io/workload are one workload",
	"DataplaneInsight":          noInput,
	"DataplaneOverview":         noInput,
	"MeshInsight":               noInput,
	"ServiceInsight":            noInput,
	"ServiceOverview":           noInput,
	"ZoneInsight":               noInput,
	"ZoneOverview":              noInput,
	"ZoneIngressInsight":        noInput,
	"ZoneIngressOverview":       noInput,
	"ZoneEgressInsight":         noInput,
	"ZoneEgressOverview":        noInput,
}

// KumaKinds returns the kinds of Kuma's that Sonde does not have, with the consequence.
func KumaKinds() map[string]string { return maps.Clone(kumaKinds) }

func (d *decoder) readKind(top *yaml.Node, fields []pair) bool {
	known := make([]string, 0, len(mesh.Kinds()))
	for _, k := range mesh.Kinds() {
		known = append(known, string(k))
	}
	allowed := "must be one of " + strings.Join(known, ", ")
	f, ok := find(fields, "type")
	version, versioned := find(fields, "apiVersion")
	kind, hasKind := find(fields, "kind")
	items, isList := find(fields, "items")
	switch {
	case !ok && isList:
		d.fail(items.key, "items", "", "is a list of objects: "+noList+
			". What has apiVersion and kind is written with type instead")
	case !ok && versioned:
		d.fail(version.value, "apiVersion", valueText(version.value), kubernetesForm(version.value.Value, kind))
	case !ok && hasKind:
		d.fail(kind.value, "kind", valueText(kind.value), "is a field of the Kubernetes form: write type instead")
	case !ok && misspeltType(fields) != nil:
		typo := misspeltType(fields)
		d.report(d.line(typo), Error, &mesh.FieldError{Field: typo.Value,
			Allowed: mesh.UnknownField(typo.Value, []string{"type"})})
	case !ok:
		d.fail(top, "type", "", "is missing: "+allowed)
	case !isString(f.value) || !slices.Contains(known, f.value.Value):
		d.fail(f.value, "type", valueText(f.value), unknownKind(f.value.Value, known, allowed))
	default:
		d.kind = mesh.Kind(f.value.Value)
		return true
	}
	return false
}

// noList says what to write instead of a list.
const noList = "write each as a document of its own, with --- on a line between them"

// misspeltType returns the field that was written instead of type, nil for none.
func misspeltType(fields []pair) *yaml.Node {
	for _, f := range fields {
		if near, _ := mesh.Nearest(f.name(), []string{"type"}); near != "" {
			return f.key
		}
	}
	return nil
}

// unknownKind describes an unknown kind, or says what it might be.
func unknownKind(kind string, known []string, allowed string) string {
	if means, ok := kumaKinds[kind]; ok {
		return "is a kind of Kuma's that Sonde does not have: " + means + ". Remove this document"
	}
	if isTemplate.MatchString(kind) {
		return templateText
	}
	switch near, same := mesh.Nearest(kind, known); {
	case same:
		return allowed + ": write " + near
	case near != "":
		return allowed + ": did you mean " + near + "?"
	}
	if near, _ := mesh.Nearest(kind, slices.Sorted(maps.Keys(kumaKinds))); near != "" {
		return allowed + ": did you mean " + near + "? It is a kind of Kuma's that Sonde does not have"
	}
	return allowed
}

// kubernetesForm says what to write instead of a document in Kubernetes' form.
func kubernetesForm(version string, kind pair) string {
	group, _, _ := strings.Cut(version, "/")
	name := "<kind>"
	if kind.value != nil {
		name = valueText(kind.value)
	}
	instead := "write type: " + name +
		", name and mesh at the top level instead of apiVersion and kind; metadata and spec may stay"
	if name == string(mesh.KindMesh) {
		instead = "write type: " + name +
			" and name at the top level instead of apiVersion and kind; metadata and spec may stay"
	}
	means, lacking := kumaKinds[name]
	isOurs := slices.Contains(mesh.Kinds(), mesh.Kind(name))
	switch {
	case group == "kuma.io" && lacking:
		return "is the Kubernetes form of a kind of Kuma's that Sonde does not have: " + means + ". Remove this document"
	case group == "kuma.io" && isOurs:
		return "is the Kubernetes form of a document of Kuma's, which files do not have: " + instead +
			". On Kubernetes Sonde's group is " + mesh.Group + "/" + mesh.Version
	case group == mesh.Group && isOurs:
		return "is the form of an object of Kubernetes: apply it there, or in a file " + instead
	}
	return "is the form of an object of Kubernetes, and not one of Sonde's: a document has a type, one of Mesh, Dataplane, Service, MeshService"
}
