package envoy

import (
	"cmp"
	"fmt"
	"strings"
)

// generatedDocuments returns documents in both forms, with all values of each field at least once.
func generatedDocuments() []kumaDocument {
	return append(append(generatedDataplanes(), generatedMeshServices()...), generatedMeshes()...)
}

// shape is a variation of Dataplanes that is independent of their form.
type shape struct {
	name, address, networking, inbound string
	warned                             []string
}

func shapes() []shape {
	return []shape{
		{name: "plain"},
		{name: "ipv6", address: "fd00::1"},
		{name: "redirected", networking: "  transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001}\n"},
		{name: "redirected, nothing reachable", networking: "  transparentProxying: {reachableServices: []}\n", warned: []string{"reachableServices: is empty"}},
		{name: "own address", inbound: ", address: 10.1.0.9, servicePort: 9080"},
		{name: "application elsewhere", inbound: ", serviceAddress: 10.1.0.7, servicePort: 9080"},
		{name: "not ready", inbound: ", health: {ready: false}"},
		{name: "health as Kuma exports it", inbound: ", health: {}", warned: []string{"networking.inbound[0].health: is empty"}},
		{name: "state", inbound: ", state: NotReady"},
		{name: "ignored", inbound: ", state: Ignored"},
		{name: "server first", inbound: ", serverFirst: true"},
	}
}

func generatedDataplanes() []kumaDocument {
	var documents []kumaDocument
	for _, form := range []string{"2.x", "current", "both"} {
		for _, protocol := range []string{"", "tcp", "http", "http2", "grpc"} {
			for _, s := range shapes() {
				documents = append(documents, kumaDocument{
					name: strings.Join([]string{form, cmp.Or(protocol, "no protocol"), s.name}, ", "),
					text: generatedDataplane(form, protocol, s), warned: s.warned,
				})
			}
		}
	}
	return documents
}

func generatedDataplane(form, protocol string, s shape) string {
	var b strings.Builder
	b.WriteString("type: Dataplane\nname: made-1\nmesh: default\n")
	inbound, outbound := "port: 8080"+s.inbound, "    - {port: 10001, tags: {kuma.io/service: redis}}\n"
	if form != "2.x" {
		b.WriteString("labels: {kuma.io/workload: made, app: made}\n")
		inbound += ", name: main"
		if protocol != "" {
			inbound += ", protocol: " + protocol
		}
		refs := "    - {port: 10002, backendRef: {kind: MeshService, name: web, port: 80}}\n" +
			"    - {port: 10003, backendRef: {kind: MeshService, labels: {team: data}, port: 6379}}\n"
		if form == "current" {
			outbound = ""
		}
		outbound += refs
	}
	if form != "current" {
		tags := "kuma.io/service: made"
		if protocol != "" {
			tags += ", kuma.io/protocol: " + protocol
		}
		inbound += ", tags: {" + tags + "}"
	}
	fmt.Fprintf(&b, "networking:\n  address: %s\n%s  inbound:\n    - {%s}\n  outbound:\n%s", cmp.Or(s.address, "10.1.0.1"), s.networking, inbound, outbound)
	return b.String()
}

func generatedMeshServices() []kumaDocument {
	var documents []kumaDocument
	for _, selector := range []string{"dataplaneTags: {kuma.io/service: redis}", "dataplaneLabels: {matchLabels: {app: web}}", "dataplaneRef: {name: around-2}"} {
		for _, target := range []string{"", ", targetPort: 80", ", targetPort: main"} {
			for _, protocol := range []string{"", "tcp", "http", "http2", "grpc"} {
				port := "port: 80" + target
				if protocol != "" {
					port += ", appProtocol: " + protocol
				}
				documents = append(documents, kumaDocument{
					name: "MeshService by " + selector + ", " + port,
					text: fmt.Sprintf("type: MeshService\nname: web\nspec:\n  selector: {%s}\n  ports:\n    - {%s}\n", selector, port),
				})
			}
		}
	}
	return documents
}

func generatedMeshes() []kumaDocument {
	var documents []kumaDocument
	for _, mode := range []string{"", "off", "STRICT", "PERMISSIVE"} {
		for _, passthrough := range []string{"", "true", "false"} {
			text := "type: Mesh\nname: default\n"
			var warned []string
			switch mode {
			case "":
			case "off":
				text += "mtls: {backends: [{name: ca-1, type: builtin}]}\n"
				warned = []string{"mTLS is off"}
			default:
				text += "mtls: {enabledBackend: ca-1, backends: [{name: ca-1, type: builtin, mode: " + mode + "}]}\n"
			}
			if passthrough != "" {
				text += "networking: {outbound: {passthrough: " + passthrough + "}}\n"
			}
			documents = append(documents, kumaDocument{name: "Mesh, mode " + mode + ", passthrough " + passthrough, text: text + "# generated\n", warned: warned})
		}
	}
	return documents
}
