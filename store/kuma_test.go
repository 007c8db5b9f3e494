package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// said returns the texts of problems, without their places.
func said(problems []Problem) []string {
	var all []string
	for _, p := range problems {
		all = append(all, p.Severity.String()+": "+p.Err.Error())
	}
	return all
}

// TestKumaDocuments checks the problems of documents of Kuma's. Documents without an error are used.
func TestKumaDocuments(t *testing.T) {
	const (
		lacks     = " is a field of Kuma's that Sonde does not have, and is ignored"
		noKind    = "is a kind of Kuma's that Sonde does not have: "
		remove    = ". Remove this document"
		template  = ": is a template, and files are read as they are: write the value, or fill the template in before the file is put here, for instance with envsubst"
		web       = "type: Dataplane\nname: web-1\nlabels: {kuma.io/workload: web}\n"
		inbound   = web + "networking:\n  address: 10.0.0.1\n  inbound:\n  - port: 80\n"
		documents = "write each as a document of its own, with --- on a line between them"
		kinds     = "must be one of Mesh, Dataplane, Service, MeshService"
		off       = "mTLS is off, and all traffic is plain text"
		empty     = off + ". Write one in backends and its name in enabledBackend, or leave mtls out"
	)
	tests := map[string]struct {
		text string
		want []string
	}{
		"current form":        {inbound + "    name: http\n    protocol: http\n    state: Ready\n  outbound:\n  - {port: 81, backendRef: {kind: MeshService, name: db, port: 5432}}\n", nil},
		"both forms":          {inbound + "    tags: {kuma.io/service: web, kuma.io/protocol: http}\n    protocol: http\n  outbound:\n  - {port: 81, tags: {kuma.io/service: db}}\n  - {port: 82, backendRef: {kind: MeshService, name: db, port: 5432}}\n", nil},
		"MeshService":         {"type: MeshService\nname: db\nmesh: default\nlabels: {kuma.io/origin: zone}\nspec:\n  selector: {dataplaneLabels: {matchLabels: {app: db}}}\n  ports: [{port: 80, targetPort: 8080, appProtocol: http}]\nstatus: {vips: [{ip: 241.0.0.1}]}\n", nil},
		"MeshService of 2.9":  {"type: MeshService\nname: db\nspec:\n  state: Available\n  identities: [{type: ServiceTag, value: db}]\n  selector: {dataplaneTags: {kuma.io/service: db}}\n  ports: [{port: 80, targetPort: main}]\n", []string{"warning: spec.state:" + lacks + ": the state of its endpoints says whether it can be reached", "warning: spec.identities:" + lacks + ": clients accept the identities of the Dataplanes that it selects"}},
		"MeshService of 2.7":  {"type: MeshService\nname: db\nspec:\n  selector: {dataplaneTags: {app: db}}\n  ports: [{port: 80, protocol: http}]\n", []string{"error: spec.ports[0].protocol: is a field of earlier releases of Kuma: write appProtocol"}},
		"no port":             {"type: MeshService\nname: db\nspec:\n  selector: {dataplaneRef: {name: db-1}}\n", []string{"warning: spec.ports: is missing: without a port the MeshService is no service, and no client can reach it"}},
		"target port 0":       {"type: MeshService\nname: db\nspec:\n  selector: {dataplaneRef: {name: db-1}}\n  ports: [{port: 80, targetPort: 0}]\n", []string{`error: spec.ports[0].targetPort: 0: must be a port from 1 to 65535`}},
		"target port, a list": {"type: MeshService\nname: db\nspec:\n  selector: {dataplaneRef: {name: db-1}}\n  ports: [{port: 80, targetPort: [80]}]\n", []string{`error: spec.ports[0].targetPort: [...]: must be a port from 1 to 65535`}},
		"passthrough":         {"type: Mesh\nname: default\nnetworking: {outbound: {passthrough: false}}\n", nil},
		"delegated gateway":   {web + "networking: {address: 10.0.0.1, gateway: {type: DELEGATED, tags: {kuma.io/service: kong}}}\n", nil},
		"bookkeeping":         {inbound + "kri: kri_dp_default___web-1_\ncreationTime: \"2024-01-01T00:00:00Z\"\nmodificationTime: \"2024-01-01T00:00:00Z\"\n", []string{"warning: kri:" + lacks, "warning: creationTime:" + lacks, "warning: modificationTime:" + lacks}},

		"workload as tag and label":   {inbound + "    tags: {kuma.io/service: web, kuma.io/workload: other}\n", []string{`warning: networking.inbound[0].tags["kuma.io/workload"]: "other": has no effect: the label kuma.io/workload names the workload, "web"`}},
		"address is a name":           {strings.Replace(inbound, "10.0.0.1", "web.example.com", 1), []string{`error: networking.address: "web.example.com": must be an IP address that others can connect to: not unspecified, not multicast. A name is not resolved: write the address that it stands for`}},
		"zone proxy":                  {web + "networking:\n  address: 10.0.0.1\n  listeners: [{type: ZoneEgress, address: 10.0.0.1, port: 10002}]\n", []string{"warning: networking.listeners:" + lacks + ": Sonde has no zones, so the proxy listens neither for other zones nor for destinations outside the mesh"}},
		"form before 2.0":             {web + "networking:\n  address: 10.0.0.1\n  outbound: [{port: 81, service: db}]\n", []string{"error: networking.outbound[0].service: is a field of earlier releases of Kuma: write tags with kuma.io/service"}},
		"form before 0.4":             {web + "networking:\n  address: 10.0.0.1\n  inbound: [{interface: \"10.0.0.1:80:8080\"}]\n  outbound: [{interface: \":81\", service: db}]\n  transparentProxying: {redirectPort: 15001}\n", []string{"error: networking.inbound[0].interface: is a field of earlier releases of Kuma: write networking.address, and port and servicePort here", "error: networking.outbound[0].interface: is a field of earlier releases of Kuma: write address and port", "error: networking.outbound[0].service: is a field of earlier releases of Kuma: write tags with kuma.io/service", "error: networking.transparentProxying.redirectPort: is a field of earlier releases of Kuma: write redirectPortOutbound"}},
		"Mesh before 0.6":             {"type: Mesh\nname: default\nmtls: {enabled: true, ca: {builtin: {}}}\n", []string{"error: mtls.enabled: is a field of earlier releases of Kuma: write enabledBackend, the name of one of mtls.backends", "error: mtls.ca: is a field of earlier releases of Kuma: write mtls.backends, with one of type builtin"}},
		"backend before 0.6":          {"type: Mesh\nname: default\nmtls: {backends: [{name: ca, type: builtin, config: {}}]}\n", []string{"error: mtls.backends[0].config: is a field of earlier releases of Kuma: write conf"}},
		"as kumactl writes it":        {"type: MeshService\nname: db\nkri: kri_msvc_default___db_\nsnis: [{port: 80, sni: db}]\nspec:\n  selector: {dataplaneRef: {name: db-1}}\n  ports: [{port: 80}]\n", []string{"warning: kri:" + lacks, "warning: snis:" + lacks}},
		"mtls without enabledBackend": {"type: Mesh\nname: default\nmtls: {backends: [{name: ca-1, type: builtin}, {name: ca-2, type: builtin, mode: PERMISSIVE}]}\n", []string{"warning: mtls.enabledBackend: is missing: " + off + ", although backends say STRICT, PERMISSIVE. To turn mTLS on, write the name of a backend: ca-1, ca-2"}},
		"mtls in a spec":              {"type: Mesh\nname: default\nspec: {mtls: {enabledBackend: \"\", backends: [{name: ca-1, type: builtin}]}}\n", []string{"warning: spec.mtls.enabledBackend: is missing: " + off + ", although backends say STRICT. To turn mTLS on, write the name of a backend: ca-1"}},
		"mtls that is empty":          {"type: Mesh\nname: default\nmtls: {}\n", []string{"warning: mtls: has no backend: " + empty}},
		"mtls with nothing in it":     {"type: Mesh\nname: default\nmtls:\n  # enabledBackend: ca-1\n", []string{"warning: mtls: has no backend: " + empty}},
		"mtls without backends":       {"type: Mesh\nname: default\nmtls: {backends: []}\n", []string{"warning: mtls: has no backend: " + empty}},
		"mtls without a mode":         {"type: Mesh\nname: default\nmtls: {enabledBackend: ca-1, backends: [{name: ca-1, type: builtin, mode: strict}]}\n", []string{`error: mtls.backends[0].mode: "strict": must be STRICT or PERMISSIVE: write STRICT`}},
		"null is left out":            {"type: Mesh\nname: default\nmtls: null\nlogging: null\nrouting: ~\n", nil},

		"health that is empty":                    {inbound + "    health: {}\n", []string{"warning: networking.inbound[0].health: is empty: the inbound is ready. In Kuma it is not, and its tools leave ready: false out: write what you mean"}},
		"health that is null":                     {inbound + "    health:\n", nil},
		"no reachable service":                    {inbound + "  transparentProxying: {reachableServices: []}\n", []string{"warning: networking.transparentProxying.reachableServices: is empty: the proxy reaches no service at a virtual address. In Kuma it reaches all: to get that, leave the field out"}},
		"application on the address of the proxy": {strings.Replace(inbound, "10.0.0.1", "127.0.0.1", 1), []string{`error: networking.inbound[0].servicePort: 80: the proxy itself listens on 127.0.0.1:80: serviceAddress and servicePort must name the application. If it listens there, write the address under which others reach this machine as networking.address`}},

		"list of kumactl":            {`{"total": 1, "items": [{"type": "Mesh", "name": "default"}], "next": null}`, []string{"error: items: is a list of objects: " + documents + ". What has apiVersion and kind is written with type instead"}},
		"list of kubectl":            {"apiVersion: v1\nkind: List\nitems: []\n", []string{"error: items: is a list of objects: " + documents + ". What has apiVersion and kind is written with type instead"}},
		"list without a name":        {"- {type: Mesh, name: default}\n", []string{"error: a document must be a mapping with the fields type and name, and this is a list: " + documents}},
		"kind for type":              {"kind: Mesh\nname: default\n", []string{`error: kind: "Mesh": is a field of the Kubernetes form: write type instead`}},
		"type with a capital":        {"Type: Mesh\nName: default\n", []string{"error: Type: is an unknown field: write type"}},
		"tag beside the tags":        {inbound + "    kuma.io/protocol: http\n", []string{"error: networking.inbound[0].kuma.io/protocol: is a tag: write it below tags"}},
		"label beside the labels":    {inbound + "kuma.io/mesh: default\n", []string{"error: kuma.io/mesh: is a label: write it below labels"}},
		"misspelt field at the top":  {inbound + "lables: {a: b}\n", []string{"error: lables: is an unknown field: did you mean labels?"}},
		"value that begins with @":   {strings.Replace(inbound, "10.0.0.1", "@address", 1), []string{"error: invalid YAML: found character that cannot start any token: put the value in quotes"}},
		"address with a short name":  {strings.Replace(inbound, "10.0.0.1", "redis", 1), []string{`error: networking.address: "redis": must be an IP address that others can connect to: not unspecified, not multicast. A name is not resolved: write the address that it stands for`}},
		"state in lower case":        {inbound + "    state: not-ready\n", []string{`error: networking.inbound[0].state: "not-ready": must be one of Ready, NotReady, Ignored: write NotReady`}},
		"long time of a probe":       {inbound + "    serviceProbe: {timeout: 100000h}\n", []string{`error: networking.inbound[0].serviceProbe.timeout: "100000h": must be from 1ms to 1h`}},
		"large threshold of a probe": {inbound + "    serviceProbe: {unhealthyThreshold: 99999999999}\n", []string{`error: networking.inbound[0].serviceProbe.unhealthyThreshold: 99999999999: must be from 1 to 1000`}},
		"large port of a probe":      {inbound + "    serviceProbe: {tcpSocket: {port: 99999999999}}\n", []string{`error: networking.inbound[0].serviceProbe.tcpSocket.port: 99999999999: must be a port from 1 to 65535`}},
		"time without a unit":        {inbound + "    serviceProbe: {interval: 10}\n", []string{`error: networking.inbound[0].serviceProbe.interval: 10: ` + mesh.AllowedDuration + ", with its unit"}},
		"short validity":             {"type: Mesh\nname: default\nmtls: {backends: [{name: ca, type: builtin, dpCert: {rotation: {expiration: 1000ms}}}]}\n", []string{`error: mtls.backends[0].dpCert.rotation.expiration: "1000ms": must be at least 10s`}},

		"snake case":                  {inbound + "    service_port: 8080\n", []string{"error: networking.inbound[0].service_port: is an unknown field: write servicePort"}},
		"snake case of Kuma's":        {inbound + "  transparent_proxying: {}\n", []string{"error: networking.transparent_proxying: is an unknown field: write transparentProxying"}},
		"snake case that is ignored":  {inbound + "  transparentProxying: {ip_family_mode: IPv4}\n", []string{"warning: networking.transparentProxying.ip_family_mode:" + lacks + ": --ip-family-mode of sonde-dp install transparent-proxy sets which IP families are redirected"}},
		"misspelt field":              {inbound + "    protcol: http\n", []string{"error: networking.inbound[0].protcol: is an unknown field: did you mean protocol?"}},
		"misspelt kind":               {"type: Dataplne\nname: a\n", []string{`error: type: "Dataplne": ` + kinds + ": did you mean Dataplane?"}},
		"misspelt kind of Kuma's":     {"type: MeshRetires\nname: a\n", []string{`error: type: "MeshRetires": ` + kinds + ": did you mean MeshRetry? It is a kind of Kuma's that Sonde does not have"}},
		"template of a kind":          {"type: \"{{ kind }}\"\nname: a\n", []string{`error: type: "{{ kind }}"` + template}},
		"kind in lower case":          {"type: mesh-service\nname: a\n", []string{`error: type: "mesh-service": ` + kinds + ": write MeshService"}},
		"MeshTrafficPermission":       {"type: MeshTrafficPermission\nname: a\nspec: {targetRef: {kind: Mesh}}\n", []string{`error: type: "MeshTrafficPermission": ` + noKind + "every workload of the mesh may call every other, whatever it allows or denies" + remove}},
		"MeshIdentity":                {"type: MeshIdentity\nname: a\n", []string{`error: type: "MeshIdentity": ` + noKind + "mtls of the Mesh configures identities and mTLS, with the backend builtin, and a certificate names the workload of its Dataplane" + remove}},
		"Kubernetes form":             {"apiVersion: kuma.io/v1alpha1\nkind: Dataplane\nmetadata: {name: web-1}\nspec: {}\n", []string{`error: apiVersion: "kuma.io/v1alpha1": is the Kubernetes form of a document of Kuma's, which files do not have: write type: Dataplane, name and mesh at the top level instead of apiVersion and kind; metadata and spec may stay. On Kubernetes Sonde's group is sonde.dev/v1alpha1`}},
		"Kubernetes form of a policy": {"apiVersion: kuma.io/v1alpha1\nkind: MeshRetry\nmetadata: {name: a}\n", []string{`error: apiVersion: "kuma.io/v1alpha1": is the Kubernetes form of a kind of Kuma's that Sonde does not have: a proxy only retries requests that no application has received` + remove}},
		"Sonde's Kubernetes form":     {"apiVersion: sonde.dev/v1alpha1\nkind: Mesh\nmetadata: {name: default}\n", []string{`error: apiVersion: "sonde.dev/v1alpha1": is the form of an object of Kubernetes: apply it there, or in a file write type: Mesh and name at the top level instead of apiVersion and kind; metadata and spec may stay`}},
		"an object of Kubernetes":     {"apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", []string{`error: apiVersion: "v1": is the form of an object of Kubernetes, and not one of Sonde's: a document has a type, one of Mesh, Dataplane, Service, MeshService`}},
		"an object without kind":      {"apiVersion: kuma.io/v1alpha1\n", []string{`error: apiVersion: "kuma.io/v1alpha1": is the form of an object of Kubernetes, and not one of Sonde's: a document has a type, one of Mesh, Dataplane, Service, MeshService`}},
		"both forms of Kubernetes":    {"type: Mesh\napiVersion: kuma.io/v1alpha1\nkind: Mesh\nname: default\n", []string{"error: apiVersion: is a field of the Kubernetes form: remove it, since type says the same", "error: kind: is a field of the Kubernetes form: remove it, since type says the same"}},

		"template":              {strings.Replace(inbound, "10.0.0.1", "{{ address }}", 1), []string{`error: networking.address: {...}` + template}},
		"template alone":        {"{{ dataplane }}\n", []string{"error: the document" + template[1:]}},
		"template in quotes":    {strings.Replace(inbound, "10.0.0.1", `"{{ address }}"`, 1), []string{`error: networking.address: "{{ address }}"` + template}},
		"template of a shell":   {strings.Replace(inbound, "10.0.0.1", "${ADDRESS}", 1), []string{`error: networking.address: "${ADDRESS}"` + template}},
		"template of a pod":     {strings.Replace(inbound, "80", "$(PORT)", 1), []string{`error: networking.inbound[0].port: "$(PORT)"` + template}},
		"template with more":    {strings.Replace(inbound, "web-1", "{{ name }}-1", 1), []string{"error: invalid YAML: the line" + template[1:]}},
		"template with a loop":  {"type: Mesh\nname: default\n{% for x in y %}\n", []string{"error: invalid YAML: the line" + template[1:]}},
		"template in a label":   {"type: Mesh\nname: default\nlabels: {team: \"{{ team }}\"}\n", []string{`error: labels["team"]: "{{ team }}"` + template}},
		"workload in metadata":  {"type: Dataplane\nmetadata: {name: web-1, labels: {kuma.io/workload: a/b}}\nspec: {networking: {address: 10.0.0.1}}\n", []string{`error: metadata.labels["kuma.io/workload"]: "a/b": must be 1 to 253 letters, digits, '.', '_' and '-', but not '.' or '..': it is part of a SPIFFE ID`}},
		"no workload in a spec": {"type: Dataplane\nname: web-1\nspec: {networking: {address: 10.0.0.1}}\n", []string{`warning: labels["kuma.io/workload"]: is missing, and no tag kuma.io/service stands for it: the certificate only names this Dataplane, as /dataplane/web-1, so that clients need an update for each replica. Write the label with the same value for all replicas`}},
		"template in a key":     {"type: Mesh\nname: default\nmtls: {enabledBackend: ca, backends: [{name: ca, type: builtin, conf: {key: {file: \"${KEY}\"}}}]}\n", []string{"warning: mtls.backends[0].conf.key:" + lacks + ": the control plane makes the certificate authority itself"}},
		"template for others":   {"type: Mesh\nname: default\n# {{ not ours }}\nmetadata: {annotations: {a: \"{{ b }}\"}}\nlogging: {backends: [{name: l, format: \"{%START_TIME%}\"}]}\nstatus: {a: \"{{ b }}\"}\n", []string{"warning: logging:" + lacks + ": proxies write no access logs"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("f.yaml", []byte(tc.text))
			if diff := cmp.Diff(tc.want, said(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			refused := slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == Error })
			if taken := len(documents) == 1; taken == refused {
				t.Errorf("documents = %v", documents)
			}
		})
	}
}

