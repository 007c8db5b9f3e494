package dpagent_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// call connects to Envoy with mTLS as a proxy of the CA by, and returns the certificate that it showed.
func call(t testing.TB, port int, by *authority) (*x509.Certificate, error) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := by.sign(t, key.Public(), time.Hour, "client", "spiffe://default.test/workload/client")
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{
		InsecureSkipVerify: true, // what it shows is looked at by the test
		Certificates:       []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}},
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"); err != nil {
		return nil, err
	}
	if body, err := io.ReadAll(conn); !strings.HasSuffix(string(body), "\r\nhello") {
		return nil, fmt.Errorf("answer %q: %w", body, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

// newSecure is an agent whose Envoy asks for mTLS on the port.
func newSecure(t testing.TB) (*running, *controlPlane, int) {
	t.Helper()
	port := freePort(t)
	cp := newControlPlane(t, bootstrap(t, ports{MTLS: port}))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil })
	return r, cp, port
}

func renewNow() *agentv1.ControlMessage {
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	r, cp, port := newSecure(t)
	oldCA, newCA := cp.ca, newAuthority(t)
	before, err := call(t, port, oldCA)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, port, newCA); err == nil {
		t.Fatal("a client of an unknown CA was served")
	}

	both := bundleOf(oldCA, newCA)
	cp.set(func() { cp.trusted = []*authority{oldCA, newCA} })
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: both}}
	cp.expect(func(m *agentMessage) bool { return m.GetInUse().GetBundleId() == both.GetId() })
	eventually(t, 5*time.Second, func() string {
		if _, err := call(t, port, newCA); err != nil {
			return err.Error()
		}
		return ""
	})

	cp.set(func() { cp.ca = newCA })
	cp.send <- renewNow()
	use := cp.expect(func(m *agentMessage) bool { return m.GetInUse() != nil }).GetInUse()
	if use.GetLeafSerial() == before.SerialNumber.Text(16) {
		t.Errorf("InUse = %v, want another leaf than before", use)
	}
	eventually(t, 5*time.Second, func() string {
		shown, err := call(t, port, newCA)
		if err != nil {
			return err.Error()
		}
		if shown.SerialNumber.Text(16) != use.GetLeafSerial() {
			return "Envoy shows the old certificate"
		}
		return ""
	})

	alone := bundleOf(newCA)
	cp.set(func() { cp.trusted = []*authority{newCA} })
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Bundle{Bundle: alone}}
	cp.expect(func(m *agentMessage) bool { return m.GetInUse().GetBundleId() == alone.GetId() })
	eventually(t, 5*time.Second, func() string {
		if _, err := call(t, port, oldCA); err == nil {
			return "a client of the old CA is still served"
		}
		return ""
	})
	// The next session shows the new certificate, else the control plane would refuse it.
	cp.stop()
	cp.start()
	hello := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello()
	if got := hello.GetInUse(); got.GetLeafSerial() != use.GetLeafSerial() || got.GetBundleId() != alone.GetId() {
		t.Errorf("Hello = %v, want leaf %s and bundle %s", hello, use.GetLeafSerial(), alone.GetId())
	}
	_ = r
}

// TestSkippedProxyComesBack is a rotation that went on without this proxy: its certificate counts nowhere any more.
func TestSkippedProxyComesBack(t *testing.T) {
	t.Parallel()
	r, cp, port := newSecure(t)
	cp.stop()
	newCA := newAuthority(t)
	cp.set(func() { cp.ca, cp.trusted = newCA, []*authority{newCA} })
	cp.start()
	r.logged("joining again")
	eventually(t, 10*time.Second, func() string {
		if _, err := call(t, port, newCA); err != nil {
			return err.Error()
		}
		return ""
	})
	alone := bundleOf(newCA)
	cp.expect(func(m *agentMessage) bool {
		return m.GetHello().GetInUse().GetBundleId() == alone.GetId() || m.GetInUse().GetBundleId() == alone.GetId()
	})
}

