package mesh

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// probedBy returns a Dataplane whose inbound 8080, for an application on 127.0.0.1:18080, has a serviceProbe.
func probedBy(p ServiceProbe) *Dataplane {
	d := &Dataplane{Meta: Meta{Name: "web-1"}}
	d.Spec.Networking = Networking{Address: "10.0.0.1", Inbound: []Inbound{
		{Port: 8080, ServicePort: 18080, Tags: Tags{TagService: "web"}, ServiceProbe: &p},
		{Port: 9090, Address: "127.0.0.1", ServicePort: 19090, Tags: Tags{TagService: "web"}},
	}}
	return d
}

func TestServiceProbeDefaults(t *testing.T) {
	kuma := ProbeTiming{time.Second, 2 * time.Second, 1, 1}
	kubernetes := ProbeTiming{10 * time.Second, time.Second, 3, 1}
	tests := map[string]struct {
		probe  ServiceProbe
		timing ProbeTiming
		check  Probe
		at     string
	}{
		"nothing is Kuma's tcp": {ServiceProbe{}, kuma, Probe{TCPSocket: &TCPSocketProbe{Port: 18080}}, "127.0.0.1:18080"},
		"Kuma's fields without a handler": {
			ServiceProbe{UnhealthyThreshold: 5}, ProbeTiming{time.Second, 2 * time.Second, 5, 1},
			Probe{TCPSocket: &TCPSocketProbe{Port: 18080}}, "127.0.0.1:18080",
		},
		"tcp": {ServiceProbe{TCP: &TCPServiceProbe{}}, kuma, Probe{TCPSocket: &TCPSocketProbe{Port: 18080}}, "127.0.0.1:18080"},
		"tcp, all written": {
			ServiceProbe{TCP: &TCPServiceProbe{}, Interval: Duration(time.Minute), Timeout: Duration(time.Millisecond), UnhealthyThreshold: 3, HealthyThreshold: 2},
			ProbeTiming{time.Minute, time.Millisecond, 3, 2}, Probe{TCPSocket: &TCPSocketProbe{Port: 18080}}, "127.0.0.1:18080",
		},
		"httpGet": {
			ServiceProbe{HTTPGet: &HTTPGetProbe{}}, kubernetes, Probe{HTTPGet: &HTTPGetProbe{Path: "/", Port: 18080, Scheme: SchemeHTTP}}, "127.0.0.1:18080",
		},
		"httpGet, all written": {
			ServiceProbe{
				HTTPGet:       &HTTPGetProbe{Path: "/healthz", Port: 1, Scheme: SchemeHTTPS, HTTPHeaders: []HTTPHeader{{"Host", "web"}}},
				PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 4, SuccessThreshold: 5,
			},
			ProbeTiming{time.Second, 2 * time.Second, 4, 5},
			Probe{HTTPGet: &HTTPGetProbe{Path: "/healthz", Port: 1, Scheme: SchemeHTTPS, HTTPHeaders: []HTTPHeader{{"Host", "web"}}}}, "127.0.0.1:1",
		},
		"tcpSocket":         {ServiceProbe{TCPSocket: &TCPSocketProbe{}}, kubernetes, Probe{TCPSocket: &TCPSocketProbe{Port: 18080}}, "127.0.0.1:18080"},
		"grpc":              {ServiceProbe{GRPC: &GRPCProbe{Service: "db"}}, kubernetes, Probe{GRPC: &GRPCProbe{Port: 18080, Service: "db"}}, "127.0.0.1:18080"},
		"grpc on a port":    {ServiceProbe{GRPC: &GRPCProbe{Port: 7}}, kubernetes, Probe{GRPC: &GRPCProbe{Port: 7}}, "127.0.0.1:7"},
		"tcpSocket on port": {ServiceProbe{TCPSocket: &TCPSocketProbe{Port: 7}}, kubernetes, Probe{TCPSocket: &TCPSocketProbe{Port: 7}}, "127.0.0.1:7"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := probedBy(tc.probe)
			d.SetDefaults()
			if err := d.Validate(); err != nil {
				t.Fatal(err)
			}
			once := d.DeepCopy()
			d.SetDefaults()
			if diff := cmp.Diff(once, d); diff != "" {
				t.Errorf("defaults set twice (-once +twice):\n%s", diff)
			}
			in := &d.Spec.Networking.Inbound[0]
			if diff := cmp.Diff(tc.timing, in.ServiceProbe.Timing()); diff != "" {
				t.Errorf("Timing() (-want +got):\n%s", diff)
			}
			check, at := in.ServiceCheck()
			tc.check.Type = ProbeReadiness
			if diff := cmp.Diff(tc.check, check); diff != "" {
				t.Errorf("ServiceCheck() (-want +got):\n%s", diff)
			}
			if at != netip.MustParseAddrPort(tc.at) {
				t.Errorf("it goes to %s, want %s", at, tc.at)
			}
		})
	}
}

