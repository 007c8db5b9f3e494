package store

import "github.com/sonde-mesh/sonde/api/mesh"

// kumaFields are the fields of Kuma 2.9 that Sonde does not have, by kind and path, with a note where ignoring one changes
// what a user would expect.
// Source: Kuma's api/mesh/v1alpha1/mesh.proto and dataplane.proto, and the fields that its REST API adds.
var kumaFields = map[mesh.Kind]map[string]string{
	mesh.KindMesh: {
		"creationTime":                          "",
		"modificationTime":                      "",
		"mesh":                                  ": a Mesh belongs to no mesh",
		"mtls.skipValidation":                   "",
		"mtls.backends[].dpCert.requestTimeout": "",
		"mtls.backends[].rootChain":             "",
		"mtls.backends[].conf.caCert.RSAbits":   "",
		"mtls.backends[].conf.cert":             "",
		"mtls.backends[].conf.key":              "",
		"tracing":                               "",
		"logging":                               "",
		"metrics":                               "",
		"networking":                            "",
		"routing":                               "",
		"constraints":                           ": any Dataplane may join",
		"skipCreatingInitialPolicies":           "",
		"meshServices":                          "",
	},
	mesh.KindDataplane: {
		"creationTime":                                        "",
		"modificationTime":                                    "",
		"networking.advertisedAddress":                        ": others connect to networking.address",
		"networking.inbound[].serviceProbe":                   "",
		"networking.inbound[].state":                          ": health.ready says whether an inbound is ready",
		"networking.inbound[].name":                           "",
		"networking.outbound[].backendRef":                    ": an outbound goes by the tag kuma.io/service",
		"networking.gateway":                                  "",
		"networking.transparentProxying.directAccessServices": "",
		"networking.transparentProxying.ipFamilyMode":         "",
		"networking.transparentProxying.reachableBackends":    "",
		"networking.admin":                                    ": Envoy's admin interface is a Unix socket",
		"metrics":                                             "",
	},
}
