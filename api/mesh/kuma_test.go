package mesh_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	meshServiceName = "must be 1 to 63 lower-case letters, digits, '-', '.' and '_', with a letter or digit at both ends"
	protocols       = "must be one of tcp, http, http2, grpc"
)

// current returns a Dataplane in Kuma's current form, with a change.
func current(change func(*mesh.Dataplane)) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Name: "web-1", Labels: map[string]string{mesh.LabelWorkload: "web"}}}
	d.Spec.Networking = mesh.Networking{
		Address:  "10.0.0.1",
		Inbound:  []mesh.Inbound{{Port: 80, Name: "http", Protocol: mesh.ProtocolHTTP}},
		Outbound: []mesh.Outbound{{Port: 81, BackendRef: &mesh.BackendRef{Kind: "MeshService", Name: "db", Port: 5432}}},
	}
	change(d)
	return d
}

func TestValidateCurrentForm(t *testing.T) {
	inbound := func(change func(*mesh.Inbound)) *mesh.Dataplane {
		return current(func(d *mesh.Dataplane) { change(&d.Spec.Networking.Inbound[0]) })
	}
	ref := func(change func(*mesh.BackendRef)) *mesh.Dataplane {
		return current(func(d *mesh.Dataplane) { change(d.Spec.Networking.Outbound[0].BackendRef) })
	}
	gateway := func(g mesh.Gateway, inbounds ...mesh.Inbound) *mesh.Dataplane {
		return current(func(d *mesh.Dataplane) { d.Spec.Networking.Gateway, d.Spec.Networking.Inbound = &g, inbounds })
	}
	tests := map[string]struct {
		object *mesh.Dataplane
		want   violations
	}{
		"good":                     {inbound(func(*mesh.Inbound) {}), nil},
		"protocol and tag, same":   {inbound(func(i *mesh.Inbound) { i.Tags = tags("a", mesh.TagProtocol, "http") }), nil},
		"protocol and tag, others": {inbound(func(i *mesh.Inbound) { i.Tags = tags("a", mesh.TagProtocol, "grpc") }), violations{{"networking.inbound[0].protocol", "http", `must be the same as networking.inbound[0].tags["kuma.io/protocol"], "grpc"`}}},
		"protocol in upper case":   {inbound(func(i *mesh.Inbound) { i.Protocol = "HTTP" }), violations{{"networking.inbound[0].protocol", "HTTP", protocols + ": write http"}}},
		"protocol of Kuma alone":   {inbound(func(i *mesh.Inbound) { i.Protocol = "mysql" }), violations{{"networking.inbound[0].protocol", "mysql", protocols + ": write tcp, Sonde forwards mysql as bytes"}}},
		"unknown protocol":         {inbound(func(i *mesh.Inbound) { i.Protocol = "smtp" }), violations{{"networking.inbound[0].protocol", "smtp", protocols}}},
		"unknown state":            {inbound(func(i *mesh.Inbound) { i.State = "ready" }), violations{{"networking.inbound[0].state", "ready", "must be one of Ready, NotReady, Ignored: write Ready"}}},
		"name of another port":     {inbound(func(i *mesh.Inbound) { i.Name = "8080" }), violations{{"networking.inbound[0].name", "8080", "must not be the number of another port: a targetPort could mean either"}}},
		"name of its own port":     {inbound(func(i *mesh.Inbound) { i.Name = "80" }), nil},
		"name with slash":          {inbound(func(i *mesh.Inbound) { i.Name = "a/b" }), violations{{"networking.inbound[0].name", "a/b", "must be at most 63 letters, digits, '-', '.' and '_'"}}},
		"port of an ignored one is free": {current(func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: 80, State: mesh.InboundIgnored})
		}), nil},
		"two workloads": {current(func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.LabelWorkload: "a"}}, {Port: 90, Tags: mesh.Tags{mesh.LabelWorkload: "b"}}}
		}), violations{{`networking.inbound[1].tags["kuma.io/workload"]`, "b", `must be the same as networking.inbound[0].tags["kuma.io/workload"], "a": a proxy has one identity`}}},

		"reference by labels":        {ref(func(r *mesh.BackendRef) { r.Name, r.Labels = "", map[string]string{"kuma.io/display-name": "db"} }), nil},
		"reference by name, labels":  {ref(func(r *mesh.BackendRef) { r.Labels = map[string]string{"a": "b"} }), violations{{"networking.outbound[0].backendRef.labels", "{...}", "must be absent: name says which MeshService it is"}}},
		"reference without name":     {ref(func(r *mesh.BackendRef) { r.Name = "" }), violations{{"networking.outbound[0].backendRef.name", "", "is missing: " + meshServiceName + "; or labels must select it"}}},
		"reference without port":     {ref(func(r *mesh.BackendRef) { r.Port = 0 }), violations{{"networking.outbound[0].backendRef.port", "", missingPort}}},
		"reference with a bad name":  {ref(func(r *mesh.BackendRef) { r.Name = "Db" }), violations{{"networking.outbound[0].backendRef.name", "Db", meshServiceName}}},
		"reference with a bad label": {ref(func(r *mesh.BackendRef) { r.Name, r.Labels = "", map[string]string{"a": "b c"} }), violations{{`networking.outbound[0].backendRef.labels["a"]`, "b c", "must be a label of letters, digits, '.', '_', '-' and in its name '/'"}}},
		"reference, lower case":      {ref(func(r *mesh.BackendRef) { r.Kind = "meshservice" }), violations{{"networking.outbound[0].backendRef.kind", "meshservice", "must be MeshService: write MeshService"}}},
		"reference without kind":     {ref(func(r *mesh.BackendRef) { r.Kind = "" }), violations{{"networking.outbound[0].backendRef.kind", "", "is missing: must be MeshService"}}},
		"external service":           {ref(func(r *mesh.BackendRef) { r.Kind, r.Port = "MeshExternalService", 0 }), violations{{"networking.outbound[0].backendRef.kind", "MeshExternalService", "must be MeshService: Sonde has no MeshExternalService. Write a Service with the IP address as an endpoint, and tags with its name as kuma.io/service instead of backendRef"}}},
		"service of several zones":   {ref(func(r *mesh.BackendRef) { r.Kind = "MeshMultiZoneService" }), violations{{"networking.outbound[0].backendRef.kind", "MeshMultiZoneService", "must be MeshService: Sonde has no zones. Name the MeshService itself"}}},
		"reference and tags":         {current(func(d *mesh.Dataplane) { d.Spec.Networking.Outbound[0].Tags = tags("db") }), violations{{"networking.outbound[0].tags", "{...}", "must be absent: the outbound has a backendRef, and goes to one service"}}},

		"delegated gateway":        {gateway(mesh.Gateway{Tags: tags("kong")}), nil},
		"gateway without tags":     {gateway(mesh.Gateway{Type: "DELEGATED"}), nil},
		"gateway with inbound":     {gateway(mesh.Gateway{}, mesh.Inbound{Port: 80}), violations{{"networking.inbound", "[...]", "must be absent with networking.gateway: a delegated gateway takes its traffic itself. Remove networking.gateway where the mesh is to reach the application"}}},
		"built-in gateway":         {gateway(mesh.Gateway{Type: "BUILTIN"}), violations{{"networking.gateway.type", "BUILTIN", "must be DELEGATED: Sonde's proxy is not a gateway itself. Run your own gateway beside it, such as nginx or Kong, write type: DELEGATED, and an outbound for each service that it calls; a MeshGateway and its routes are its own configuration then"}}},
		"gateway of no known type": {gateway(mesh.Gateway{Type: "delegated"}), violations{{"networking.gateway.type", "delegated", "must be DELEGATED: write DELEGATED"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, violated(t, tc.object)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateInNamespaceRefusesBackendRef(t *testing.T) {
	d := current(func(*mesh.Dataplane) {})
	d.SetDefaults()
	want := `networking.outbound[0].backendRef.kind: "MeshService": must not be given on Kubernetes, where no MeshService is read: write tags with kuma.io/service, such as <service>_<namespace>_svc_<port>`
	if err := d.ValidateIn("shop"); err == nil || err.Error() != want {
		t.Errorf("ValidateIn() = %v, want %s", err, want)
	}
}

func TestValidateMeshService(t *testing.T) {
	const selector = "must be exactly one of dataplaneLabels, dataplaneTags and dataplaneRef"
	labels := mesh.DataplaneSelector{DataplaneLabels: &mesh.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}
	tests := map[string]struct {
		change func(*mesh.MeshService)
		want   violations
	}{
		"good":    {func(*mesh.MeshService) {}, nil},
		"by tags": {func(s *mesh.MeshService) { s.Spec.Selector = mesh.DataplaneSelector{DataplaneTags: tags("db")} }, nil},
		"by name": {func(s *mesh.MeshService) {
			s.Spec.Selector = mesh.DataplaneSelector{DataplaneRef: &mesh.DataplaneRef{Name: "db-1"}}
		}, nil},
		"no selector":   {func(s *mesh.MeshService) { s.Spec.Selector = mesh.DataplaneSelector{} }, violations{{"selector", "", "is missing: " + selector}}},
		"two selectors": {func(s *mesh.MeshService) { s.Spec.Selector.DataplaneTags = tags("db") }, violations{{"selector", "{...}", selector}}},
		"no label":      {func(s *mesh.MeshService) { s.Spec.Selector.DataplaneLabels = &mesh.LabelSelector{} }, violations{{"selector.dataplaneLabels.matchLabels", "", "is missing: must have a label: without one, every Dataplane of the mesh would be an endpoint"}}},
		"no tag":        {func(s *mesh.MeshService) { s.Spec.Selector = mesh.DataplaneSelector{DataplaneTags: mesh.Tags{}} }, violations{{"selector.dataplaneTags", "", "is missing: must have a tag: without one, every Dataplane of the mesh would be an endpoint"}}},
		"any value":     {func(s *mesh.MeshService) { s.Spec.Selector = mesh.DataplaneSelector{DataplaneTags: tags("*")} }, violations{{`selector.dataplaneTags["kuma.io/service"]`, "*", "must be a value that inbounds have: '*' matches nothing"}}},
		"reference without name": {func(s *mesh.MeshService) {
			s.Spec.Selector = mesh.DataplaneSelector{DataplaneRef: &mesh.DataplaneRef{}}
		}, violations{{"selector.dataplaneRef.name", "", "is missing: " + subdomain}}},
		"name of Kuma 2.9":   {func(s *mesh.MeshService) { s.Name = "db_shop_svc_5432" }, nil},
		"name in upper case": {func(s *mesh.MeshService) { s.Name = "DB" }, violations{{"name", "DB", meshServiceName}}},
		"two equal ports":    {func(s *mesh.MeshService) { s.Spec.Ports = append(s.Spec.Ports, s.Spec.Ports[0]) }, violations{{"ports[1].port", "5432", "must be unique: ports[0] has it too"}}},
		"protocol":           {func(s *mesh.MeshService) { s.Spec.Ports[0].AppProtocol = "kafka" }, violations{{"ports[0].appProtocol", "kafka", protocols + ": write tcp, Sonde forwards kafka as bytes"}}},
		"no port":            {func(s *mesh.MeshService) { s.Spec.Ports[0].Port = 0 }, violations{{"ports[0].port", "", missingPort}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &mesh.MeshService{Meta: mesh.Meta{Name: "db"}, Spec: mesh.MeshServiceSpec{Selector: labels, Ports: []mesh.MeshServicePort{{Port: 5432}}}}
			tc.change(s)
			if diff := cmp.Diff(tc.want, violated(t, s)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWarningsOfTagsAndLabels(t *testing.T) {
	zone := map[string]string{"app": "db", "kuma.io/zone": "east"}
	d := current(func(d *mesh.Dataplane) {
		d.Spec.Networking.Outbound[0].BackendRef = &mesh.BackendRef{Kind: "MeshService", Labels: zone, Port: 80}
	})
	s := &mesh.MeshService{Spec: mesh.MeshServiceSpec{
		Selector: mesh.DataplaneSelector{DataplaneLabels: &mesh.LabelSelector{MatchLabels: zone}}, Ports: []mesh.MeshServicePort{{Port: 80}},
	}}
	const only = "is a label that Kuma adds, and Sonde does not: a %s is selected only if the label is written on it"
	misspelt := current(func(d *mesh.Dataplane) {
		d.Spec.Networking.Inbound[0].Tags = mesh.Tags{"kuma.io/service": "a", "kuma.io/protcol": "http", "kuma.io/zone": "east", "service": "x"}
	})
	tests := map[string]struct {
		object mesh.Warner
		want   violations
	}{
		"misspelt tag": {misspelt, violations{{`networking.inbound[0].tags["kuma.io/protcol"]`, "http", "has no effect: did you mean kuma.io/protocol?"}}},
		"BackendRef":   {d, violations{{`networking.outbound[0].backendRef.labels["kuma.io/zone"]`, "east", fmt.Sprintf(only, "MeshService")}}},
		"MeshService":  {s, violations{{`selector.dataplaneLabels.matchLabels["kuma.io/zone"]`, "east", fmt.Sprintf(only, "Dataplane")}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got violations
			for _, w := range tc.object.Warnings() {
				got = append(got, violation{w.Field, w.Value, w.Allowed})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Warnings() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWorkload(t *testing.T) {
	label := func(w string) map[string]string { return map[string]string{mesh.LabelWorkload: w} }
	workload := func(w string) mesh.Tags { return mesh.Tags{mesh.LabelWorkload: w} }
	tests := map[string]struct {
		labels   map[string]string
		gateway  mesh.Tags
		inbounds []mesh.Tags
		want     string
	}{
		"label":                      {label("a"), nil, []mesh.Tags{workload("b"), tags("c")}, "/workload/a"},
		"tag of a later inbound":     {nil, nil, []mesh.Tags{tags("c"), workload("b")}, "/workload/b"},
		"service":                    {nil, nil, []mesh.Tags{tags("c"), tags("d")}, "/workload/c"},
		"service of a later inbound": {nil, nil, []mesh.Tags{nil, tags("d")}, "/workload/d"},
		"gateway":                    {nil, tags("kong"), nil, "/workload/kong"},
		"gateway with a workload":    {nil, tags("kong", mesh.LabelWorkload, "edge"), nil, "/workload/edge"},
		"nothing":                    {nil, nil, []mesh.Tags{nil}, "/dataplane/web-1"},
		"nothing at all":             {nil, nil, nil, "/dataplane/web-1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := &mesh.Dataplane{Meta: mesh.Meta{Name: "web-1", Labels: tc.labels}}
			if tc.gateway != nil {
				d.Spec.Networking.Gateway = &mesh.Gateway{Tags: tc.gateway}
			}
			for i, t := range tc.inbounds {
				d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: uint32(80 + i), Tags: t})
			}
			if got := d.SPIFFEPath(); got != tc.want {
				t.Errorf("SPIFFEPath() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestMeshServiceSelects(t *testing.T) {
	in := func(port uint32, name string) *mesh.Inbound { return &mesh.Inbound{Port: port, Name: name} }
	tests := map[string]struct {
		port    mesh.MeshServicePort
		inbound *mesh.Inbound
		want    bool
	}{
		"the same port by default": {mesh.MeshServicePort{Port: 80}, in(80, ""), true},
		"another port by default":  {mesh.MeshServicePort{Port: 80}, in(81, "80"), false},
		"number":                   {mesh.MeshServicePort{Port: 80, TargetPort: "8080"}, in(8080, ""), true},
		"another number":           {mesh.MeshServicePort{Port: 80, TargetPort: "8080"}, in(80, ""), false},
		"name":                     {mesh.MeshServicePort{Port: 80, TargetPort: "http"}, in(8080, "http"), true},
		"another name":             {mesh.MeshServicePort{Port: 80, TargetPort: "http"}, in(80, "admin"), false},
		"no name":                  {mesh.MeshServicePort{Port: 80, TargetPort: "http"}, in(80, ""), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.port.Selects(tc.inbound); got != tc.want {
				t.Errorf("Selects() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestOutboundService(t *testing.T) {
	tests := map[string]struct {
		outbound mesh.Outbound
		want     string
	}{
		"tags":   {mesh.Outbound{Tags: tags("db")}, "db"},
		"name":   {mesh.Outbound{BackendRef: &mesh.BackendRef{Name: "db", Port: 5432}}, "db_msvc_5432"},
		"labels": {mesh.Outbound{BackendRef: &mesh.BackendRef{Labels: map[string]string{"b": "2", "a": "1"}, Port: 80}}, "a=1,b=2_msvc_80"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.outbound.Service(); got != tc.want {
				t.Errorf("Service() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnknownField(t *testing.T) {
	known := []string{"port", "servicePort", "serviceAddress", "address", "tags", "protocol"}
	tests := map[string]string{
		"service_port": "is an unknown field: write servicePort",
		"serviceport":  "is an unknown field: write servicePort",
		"Tags":         "is an unknown field: write tags",
		"protcol":      "is an unknown field: did you mean protocol?",
		"tagz":         "is an unknown field: did you mean tags?",
		"servicePrt":   "is an unknown field: did you mean servicePort?",
		"prot":         "is an unknown field: did you mean port?",
		"colour":       "is an unknown field: known here are port, servicePort, serviceAddress, address, tags, protocol",
		"":             "is an unknown field: known here are port, servicePort, serviceAddress, address, tags, protocol",
	}
	for name, want := range tests {
		if got := mesh.UnknownField(name, known); got != want {
			t.Errorf("UnknownField(%q) = %q, want %q", name, got, want)
		}
	}
	if got := mesh.UnknownField("colour", nil); got != "is an unknown field" {
		t.Errorf("UnknownField() without known fields = %q", got)
	}
}