func TestServiceProbeViolations(t *testing.T) {
	const path = "networking.inbound[0].serviceProbe"
	tcp, get := &TCPServiceProbe{}, func() *HTTPGetProbe { return &HTTPGetProbe{} }
	tests := map[string]struct {
		probe ServiceProbe
		want  string
	}{
		"no handler":         {ServiceProbe{PeriodSeconds: 1}, path + ": is missing: must have exactly one of tcp, httpGet, tcpSocket and grpc"},
		"two handlers":       {ServiceProbe{TCP: tcp, HTTPGet: get()}, path + `: "tcp, httpGet": must have exactly one`},
		"seconds with tcp":   {ServiceProbe{TCP: tcp, PeriodSeconds: 5}, path + `.periodSeconds: 5: must not be there with tcp: its form has interval`},
		"threshold with tcp": {ServiceProbe{TCP: tcp, FailureThreshold: 5}, path + `.failureThreshold: 5: must not be there with tcp: its form has unhealthyThreshold`},
		"interval with grpc": {ServiceProbe{GRPC: &GRPCProbe{}, Interval: Duration(time.Second)}, path + `.interval: "1s": must not be there with grpc: its form has periodSeconds`},
		"interval too short": {ServiceProbe{Interval: Duration(time.Millisecond)}, path + `.interval: "1ms": must be from 100ms to 1h`},
		"interval too long":  {ServiceProbe{Interval: Duration(2 * time.Hour)}, path + `.interval: "2h": must be from 100ms to 1h`},
		"timeout too short":  {ServiceProbe{Timeout: 1}, path + `.timeout: "1ns": must be from 1ms to 1h`},
		"threshold too high": {ServiceProbe{HealthyThreshold: 1001}, path + `.healthyThreshold: 1001: must be from 1 to 1000`},
		"threshold negative": {ServiceProbe{UnhealthyThreshold: -1}, path + `.unhealthyThreshold: -1: must be from 1 to 1000`},
		"period too long":    {ServiceProbe{HTTPGet: get(), PeriodSeconds: 3601}, path + `.periodSeconds: 3601: must be from 1 to 3600`},
		"timeout negative":   {ServiceProbe{HTTPGet: get(), TimeoutSeconds: -1}, path + `.timeoutSeconds: -1: must be from 1 to 3600`},
		"port too high":      {ServiceProbe{TCPSocket: &TCPSocketProbe{Port: 65536}}, path + `.tcpSocket.port: 65536: must be a port`},
		"port negative":      {ServiceProbe{HTTPGet: &HTTPGetProbe{Port: -1}}, path + `.httpGet.port: -1: must be a port`},
		"protocol":           {ServiceProbe{HTTPGet: &HTTPGetProbe{Protocol: "h2c"}}, path + `.httpGet.protocol: "h2c": must be HTTP1 or HTTP2`},
		"HTTP2 with HTTPS": {
			ServiceProbe{HTTPGet: &HTTPGetProbe{Scheme: SchemeHTTPS, Protocol: HTTPGetHTTP2}}, path + `.httpGet.protocol: "HTTP2": must be HTTP1 with scheme HTTPS`,
		},
		"mode":                 {ServiceProbe{GRPC: &GRPCProbe{Mode: "tls"}}, path + `.grpc.mode: "tls": must be Plaintext or TLS`},
		"scheme":               {ServiceProbe{HTTPGet: &HTTPGetProbe{Scheme: "http"}}, path + `.httpGet.scheme: "http": must be HTTP or HTTPS`},
		"path with a space":    {ServiceProbe{HTTPGet: &HTTPGetProbe{Path: "/a b"}}, path + `.httpGet.path: "/a b": must have at most 2048 visible`},
		"no path":              {ServiceProbe{HTTPGet: &HTTPGetProbe{Path: "a:b"}}, path + `.httpGet.path: "a:b": must be a path`},
		"path too long":        {ServiceProbe{HTTPGet: &HTTPGetProbe{Path: strings.Repeat("/", 2049)}}, path + ".httpGet.path"},
		"header's name":        {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: []HTTPHeader{{"a b", ""}}}}, path + `.httpGet.httpHeaders[0].name: "a b"`},
		"header in one":        {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: []HTTPHeader{{"Authorization: secret", ""}}}}, path + `.httpGet.httpHeaders[0].name: "Authorization:"`},
		"header without name":  {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: []HTTPHeader{{"", "x"}}}}, path + `.httpGet.httpHeaders[0].name: is missing`},
		"header's value":       {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: []HTTPHeader{{"a", "secret\r\nb: c"}}}}, path + ".httpGet.httpHeaders[0].value: must have no control characters"},
		"many headers":         {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: make([]HTTPHeader, 33)}}, path + `.httpGet.httpHeaders: "33 headers, 0 bytes"`},
		"large headers":        {ServiceProbe{HTTPGet: &HTTPGetProbe{HTTPHeaders: []HTTPHeader{{"a", strings.Repeat("x", 4096)}}}}, path + `.httpGet.httpHeaders: "1 headers, 4097 bytes"`},
		"service":              {ServiceProbe{GRPC: &GRPCProbe{Service: "ä"}}, path + `.grpc.service: "ä"`},
		"a port of the proxy":  {ServiceProbe{TCPSocket: &TCPSocketProbe{Port: 9090}}, path + `: "127.0.0.1:9090": must name the application: the proxy itself listens there, for networking.inbound[1]`},
		"service that is long": {ServiceProbe{GRPC: &GRPCProbe{Service: strings.Repeat("s", 257)}}, path + `.grpc.service: "sss`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := probedBy(tc.probe)
			d.SetDefaults()
			err := d.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("Validate() = %v, want %s", err, tc.want)
			}
		})
	}
}

