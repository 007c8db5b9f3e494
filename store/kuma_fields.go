package store

import "github.com/sonde-mesh/sonde/api/mesh"

// kumaField is a field that Sonde does not have, but that documents often have: one of Kuma's, or of a Kubernetes
// probe.
type kumaField struct {
	// means is the consequence of ignoring the field; "" for none.
	means string
	// filled says what to do if the field has items, with which Kuma rejects objects that Sonde would accept.
	filled string
	// refused is why the field is an error, "" if it is ignored.
	refused string
	// by is the adjacent field that looks missing because this field was written instead, if any.
	by string
}

// ignored returns a field that can be ignored, with the consequence.
func ignored(means string) kumaField { return kumaField{means: means} }

// bookkeeping is a field that Kuma's control plane writes. Ignoring it has no consequence.
var bookkeeping = ignored("")

// earlier begins the message about fields of earlier Kuma releases whose absence would change the document's meaning.
const earlier = "is a field of earlier releases of Kuma: "

// former returns a field of earlier releases, with what to write instead, and the adjacent field that replaces it.
func former(instead, by string) kumaField { return kumaField{refused: earlier + instead, by: by} }

// absent returns a field of a Kubernetes probe.
func absent(why string) kumaField { return kumaField{refused: why} }

// kumaFields are fields of Kuma 2.9, in its current form and in earlier ones, and of Kubernetes' probes, by kind and
// path. Source: Kuma's api/mesh/v1alpha1/mesh.proto and dataplane.proto at 2.9 and 3, its MeshService, and the fields
// that its REST API adds.
var kumaFields = map[mesh.Kind]map[string]kumaField{
	mesh.KindMesh: {
		"creationTime":     bookkeeping,
		"modificationTime": bookkeeping,
		"kri":              bookkeeping,
		"mesh":             ignored("a Mesh belongs to no mesh"),
		"mtls.skipValidation": ignored(
			"the certificate authority is the control plane's own, and always valid"),
		"mtls.backends[].dpCert.requestTimeout": ignored(
			"the control plane signs certificates itself, and requests none from another server"),
		"mtls.backends[].rootChain": ignored(
			"the control plane has its own roots, and requests none from another server"),
		"mtls.backends[].conf.caCert.RSAbits": ignored("all keys are ECDSA keys"),
		"mtls.backends[].conf.cert":           ignored("the control plane makes the certificate authority itself"),
		"mtls.backends[].conf.key":            ignored("the control plane makes the certificate authority itself"),
		"tracing":                             ignored("proxies record no traces"),
		"logging":                             ignored("proxies write no access logs"),
		"metrics":                             ignored(noMetrics),
		"routing": ignored(
			"requests are spread equally over all ready endpoints, wherever they are; connections to destinations outside the mesh go there directly"),
		"constraints": {
			means: "any Dataplane may join, as with the empty field in Kuma",
			filled: "any proxy with a token of the mesh may join: remove the field, and issue tokens only for proxies that may join. On Kubernetes the annotation " +
				mesh.AnnotationMeshes + " of a namespace says which meshes its pods may join",
		},
		"skipCreatingInitialPolicies": ignored("Sonde creates no initial policies"),
		"meshServices": ignored(
			"Sonde generates no MeshServices; it uses the MeshServices that you write, and the tag kuma.io/service"),

		"mtls.enabled":           former("write enabledBackend, the name of one of mtls.backends", "enabledBackend"),
		"mtls.ca":                former("write mtls.backends, with one of type builtin", "backends"),
		"mtls.backends[].config": former("write conf", "conf"),
	},
	mesh.KindDataplane: {
		"creationTime":                 bookkeeping,
		"modificationTime":             bookkeeping,
		"kri":                          bookkeeping,
		"networking.advertisedAddress": ignored("other proxies connect to networking.address"),
		"networking.transparentProxying.directAccessServices": ignored(
			"applications reach a service at its addresses, or, if it is headless (type: Service), at the addresses of its endpoints"),
		"networking.transparentProxying.ipFamilyMode": ignored(
			"--ip-family-mode of sonde-dp install transparent-proxy sets which IP families are redirected"),
		"networking.transparentProxying.reachableBackends": ignored(
			"the proxy can reach all services with an address; reachableServices limits them"),
		"networking.transparentProxying.redirectPortInboundV6": ignored(
			"IPv6 connections are redirected to redirectPortInbound, too"),
		"networking.admin": ignored("Envoy's admin interface is a Unix socket"),
		"networking.listeners": ignored(
			"Sonde has no zones, so the proxy listens neither for other zones nor for destinations outside the mesh"),
		"metrics": ignored(noMetrics),

		"networking.ingress": former("Sonde has no zones: remove the document", ""),
		"networking.inbound[].interface": former("write networking.address, and port and servicePort here",
			"port"),
		"networking.outbound[].interface":             former("write address and port", "port"),
		"networking.outbound[].service":               former("write tags with kuma.io/service", "tags"),
		"networking.transparentProxying.redirectPort": former("write redirectPortOutbound", "redirectPortOutbound"),

		probeFields + "exec": absent(
			"must not be there: the agent runs no programs for a document of the mesh; use httpGet, tcpSocket, grpc or tcp"),
		probeFields + "initialDelaySeconds": absent(
			"must not be there: an inbound is not ready before its first successful check, and nothing restarts an application that is slow to start"),
		probeFields + "terminationGracePeriodSeconds": absent("must not be there: the agent ends no application"),
		probeFields + "httpGet.host": absent(
			"must not be there: the probe goes to the inbound's serviceAddress; write a header Host instead"),
		probeFields + "tcpSocket.host": absent("must not be there: the probe goes to the inbound's serviceAddress"),
		probeFields + "http":           absent("must be httpGet, as in a Kubernetes probe"),
		probeFields + "tcp.port": absent(
			"must not be there: the probe goes to the inbound's servicePort; use tcpSocket to set another port"),
	},
	mesh.KindMeshService: {
		"creationTime":     bookkeeping,
		"modificationTime": bookkeeping,
		"kri":              bookkeeping,
		"snis":             bookkeeping,
		"state":            ignored("the state of its endpoints says whether it can be reached"),
		"identities":       ignored("clients accept the identities of the Dataplanes that it selects"),

		"ports[].protocol": former("write appProtocol", "appProtocol"),
	},
}

// probeFields is the path of the fields of a serviceProbe.
const probeFields = "networking.inbound[].serviceProbe."