func TestBrokenIdentityIsNotWritten(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spoil func(*testing.T, *controlPlane, *agentv1.Identity)
		want  string
	}{
		"certificate of another key": {
			spoil: func(t *testing.T, _ *controlPlane, id *agentv1.Identity) {
				key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				ca := newAuthority(t)
				id.CertificateChain = [][]byte{ca.sign(t, key.Public(), time.Hour, "web-1.default.proxy.sonde.internal", "spiffe://a/b")}
			},
			want: "it is for another key",
		},
		"bundle of another CA": {
			spoil: func(t *testing.T, _ *controlPlane, id *agentv1.Identity) { id.Bundle = bundleOf(newAuthority(t)) },
			want:  "certificate signed by unknown authority",
		},
		"certificate of another proxy": {
			spoil: func(t *testing.T, cp *controlPlane, id *agentv1.Identity) {
				leaf, err := x509.ParseCertificate(id.GetCertificateChain()[0])
				if err != nil {
					t.Fatal(err)
				}
				id.CertificateChain = [][]byte{cp.ca.sign(t, leaf.PublicKey, time.Hour, "web-2.default.proxy.sonde.internal", "spiffe://a/b")}
			},
			want: "its DNS names are",
		},
		"half a certificate": {
			spoil: func(_ *testing.T, _ *controlPlane, id *agentv1.Identity) {
				id.CertificateChain[0] = id.CertificateChain[0][:100]
			},
			want: "read certificate: certificate 0",
		},
		"nothing": {
			spoil: func(_ *testing.T, _ *controlPlane, id *agentv1.Identity) { id.CertificateChain, id.Bundle = nil, nil },
			want:  "0 certificates",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, cp, port := newSecure(t)
			files := map[string]string{}
			for _, name := range []string{"sds/identity.json", "sds/ca.json"} {
				data, err := os.ReadFile(filepath.Join(r.dir, name))
				if err != nil {
					t.Fatal(err)
				}
				files[name] = string(data)
			}
			cp.set(func() { cp.spoil = func(id *agentv1.Identity) { tc.spoil(t, cp, id) } })
			cp.send <- renewNow()
			r.logged(tc.want)
			for name, want := range files {
				data, err := os.ReadFile(filepath.Join(r.dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if string(data) != want {
					t.Errorf("%s was changed", name)
				}
			}
			if _, err := call(t, port, cp.ca); err != nil {
				t.Errorf("call after the broken renewal: %v", err)
			}
			// It is tried again until it works.
			cp.set(func() { cp.spoil = nil })
			r.logged("certificate renewed")
			if code, body := r.get("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz = %d %s", code, body)
			}
			if strings.Contains(r.logs.String(), "PRIVATE KEY") {
				t.Error("a key is in the log")
			}
		})
	}
}

// TestSecretSpoilt is somebody else who spoils the file: Envoy prints it into its log, which the agent forwards.
func TestSecretSpoilt(t *testing.T) {
	t.Parallel()
	r, cp, port := newSecure(t)
	path := filepath.Join(r.dir, "sds/identity.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".tmp", data[:len(data)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	r.logged("withheld")
	if log := r.logs.String(); strings.Contains(log, "PRIVATE") || strings.Contains(log, string(data[len(data)-80:len(data)-60])) {
		t.Error("a key is in the log")
	}
	if _, err := call(t, port, cp.ca); err != nil {
		t.Errorf("call with the file spoilt: %v", err)
	}
	cp.send <- renewNow()
	r.logged("certificate renewed")
}

func TestRenewalInTime(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	cp := newControlPlane(t, bootstrap(t, ports{MTLS: port}))
	cp.life = 30 * time.Second // renewed after about 19 s, as it begins 1 s before it is made
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	first, err := call(t, port, cp.ca)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 90*time.Second, func() string {
		began := time.Now()
		shown, err := call(t, port, cp.ca)
		if err != nil {
			t.Fatalf("call during renewals: %v", err)
		}
		if began.After(shown.NotAfter) {
			t.Fatalf("an expired certificate was shown, %s after its end", began.Sub(shown.NotAfter))
		}
		if time.Now().Before(first.NotAfter.Add(3 * time.Second)) {
			return "going on"
		}
		return ""
	})
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d %s", code, body)
	}
	if strings.Contains(r.logs.String(), "joining again") {
		t.Error("a certificate expired before it was renewed")
	}
}

// TestExpired is a control plane that is away for longer than the certificate lasts.
func TestExpired(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	cp := newControlPlane(t, bootstrap(t, ports{MTLS: port}))
	cp.life = 10 * time.Second
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	cp.stop()
	eventually(t, time.Minute, func() string {
		code, body := r.get("/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "the certificate expired at") {
			return ""
		}
		return body
	})
	cp.set(func() { cp.life = time.Hour })
	cp.start()
	r.waitReady()
	if _, err := call(t, port, cp.ca); err != nil {
		t.Error(err)
	}
}

func TestUnknownMessagesAreCounted(t *testing.T) {
	t.Parallel()
	r, cp, _ := newSecure(t)
	cp.send <- &agentv1.ControlMessage{}
	cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Welcome{Welcome: &agentv1.Welcome{Features: []string{agentv1.FeatureInbounds, "later"}}}}
	later := renewNow()
	later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	cp.send <- later
	cp.expect(func(m *agentMessage) bool { return m.GetInUse() != nil }) // the session goes on
	_, body := r.get("/metrics")
	for _, want := range []string{"messages", "features", "fields"} {
		if want := "sonde_dpagent_session_unknown_" + want + "_total 1"; !strings.Contains(body, want) {
			t.Errorf("/metrics = %s, want %s", body, want)
		}
	}
}
