package mesh_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	port = "must be a port from 1 to 65535"
	// missingPort is the error for port 0: the port was left out, since readers of documents reject a 0.
	missingPort = "is missing: " + port
	segment     = "must be 1 to 253 letters, digits, '.', '_' and '-', but not '.' or '..': it is part of a SPIFFE ID"
	label       = "must be a DNS label: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
	subdomain   = "must be a DNS subdomain: at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"
	probePath   = "must be a path of visible ASCII characters that begins with '/', without '?' and '#'"
	probeEscape = "must have two hexadecimal digits after each '%', which is %25 itself: the agent answers 400 to anything else"
	endpoint    = "must be an IP address that others can connect to: not unspecified, not multicast"
	workload    = "must be an IP address that the proxy can connect to: not unspecified, not multicast"
	// unresolved ends the error for a name in place of an address.
	unresolved = ". A name is not resolved: write the address that it stands for"
	addrPort   = "must be a virtual address ip:port such as 240.0.0.1:80 or [fd00::1]:80, not unspecified, not multicast"
)

// violation is a mesh.FieldError without a cause, short enough for tables.
type violation struct{ Field, Value, Allowed string }

type violations []violation

// violated sets defaults, and returns what Validate then finds.
func violated(t *testing.T, o mesh.Object) violations {
	t.Helper()
	o.SetDefaults()
	err := o.Validate()
	if err == nil {
		return nil
	}
	var list violations
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		f, ok := errors.AsType[*mesh.FieldError](err)
		if !ok {
			t.Fatalf("Validate() returned %T: %v", err, err)
		}
		list = append(list, violation{f.Field, f.Value, f.Allowed})
	}
	return list
}

func tags(service string, more ...string) mesh.Tags {
	t := mesh.Tags{mesh.TagService: service}
	for i := 0; i < len(more); i += 2 {
		t[more[i]] = more[i+1]
	}
	return t
}

