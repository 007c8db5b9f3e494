package store

import "github.com/sonde-mesh/sonde/api/mesh"

// bookkeeping is the note of fields that Kuma's control plane writes, for which nothing follows.
const bookkeeping = ""

// kumaFields are the fields of Kuma 2.9 and of its current form that Sonde does not have, by kind and path, with a note that says what
// follows.
// Source: Kuma's api/mesh/v1alpha1/mesh.proto and dataplane.proto at 2.9 and 3, its MeshService, and the fields that its REST API adds.
var kumaFields = map[mesh.Kind]map[string]string{
	mesh.KindMesh: {
		"creationTime":                          bookkeeping,
		"modificationTime":                      bookkeeping,
		"kri":                                   bookkeeping,
		"mesh":                                  ": a Mesh belongs to no mesh",
		"mtls.skipValidation":                   ": the certificate authority is the control plane's own, and always valid",
		"mtls.backends[].dpCert.requestTimeout": ": the control plane signs certificates itself, and asks nobody",
		"mtls.backends[].rootChain":             ": the control plane has its roots itself, and asks nobody",
		"mtls.backends[].conf.caCert.RSAbits":   ": keys are of ECDSA",
		"mtls.backends[].conf.cert":             ": the control plane makes the certificate authority itself",
		"mtls.backends[].conf.key":              ": the control plane makes the certificate authority itself",
		"tracing":                               ": proxies record no traces",
		"logging":                               ": proxies write no access logs",
		"metrics":                               ": each sonde-dp serves metrics on a port of its own, 9902",
		"routing":                               ": requests go to all ready endpoints alike, wherever they are, and connections to destinations outside the mesh directly",
		"constraints":                           ": it is empty, and any Dataplane may join",
		"skipCreatingInitialPolicies":           ": there are no policies that would be created",
		"meshServices":                          ": no MeshService is generated; those that are written are used beside the tag kuma.io/service",
	},
	mesh.KindDataplane: {
		"creationTime":                 bookkeeping,
		"modificationTime":             bookkeeping,
		"kri":                          bookkeeping,
		"networking.advertisedAddress": ": others connect to networking.address",
		"networking.transparentProxying.directAccessServices":  ": a service is reached at its addresses, and at those of its endpoints if it is headless (type: Service)",
		"networking.transparentProxying.ipFamilyMode":          ": --ip-family-mode of sonde-dp install transparent-proxy says what is redirected",
		"networking.transparentProxying.reachableBackends":     ": the proxy knows all services with an address; reachableServices limits them",
		"networking.transparentProxying.redirectPortInboundV6": ": connections of IPv6 are redirected to redirectPortInbound, too",
		"networking.admin":     ": Envoy's admin interface is a Unix socket",
		"networking.listeners": ": Sonde has no zones, so the proxy listens neither for other zones nor for destinations outside the mesh",
		"metrics":              ": each sonde-dp serves metrics on a port of its own, 9902",
	},
	mesh.KindMeshService: {
		"creationTime":     bookkeeping,
		"modificationTime": bookkeeping,
		"kri":              bookkeeping,
		"snis":             bookkeeping,
		"state":            ": the state of its endpoints says whether it can be reached",
		"identities":       ": clients accept the identities of the Dataplanes that it selects",
	},
}

// refusingFields are fields of Kuma's by which it refuses what Sonde would take, by kind and path, with what to do. They are ignored while
// they are empty.
var refusingFields = map[mesh.Kind]map[string]string{
	mesh.KindMesh: {
		"constraints": "whoever has a token of the mesh may join: remove it, and give tokens to those who may. On Kubernetes the annotation " +
			mesh.AnnotationMeshes + " of a namespace says which meshes its pods may join",
	},
}

// former is a field of earlier releases.
type former struct {
	instead string // what to write
	by      string // the field beside it that is missing for that reason, if any
}

// formerFields are fields of earlier releases of Kuma, whose absence would change what the document means, with what to write instead.
var formerFields = map[mesh.Kind]map[string]former{
	mesh.KindMesh: {
		"mtls.enabled":           {"write enabledBackend, the name of one of mtls.backends", "enabledBackend"},
		"mtls.ca":                {"write mtls.backends, with one of type builtin", "backends"},
		"mtls.backends[].config": {"write conf", "conf"},
	},
	mesh.KindDataplane: {
		"networking.ingress":                          {instead: "Sonde has no zones: remove the document"},
		"networking.inbound[].interface":              {"write networking.address, and port and servicePort here", "port"},
		"networking.outbound[].interface":             {"write address and port", "port"},
		"networking.outbound[].service":               {"write tags with kuma.io/service", "tags"},
		"networking.transparentProxying.redirectPort": {"write redirectPortOutbound", "redirectPortOutbound"},
	},
	mesh.KindMeshService: {
		"ports[].protocol": {"write appProtocol", "appProtocol"},
	},
}