// TestProbeOfTheAddressOfAnIgnoredInbound checks that the address of an Ignored inbound may be probed, since the proxy
// does not listen there.
func TestProbeOfTheAddressOfAnIgnoredInbound(t *testing.T) {
	d := probedBy(ServiceProbe{TCPSocket: &TCPSocketProbe{Port: 9090}})
	d.Spec.Networking.Inbound[1].State = InboundIgnored
	d.SetDefaults()
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

// TestServiceProbesAreLimited checks that the number of applications that one agent probes is limited.
func TestServiceProbesAreLimited(t *testing.T) {
	for n, want := range map[int]string{
		maxServiceProbes:     "",
		maxServiceProbes + 1: `networking.inbound: "257 with a serviceProbe": must be at most 256 with a serviceProbe: one agent makes all the checks. Leave it out where the application is the same`,
	} {
		d := &Dataplane{Meta: Meta{Name: "web-1"}}
		d.Spec.Networking.Address = "10.0.0.1"
		for i := range n {
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, Inbound{Port: uint32(1000 + i), ServicePort: 80, ServiceProbe: &ServiceProbe{}})
		}
		d.SetDefaults()
		got := ""
		if err := d.Validate(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d probes: Validate() = %q, want %q", n, got, want)
		}
	}
}

func TestServesAsFarAsItsProbeSays(t *testing.T) {
	failing := Observation{NotServing: MakeAddresses([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:9090")})}
	d := probedBy(ServiceProbe{})
	d.SetDefaults()
	probed, other := &d.Spec.Networking.Inbound[0], &d.Spec.Networking.Inbound[1]
	if failing.Serves(d, probed) || !failing.Serves(d, other) || !(Observation{}).Serves(d, probed) {
		t.Error("want one inbound that does not serve: that whose probe has failed")
	}
	d.Identity.Instance = "uid" // the kubelet probes it
	if !failing.Serves(d, probed) {
		t.Error("a serviceProbe decides about a pod")
	}
}