func TestValidateDataplane(t *testing.T) {
	type in = mesh.Inbound
	web := func(change func(*mesh.Networking)) func(*mesh.Dataplane) {
		return func(d *mesh.Dataplane) { change(&d.Spec.Networking) }
	}
	inbound := func(change func(*mesh.Inbound)) func(*mesh.Dataplane) {
		return web(func(n *mesh.Networking) { change(&n.Inbound[0]) })
	}
	also := func(more ...in) func(*mesh.Dataplane) {
		return web(func(n *mesh.Networking) { n.Inbound = append(n.Inbound, more...) })
	}
	outbounds := func(more ...mesh.Outbound) func(*mesh.Dataplane) {
		return web(func(n *mesh.Networking) { n.Outbound = more })
	}
	service := `["kuma.io/service"]`
	long := strings.Repeat("a", 63)

	tests := map[string]struct {
		change func(*mesh.Dataplane)
		want   violations
	}{
		"good":                       {func(*mesh.Dataplane) {}, nil},
		"mesh is no label":           {func(d *mesh.Dataplane) { d.Mesh = "a.b" }, violations{{"mesh", "a.b", label}}},
		"no name":                    {func(d *mesh.Dataplane) { d.Name = "" }, violations{{"name", "", "is missing: " + subdomain}}},
		"name in upper case":         {func(d *mesh.Dataplane) { d.Name = "Web" }, violations{{"name", "Web", subdomain}}},
		"name with empty part":       {func(d *mesh.Dataplane) { d.Name = "a..b" }, violations{{"name", "a..b", subdomain}}},
		"name of a pod":              {func(d *mesh.Dataplane) { d.Name = strings.Repeat("a", 100) + ".default" }, nil},
		"longest name":               {func(d *mesh.Dataplane) { d.Name = long + "." + long + "." + long + "." + strings.Repeat("a", 32) }, nil},
		"name too long for its mesh": {func(d *mesh.Dataplane) { d.Name = strings.Repeat("a", 225) }, violations{{"name", strings.Repeat("a", 225), "must be at most 224 characters in this mesh: the certificate's DNS name " + strings.Repeat("a", 225) + ".default.proxy.sonde.internal may have 253"}}},
		"workload is no segment":     {func(d *mesh.Dataplane) { d.Labels = map[string]string{mesh.LabelWorkload: "a/b"} }, violations{{`labels["kuma.io/workload"]`, "a/b", segment}}},
		"empty workload":             {func(d *mesh.Dataplane) { d.Labels = map[string]string{mesh.LabelWorkload: ""} }, violations{{`labels["kuma.io/workload"]`, "", "is missing: " + segment}}},
		"no inbound":                 {web(func(n *mesh.Networking) { n.Inbound = nil }), nil},
		"no inbound, but a workload": {func(d *mesh.Dataplane) {
			d.Spec.Networking.Inbound, d.Labels = nil, map[string]string{mesh.LabelWorkload: "web"}
		}, nil},

		"no address":                    {web(func(n *mesh.Networking) { n.Address = "" }), violations{{"networking.address", "", "is missing: " + endpoint}}},
		"address is a name of one part": {web(func(n *mesh.Networking) { n.Address = "my_backend" }), violations{{"networking.address", "my_backend", endpoint + unresolved}}},
		"address with leading zeros":    {web(func(n *mesh.Networking) { n.Address = "010.0.0.1" }), violations{{"networking.address", "010.0.0.1", endpoint}}},
		"address is a name":             {web(func(n *mesh.Networking) { n.Address = "web.example" }), violations{{"networking.address", "web.example", endpoint + unresolved}}},
		"address unspecified":           {web(func(n *mesh.Networking) { n.Address = "0.0.0.0" }), violations{{"networking.address", "0.0.0.0", endpoint}}},
		"address unspecified 6":         {web(func(n *mesh.Networking) { n.Address = "::" }), violations{{"networking.address", "::", endpoint}}},
		"address in IPv6 form":          {web(func(n *mesh.Networking) { n.Address = "::ffff:0.0.0.0" }), violations{{"networking.address", "::ffff:0.0.0.0", endpoint}}},
		"address multicast":             {web(func(n *mesh.Networking) { n.Address = "224.0.0.1" }), violations{{"networking.address", "224.0.0.1", endpoint}}},
		"address with zone":             {web(func(n *mesh.Networking) { n.Address = "fe80::1%eth0" }), violations{{"networking.address", "fe80::1%eth0", endpoint}}},
		"address IPv6":                  {web(func(n *mesh.Networking) { n.Address = "fd00::1" }), nil},

		"inbound port 0":            {inbound(func(i *in) { i.Port = 0 }), violations{{"networking.inbound[0].port", "", missingPort}}},
		"inbound port 65536":        {inbound(func(i *in) { i.Port, i.ServicePort = 65536, 80 }), violations{{"networking.inbound[0].port", "65536", port}}},
		"inbound port 65535":        {inbound(func(i *in) { i.Port = 65535 }), nil},
		"service port 70000":        {inbound(func(i *in) { i.ServicePort = 70000 }), violations{{"networking.inbound[0].servicePort", "70000", port}}},
		"inbound address":           {inbound(func(i *in) { i.Address = "host" }), violations{{"networking.inbound[0].address", "host", endpoint + unresolved}}},
		"service address":           {inbound(func(i *in) { i.ServiceAddress = "0.0.0.0" }), violations{{"networking.inbound[0].serviceAddress", "0.0.0.0", workload}}},
		"service address is a name": {inbound(func(i *in) { i.ServiceAddress = "localhost" }), violations{{"networking.inbound[0].serviceAddress", "localhost", workload + unresolved}}},
		"proxy to itself":           {inbound(func(i *in) { i.ServiceAddress = "10.0.0.1" }), violations{{"networking.inbound[0].servicePort", "80", "the proxy itself listens on 10.0.0.1:80: serviceAddress and servicePort must name the application"}}},
		"proxy to itself, default":  {web(func(n *mesh.Networking) { n.Address = "127.0.0.1" }), violations{{"networking.inbound[0].servicePort", "80", "the proxy itself listens on 127.0.0.1:80: serviceAddress and servicePort must name the application. If it listens there, write the address under which others reach this machine as networking.address"}}},
		"redirected, same port":     {web(func(n *mesh.Networking) { n.TransparentProxying = &mesh.TransparentProxying{} }), nil},
		"no tags":                   {inbound(func(i *in) { i.Tags = nil }), nil},
		"empty service":             {inbound(func(i *in) { i.Tags = tags("") }), violations{{"networking.inbound[0].tags" + service, "", "is empty: " + segment}}},
		"service with slash":        {inbound(func(i *in) { i.Tags = tags("a/b") }), violations{{"networking.inbound[0].tags" + service, "a/b", segment}}},
		"service with colon":        {inbound(func(i *in) { i.Tags = tags("a:80") }), violations{{"networking.inbound[0].tags" + service, "a:80", segment}}},
		"service ..":                {inbound(func(i *in) { i.Tags = tags("..") }), violations{{"networking.inbound[0].tags" + service, "..", segment}}},
		"service of Kubernetes":     {inbound(func(i *in) { i.Tags = tags("web_default_svc_80") }), nil},
		"service too long":          {inbound(func(i *in) { i.Tags = tags(strings.Repeat("a", 254)) }), violations{{"networking.inbound[0].tags" + service, strings.Repeat("a", 254), segment}}},
		"protocol unknown":          {inbound(func(i *in) { i.Tags = tags("a", mesh.TagProtocol, "kafka") }), violations{{`networking.inbound[0].tags["kuma.io/protocol"]`, "kafka", "must be one of tcp, http, http2, grpc: write tcp, Sonde forwards kafka as bytes"}}},
		"protocol empty":            {inbound(func(i *in) { i.Tags = tags("a", mesh.TagProtocol, "") }), violations{{`networking.inbound[0].tags["kuma.io/protocol"]`, "", "is empty: must be one of tcp, http, http2, grpc"}}},
		"tags as Kuma has them":     {inbound(func(i *in) { i.Tags = tags("a", "a.b/c_d-e:F", "V1.0_a-b:c") }), nil},
		"tag with bad name":         {inbound(func(i *in) { i.Tags = tags("a", "b c", "d") }), violations{{`networking.inbound[0].tags["b c"]`, "b c", "must be a tag name of letters, digits, '.', '_', '-', ':' and '/'"}}},
		"tag with bad value":        {inbound(func(i *in) { i.Tags = tags("a", "b", "c/d") }), violations{{`networking.inbound[0].tags["b"]`, "c/d", "must be a tag value of one or more letters, digits, '.', '_', '-' and ':'"}}},
		"tag with empty value":      {inbound(func(i *in) { i.Tags = tags("a", "b", "") }), violations{{`networking.inbound[0].tags["b"]`, "", "is empty: must be a tag value of one or more letters, digits, '.', '_', '-' and ':'"}}},

		"two inbounds, one port":    {also(in{Port: 80, Tags: tags("b")}), violations{{"networking.inbound[1].port", "80", "must be free: networking.inbound[0] has it on the same address"}}},
		"one port, other address":   {also(in{Port: 80, Address: "10.0.0.2", Tags: tags("b")}), nil},
		"one port, address as IPv6": {also(in{Port: 80, Address: "::ffff:10.0.0.1", Tags: tags("b")}), violations{{"networking.inbound[1].port", "80", "must be free: networking.inbound[0] has it on the same address"}}},
		"outbound on inbound":       {outbounds(mesh.Outbound{Address: "10.0.0.1", Port: 80, Tags: tags("b")}), violations{{"networking.outbound[0].port", "80", "must be free: networking.inbound[0] has it on the same address"}}},
		"two outbounds":             {outbounds(mesh.Outbound{Port: 81, Tags: tags("b")}, mesh.Outbound{Port: 81, Tags: tags("c")}), violations{{"networking.outbound[1].port", "81", "must be free: networking.outbound[0] has it on the same address"}}},
		"outbound on any address":   {outbounds(mesh.Outbound{Address: "0.0.0.0", Port: 80, Tags: tags("b")}), violations{{"networking.outbound[0].port", "80", "must be free: networking.inbound[0] has it on the same address"}}},
		"after one on any address":  {outbounds(mesh.Outbound{Address: "0.0.0.0", Port: 81, Tags: tags("b")}, mesh.Outbound{Port: 81, Tags: tags("c")}), violations{{"networking.outbound[1].port", "81", "must be free: networking.outbound[0] has it on the same address"}}},
		"any address of IPv6":       {outbounds(mesh.Outbound{Address: "::", Port: 80, Tags: tags("b")}), nil},
		"outbound port 0":           {outbounds(mesh.Outbound{Tags: tags("b")}), violations{{"networking.outbound[0].port", "", missingPort}}},
		"outbound address":          {outbounds(mesh.Outbound{Address: "host", Port: 81, Tags: tags("b")}), violations{{"networking.outbound[0].address", "host", "must be an IP address" + unresolved}}},
		"outbound without service":  {outbounds(mesh.Outbound{Port: 81}), violations{{"networking.outbound[0].tags" + service, "", "is missing: " + segment + "; or backendRef must name a MeshService"}}},
		"redirect port 70000": {web(func(n *mesh.Networking) {
			n.TransparentProxying = &mesh.TransparentProxying{RedirectPortInbound: 70000}
		}), violations{{"networking.transparentProxying.redirectPortInbound", "70000", port}}},
		"redirect ports the same": {web(func(n *mesh.Networking) {
			n.TransparentProxying = &mesh.TransparentProxying{RedirectPortInbound: 15001}
		}), violations{{"networking.transparentProxying.redirectPortOutbound", "15001", "must differ from redirectPortInbound"}}},
		"inbound on redirect port":  {func(d *mesh.Dataplane) { redirect(d).Inbound[0].Port = 15006 }, violations{{"networking.inbound[0].port", "15006", "must be free: networking.transparentProxying.redirectPortInbound has it on the same address"}}},
		"inbound on readiness port": {func(d *mesh.Dataplane) { redirect(d).Inbound[0].Port = 15022 }, violations{{"networking.inbound[0].port", "15022", "must be free: the readiness port of the sidecar has it on the same address"}}},
		"probes": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/live", "/80/live"}}}
		}, nil},
		"probes with wrong port": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{0, "live", ""}}}
		}, violations{{"probes.endpoints[0].inboundPort", "", missingPort}, {"probes.endpoints[0].inboundPath", "live", probePath}, {"probes.endpoints[0].path", "", "is missing: " + probePath}}},
		"probes without port": {func(d *mesh.Dataplane) { d.Spec.Probes = &mesh.Probes{} }, violations{{"probes.port", "", missingPort}}},
		"probes with a query or a fragment": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/a?b", "/a#b"}, {80, "/a b", "/\u00e4"}}}
		}, violations{
			{"probes.endpoints[0].inboundPath", "/a?b", probePath},
			{"probes.endpoints[0].path", "/a#b", probePath},
			{"probes.endpoints[1].inboundPath", "/a b", probePath},
			{"probes.endpoints[1].path", "/\u00e4", probePath},
		}},
		"probes with a wrong escape": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/a", "/a%zz"}, {80, "/a", "/b%"}, {80, "/a", "/c%4"}}}
		}, violations{
			{"probes.endpoints[0].path", "/a%zz", probeEscape}, {"probes.endpoints[1].path", "/b%", probeEscape}, {"probes.endpoints[2].path", "/c%4", probeEscape},
		}},
		"probes with escapes": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/a%2Fb//%41", "//%25/%2f"}, {80, "/a%zz", "/a%20"}}}
		}, nil},
		"probes with the longest paths": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/" + strings.Repeat("a", 2047), "/" + strings.Repeat("b", 2047)}}}
		}, nil},
		"probes with paths that are too long": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/" + strings.Repeat("a", 2048), "/" + strings.Repeat("b", 9000)}}}
		}, violations{
			{"probes.endpoints[0].inboundPath", "/" + strings.Repeat("a", 99) + "...", "must have at most 2048 characters"},
			{"probes.endpoints[0].path", "/" + strings.Repeat("b", 99) + "...", "must have at most 2048 characters"},
		}},
		"two probes with one path": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{80, "/a", "/live"}, {81, "/b", "/live"}}}
		}, violations{{"probes.endpoints[1].path", "/live", "must be unique: probes.endpoints[0] has it too"}}},
		"a probe of the port for probes": {func(d *mesh.Dataplane) {
			d.ProbesMode = mesh.ProbesPerPort
			redirect(d)
			d.Spec.Probes = &mesh.Probes{Port: 9000, Endpoints: []mesh.ProbeEndpoint{{9000, "/a", "/live"}}}
		}, violations{{"probes.endpoints[0].inboundPort", "9000", "must name the application: this is the port for probes itself"}}},
		"TCP probes with wrong port":     {func(d *mesh.Dataplane) { d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 81}, {Port: 0}} }, violations{{"tcpProbes[1].port", "", missingPort}}},
		"TCP probes of a wrong port":     {func(d *mesh.Dataplane) { d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 81, InboundPort: 70000}} }, violations{{"tcpProbes[0].inboundPort", "70000", port}}},
		"TCP probes of a wrong protocol": {func(d *mesh.Dataplane) { d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 81, Protocol: "http"}} }, violations{{"tcpProbes[0].protocol", "http", "must be tcp or grpc, or absent for either"}}},
		"clashes of probes without effect": {func(d *mesh.Dataplane) {
			d.Spec.Probes = &mesh.Probes{Port: 80}
			d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 80}}
		}, nil},
		"clashes of probes": {func(d *mesh.Dataplane) {
			d.ProbesMode = mesh.ProbesPerPort
			d.Spec.Probes = &mesh.Probes{Port: 80}
			d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 81}, {Port: 81}}
		}, violations{
			{"probes.port", "80", "must be free: networking.inbound[0] has it on the same address"},
			{"tcpProbes[1].port", "81", "must be free: tcpProbes[0] has it on the same address"},
		}},
		"probes on a redirect port, by the label": {func(d *mesh.Dataplane) {
			d.Labels = map[string]string{mesh.AnnotationVirtualProbesMode: "per-port"}
			redirect(d)
			d.Spec.Probes = &mesh.Probes{Port: 15006}
		}, violations{{"probes.port", "15006", "must be free: networking.transparentProxying.redirectPortInbound has it on the same address"}}},
		"TCP probes of themselves": {func(d *mesh.Dataplane) {
			d.ProbesMode = mesh.ProbesPerPort
			redirect(d)
			d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 2379}}
		}, violations{{"tcpProbes[0].inboundPort", "2379", "must name the application: this is the port for probes itself"}}},
		"an unknown mode of probes": {func(d *mesh.Dataplane) {
			d.Labels = map[string]string{mesh.AnnotationVirtualProbesMode: "both"}
		}, violations{{`labels["sonde.dev/virtual-probes-mode"]`, "both", mesh.AllowedProbesMode}}},
		"every violation at once": {func(d *mesh.Dataplane) {
			d.Mesh, d.Name = "A", "B"
			d.Spec.Networking.Address = "c"
			d.Spec.Networking.Inbound[0].Port = 0
		}, violations{{"mesh", "A", label}, {"name", "B", subdomain}, {"networking.address", "c", endpoint + unresolved}, {"networking.inbound[0].port", "", missingPort}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := &mesh.Dataplane{Meta: mesh.Meta{Name: "web-1"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
				Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, Tags: tags("web")}},
			}}}
			tc.change(d)
			if diff := cmp.Diff(tc.want, violated(t, d)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}

