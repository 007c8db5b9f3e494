package replicas_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestNamesAreOfOneReplica has two processes with one name: only the one that started later is accepted.
func TestNamesAreOfOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		time.Sleep(time.Second)
		second := c.start("a")
		a.setProxy(proxyOf("default/web", "one"), "default/web")
		second.setProxy(proxyOf("default/web", "two"), "default/web")
		connect(second, b)
		b.wantReports(t, "default/web", "a two")
		a.Follow(map[string]string{"b": b.address})
		synctest.Wait()
		if err := a.Check(); err == nil || !strings.Contains(err.Error(), "another process with this name started later") {
			t.Errorf("the first replica gets %v", err)
		}
		b.wantReports(t, "default/web", "a two")
		// The replica that is listed as x has this replica's own name.
		second.Follow(map[string]string{"x": a.address})
		synctest.Wait()
		if err := second.Check(); err == nil || !strings.Contains(err.Error(), "is also the name of this replica") {
			t.Errorf("the second replica gets %v", err)
		}
	})
}

// TestOthersAreRefused has callers with the certificate of an agent, of the control plane's server for agents, of a
// replica in another trust domain, and of a replica of another control plane, and a caller without a certificate.
func TestOthersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		serves, err := c.certificate.TLS().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("mesh")}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		key := ca.NewKey()
		leaf, err := authority.Sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, key.Public(), time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		with := func(own *tls.Certificate) *tls.Config {
			config := c.certificate.Replica(trustDomain, "a").Client()
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
			return config
		}
		otherCA := newCluster(t).certificate.Replica(trustDomain, "a").Client()
		otherCA.VerifyConnection = nil
		otherDomain := c.certificate.Replica("other.internal", "a").Client()
		otherDomain.VerifyConnection = nil
		tests := map[string]*tls.Config{
			"none":                  with(&tls.Certificate{}),
			"an agent's":            with(&tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}),
			"a serving one":         with(serves),
			"another trust domain":  otherDomain,
			"another control plane": otherCA,
		}
		for name, config := range tests {
			_, err := c.client(b.address, config).CheckDuplicate(wait.Context(t), &peerv1.CheckDuplicateRequest{})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: the call ends with %v", name, err)
			}
		}
		synctest.Wait()
		if got := b.refused(t); got != float64(len(tests)) {
			t.Errorf("%v rejections are counted, want %d", got, len(tests))
		}
	})
}

// TestBadMessages has a replica send invalid messages.
func TestBadMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		b.Follow(map[string]string{})
		proxy := func(p *peerv1.Proxy) *peerv1.ReportMessage {
			return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: p}}
		}
		tests := map[string]struct {
			messages []*peerv1.ReportMessage
			code     codes.Code
			want     string
		}{
			"no Hello":           {[]*peerv1.ReportMessage{proxy(proxyOf("default/web", ""))}, codes.InvalidArgument, "hello: must be the first message"},
			"another name":       {[]*peerv1.ReportMessage{helloOf("c")}, codes.PermissionDenied, `the certificate is for replica "a"`},
			"two Hellos":         {[]*peerv1.ReportMessage{helloOf("a"), helloOf("a")}, codes.InvalidArgument, "hello: a stream must have only one"},
			"an epoch of 0":      {[]*peerv1.ReportMessage{helloOf("a"), {Message: &peerv1.ReportMessage_Replica{Replica: &peerv1.Replica{Authorities: []*peerv1.Authority{{Mesh: "default"}}}}}}, codes.InvalidArgument, "bundle_epoch: 0: must be at least 1"},
			"a message of 9 MiB": {[]*peerv1.ReportMessage{helloOf("a"), proxy(proxyOf("default/web", strings.Repeat("x", 9<<20)))}, codes.ResourceExhausted, "larger than max"},
		}
		for name, tc := range tests {
			stream := c.report(b)
			for _, m := range tc.messages {
				_ = stream.Send(m) // Recv returns the error
			}
			if _, err := stream.Recv(); status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: the stream ends with %v, want %s with %q", name, err, tc.code, tc.want)
			}
		}
		if got := b.reportsOf("default/web"); got != "" {
			t.Errorf("reports %q", got)
		}
	})
}

// TestBadProxies has a replica send invalid reports about proxies. They are counted and ignored, but its valid reports
// are used.
func TestBadProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		stream := c.report(b)
		_ = stream.Send(helloOf("a"))
		long := strings.Repeat("x", 2000)
		bad := []*peerv1.Proxy{
			proxyOf("web", ""), proxyOf("default/"+long, ""), proxyOf("default/web", long),
			{Id: "default/web", Listeners: &peerv1.Listeners{Accepted: []string{"x"}}},
			{Id: "default/web", Listeners: &peerv1.Listeners{Refused: map[string]string{"10.0.0.1:80": long}}},
			{Id: "default/web", Listeners: &peerv1.Listeners{Order: &peerv1.Order{Time: -1}}},
			{Id: "default/web", Liveness: &peerv1.Liveness{Order: &peerv1.Order{Count: -1}}},
			{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: make([]*agentv1.HeldLiveness, agentv1.MaxReported+1)}}},
			{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: long}}}}},
			{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Failing: &durationpb.Duration{Nanos: -1, Seconds: 1}}}}}},
		}
		for _, p := range append(bad, proxyOf("default/good", "one")) {
			if err := stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: p}}); err != nil {
				t.Fatal(err)
			}
		}
		b.wantReports(t, "default/good", "a one")
		if got := b.refused(t); got != float64(len(bad)) || b.reportsOf("default/web") != "" {
			t.Errorf("%v rejections are counted, want %d; reports %q", got, len(bad), b.reportsOf("default/web"))
		}
	})
}

// TestManyProxies has a replica report more proxies than allowed: only the allowed number is kept.
func TestManyProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		stream := c.report(b)
		_ = stream.Send(helloOf("a"))
		for i := range 20_001 {
			if stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: proxyOf(fmt.Sprint("default/", i), "")}}) != nil {
				break
			}
		}
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the stream ends with %v", err)
		}
		if n := len(b.HeardProxies()); n != 20_000 {
			t.Errorf("%d proxies are kept", n)
		}
	})
}