// TestKumaKinds checks that the problem of each kind of Kuma's states the consequence, and that the other documents of
// its file are read.
func TestKumaKinds(t *testing.T) {
	for kind, means := range kumaKinds {
		if means == "" || slices.Contains(mesh.Kinds(), mesh.Kind(kind)) {
			t.Errorf("%s: means %q", kind, means)
		}
		documents, problems := Decode("f.yaml", fmt.Appendf(nil, "type: Mesh\nname: default\n---\ntype: %s\nname: a\nspec: {}\n---\n%s", kind, dataplane))
		if len(documents) != 2 || len(problems) != 1 || !strings.Contains(problems[0].Error(), means) {
			t.Errorf("%s: Decode() = %v, %v", kind, documents, problems)
		}
	}
}

// TestKumaFieldsSayWhatFollows checks that no field that users write is ignored without a warning.
func TestKumaFieldsSayWhatFollows(t *testing.T) {
	silent := []string{"creationTime", "modificationTime", "kri", "snis"}
	for kind, fields := range kumaFields {
		for path, field := range fields {
			if field == bookkeeping != slices.Contains(silent, path) || field.means != "" && field.refused != "" {
				t.Errorf("%s %s: %+v", kind, path, field)
			}
		}
	}
}

// Constraints that would have kept Dataplanes out of a mesh of Kuma's are an error, not a warning, which users might
// miss.
func TestConstraintsAreRefused(t *testing.T) {
	tests := map[string]struct {
		constraints string
		want        Severity
	}{
		"requirements": {"dataplaneProxy: {requirements: [{tags: {team: a}}]}", Error},
		"restrictions": {"dataplaneProxy: {restrictions: [{tags: {team: b}}]}", Error},
		"empty":        {"{}", Warning},
		"empty lists":  {"dataplaneProxy: {requirements: [], restrictions: []}", Warning},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			value := tc.constraints
			if value[0] != '{' {
				value = "{" + value + "}"
			}
			for _, form := range []string{"type: Mesh\nname: blue\nconstraints: %s", "type: Mesh\nname: blue\nspec: {constraints: %s}"} {
				documents, problems := Decode("f.yaml", fmt.Appendf(nil, form, value))
				if len(problems) != 1 || problems[0].Severity != tc.want || !strings.Contains(problems[0].Error(), "constraints: is a field") {
					t.Errorf("problems %v, want one of severity %v", problems, tc.want)
				}
				if taken := len(documents) == 1; taken != (tc.want == Warning) {
					t.Errorf("documents %v", documents)
				}
			}
		})
	}
}