func redirect(d *mesh.Dataplane) *mesh.Networking {
	d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{}
	return &d.Spec.Networking
}

func TestValidateMesh(t *testing.T) {
	rotation := func(text string) *mesh.DPCert {
		d, err := mesh.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return &mesh.DPCert{Rotation: &mesh.Rotation{Expiration: d}}
	}
	ca := func(text string) *mesh.BuiltinConf {
		return &mesh.BuiltinConf{CACert: &mesh.CACert{Expiration: rotation(text).Rotation.Expiration}}
	}
	tests := map[string]struct {
		mesh *mesh.Mesh
		want violations
	}{
		"plain":              {&mesh.Mesh{Name: "default"}, nil},
		"no name":            {&mesh.Mesh{}, violations{{"name", "", "is missing: " + label}}},
		"name too long":      {&mesh.Mesh{Name: strings.Repeat("a", 64)}, violations{{"name", strings.Repeat("a", 64), label}}},
		"name with hyphen":   {&mesh.Mesh{Name: "-a"}, violations{{"name", "-a", label}}},
		"builtin":            {withBackends("a", mesh.Backend{Name: "a", Type: "builtin", Mode: mesh.ModePermissive}), nil},
		"off":                {withBackends("", mesh.Backend{Name: "a", Type: "builtin"}), nil},
		"enabled is unknown": {withBackends("b", mesh.Backend{Name: "a", Type: "builtin"}), violations{{"mtls.enabledBackend", "b", "must be the name of one of mtls.backends: a"}}},
		"no backend":         {withBackends("b"), violations{{"mtls.enabledBackend", "b", "must be the name of one of mtls.backends: (none)"}}},
		"same name":          {withBackends("a", mesh.Backend{Name: "a", Type: "builtin"}, mesh.Backend{Name: "a", Type: "builtin"}), violations{{"mtls.backends[1].name", "a", "must be unique: mtls.backends[0] has it too"}}},
		"unnamed":            {withBackends("", mesh.Backend{Type: "builtin"}), violations{{"mtls.backends[0].name", "", "is missing: must name the backend"}}},
		"other type":         {withBackends("a", mesh.Backend{Name: "a", Type: "vault"}), violations{{"mtls.backends[0].type", "vault", "must be builtin: the control plane makes and keeps the certificate authority itself"}}},
		"no type":            {withBackends("a", mesh.Backend{Name: "a"}), violations{{"mtls.backends[0].type", "", "is missing: must be builtin: the control plane makes and keeps the certificate authority itself"}}},
		"other mode":         {withBackends("a", mesh.Backend{Name: "a", Type: "builtin", Mode: "strict"}), violations{{"mtls.backends[0].mode", "strict", "must be STRICT or PERMISSIVE: write STRICT"}}},
		"shortest life":      {withBackends("a", mesh.Backend{Name: "a", Type: "builtin", DPCert: rotation("10s")}), nil},
		"too short a life":   {withBackends("a", mesh.Backend{Name: "a", Type: "builtin", DPCert: rotation("9s")}), violations{{"mtls.backends[0].dpCert.rotation.expiration", "9s", "must be at least 10s"}}},
		"CA shorter":         {withBackends("a", mesh.Backend{Name: "a", Type: "builtin", Conf: ca("1d")}), violations{{"mtls.backends[0].conf.caCert.expiration", "24h", "must be longer than dpCert.rotation.expiration, 24h"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, violated(t, tc.mesh)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}

func withBackends(enabled string, backends ...mesh.Backend) *mesh.Mesh {
	return &mesh.Mesh{Name: "default", Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{EnabledBackend: enabled, Backends: backends}}}
}

func TestValidateService(t *testing.T) {
	type e = mesh.ServiceEndpoint
	tests := map[string]struct {
		name string
		spec mesh.ServiceSpec
		want violations
	}{
		"good": {"api_default_svc_80", mesh.ServiceSpec{
			Protocol: mesh.ProtocolGRPC, Addresses: []string{"240.0.0.1:80", "[fd00::1]:80"}, Endpoints: []e{{Address: "10.0.0.1", Port: 80}, {Address: "10.0.0.1", Port: 81}},
		}, nil},
		"name with colon":     {"a:80", mesh.ServiceSpec{}, violations{{"name", "a:80", segment}}},
		"unknown protocol":    {"a", mesh.ServiceSpec{Protocol: "udp"}, violations{{"protocol", "udp", "must be one of tcp, http, http2, grpc"}}},
		"policies":            {"a", mesh.ServiceSpec{SessionAffinity: "ClientIP", InternalTrafficPolicy: "Local"}, nil},
		"policies as without": {"a", mesh.ServiceSpec{SessionAffinity: "None", InternalTrafficPolicy: "Cluster", Headless: true}, nil},
		"unknown affinity":    {"a", mesh.ServiceSpec{SessionAffinity: "clientIP"}, violations{{"sessionAffinity", "clientIP", "must be None or ClientIP: write ClientIP"}}},
		"unknown policy":      {"a", mesh.ServiceSpec{InternalTrafficPolicy: "Node"}, violations{{"internalTrafficPolicy", "Node", "must be Cluster or Local"}}},
		"policies of headless": {"a", mesh.ServiceSpec{Headless: true, SessionAffinity: "ClientIP", InternalTrafficPolicy: "Local"}, violations{
			{"sessionAffinity", "ClientIP", "must be None for a headless service"}, {"internalTrafficPolicy", "Local", "must be Cluster for a headless service"},
		}},
		"address without port": {"a", mesh.ServiceSpec{Addresses: []string{"10.0.0.1"}}, violations{{"addresses[0]", "10.0.0.1", addrPort}}},
		"address with port 0":  {"a", mesh.ServiceSpec{Addresses: []string{"10.0.0.1:0"}}, violations{{"addresses[0]", "10.0.0.1:0", addrPort}}},
		"address unspecified":  {"a", mesh.ServiceSpec{Addresses: []string{"0.0.0.0:80"}}, violations{{"addresses[0]", "0.0.0.0:80", addrPort}}},
		"address is a name":    {"a", mesh.ServiceSpec{Addresses: []string{"api:80"}}, violations{{"addresses[0]", "api:80", addrPort}}},
		"address twice":        {"a", mesh.ServiceSpec{Addresses: []string{"10.0.0.1:80", "[::ffff:10.0.0.1]:80"}}, violations{{"addresses[1]", "[::ffff:10.0.0.1]:80", "must be unique: addresses[0] has the same address and port"}}},
		"endpoint":             {"a", mesh.ServiceSpec{Endpoints: []e{{Address: "api", Port: 0}}}, violations{{"endpoints[0].address", "api", endpoint + unresolved}, {"endpoints[0].port", "", missingPort}}},
		"endpoint twice":       {"a", mesh.ServiceSpec{Endpoints: []e{{Address: "10.0.0.1", Port: 80}, {Address: "10.0.0.1", Port: 80}}}, violations{{"endpoints[1]", "10.0.0.1:80", "must be unique: endpoints[0] has the same address and port"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &mesh.Service{Meta: mesh.Meta{Name: tc.name}, Spec: tc.spec}
			if diff := cmp.Diff(tc.want, violated(t, s)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}
