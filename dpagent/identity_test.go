package dpagent_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// inline is the value of a field in a secret file, in PEM.
type inline struct {
	PEM string `json:"inline_string"`
}

// secret is a file from which Envoy reads its identity or its CAs.
type secret struct {
	Resources []struct {
		Certificate struct {
			Chain inline `json:"certificate_chain"`
			Key   inline `json:"private_key"`
		} `json:"tls_certificate"`
		Validation struct {
			CA inline `json:"trusted_ca"`
		} `json:"validation_context"`
	} `json:"resources"`
}

func parseSecret(t *testing.T, text []byte) secret {
	t.Helper()
	var s secret
	if err := json.Unmarshal(text, &s); err != nil || len(s.Resources) != 1 {
		t.Fatalf("the secret has %d resources, %v", len(s.Resources), err)
	}
	return s
}

// readFile reads a file of the agent's directory.
func (r *running) readFile(name string) []byte {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

func parsePEM(t *testing.T, text string) (all []*x509.Certificate) {
	t.Helper()
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
}

// leaf returns the certificate in Envoy's secret.
func (r *running) leaf() *x509.Certificate {
	r.t.Helper()
	return parsePEM(r.t, parseSecret(r.t, r.readFile(mesh.FileIdentity)).Resources[0].Certificate.Chain.PEM)[0]
}

// trusts fails the test unless Envoy trusts exactly these CAs.
func (r *running) trusts(when string, want ...*controlplanetest.Authority) {
	r.t.Helper()
	got := parsePEM(r.t, parseSecret(r.t, r.readFile(mesh.FileCA)).Resources[0].Validation.CA.PEM)
	if !slices.EqualFunc(got, want, func(c *x509.Certificate, a *controlplanetest.Authority) bool { return c.Equal(a.Cert) }) {
		r.t.Errorf("%s: Envoy trusts %d CAs, want these %d", when, len(got), len(want))
	}
}

func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		oldCA, newCA, before := w.State().CA, controlplanetest.NewAuthority(t), r.leaf()
		r.trusts("before", oldCA)
		trust := func(cas ...*controlplanetest.Authority) string {
			b := controlplanetest.BundleOf(cas...)
			w.Set(func(s *controlplanetest.State) { s.Trusted = cas })
			w.SendBundle(b)
			w.Expect(func(m *agentMessage) bool { return m.GetInUse().GetBundleId() == b.GetId() })
			r.trusts("when the agent reports it", cas...)
			return b.GetId()
		}
		trust(oldCA, newCA)

		w.Set(func(s *controlplanetest.State) { s.CA = newCA })
		w.SendRenewNow()
		use := w.Expect(func(m *agentMessage) bool { return m.GetInUse() != nil }).GetInUse()
		leaf := r.leaf()
		if serial := leaf.SerialNumber.Text(16); serial != use.GetLeafSerial() || serial == before.SerialNumber.Text(16) || leaf.CheckSignatureFrom(newCA.Cert) != nil {
			t.Errorf("InUse = %v, Envoy uses %s after %x, want a leaf of the new CA", use, serial, before.SerialNumber)
		}
		alone := trust(newCA)
		// The next session uses the new certificate; otherwise the control plane would reject it.
		w.Restart()
		if got := w.ExpectHello().GetInUse(); got.GetLeafSerial() != use.GetLeafSerial() || got.GetBundleId() != alone {
			t.Errorf("Hello has %v, want leaf %s and bundle %s", got, use.GetLeafSerial(), alone)
		}
	})
}

// TestSkippedProxyComesBack finishes a rotation without this proxy, so that its certificate is no longer accepted.
func TestSkippedProxyComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		w.Stop()
		newCA := controlplanetest.NewAuthority(t)
		w.Set(func(s *controlplanetest.State) { s.CA, s.Trusted = newCA, []*controlplanetest.Authority{newCA} })
		w.Start()
		r.logged("joining again")
		id := controlplanetest.BundleOf(newCA).GetId()
		w.Expect(func(m *agentMessage) bool {
			return m.GetHello().GetInUse().GetBundleId() == id || m.GetInUse().GetBundleId() == id
		})
		r.trusts("afterwards", newCA)
	})
}

func TestBrokenIdentityIsNotWritten(t *testing.T) {
	const life = time.Hour
	tests := map[string]struct {
		spoil func(*testing.T, controlplanetest.State, *agentv1.Identity)
		want  string
	}{
		"certificate of another key": {
			spoil: func(t *testing.T, _ controlplanetest.State, id *agentv1.Identity) {
				ca, key := controlplanetest.NewAuthority(t), controlplanetest.NewKey(t)
				id.CertificateChain = [][]byte{ca.Sign(t, key.Public(), life, "web-1.default.proxy.sonde.internal", "spiffe://a/b")}
			},
			want: "wrong key",
		},
		"bundle of another CA": {
			spoil: func(t *testing.T, _ controlplanetest.State, id *agentv1.Identity) {
				id.Bundle = controlplanetest.BundleOf(controlplanetest.NewAuthority(t))
			},
			want: "certificate signed by unknown authority",
		},
		"certificate of another proxy": {
			spoil: func(t *testing.T, s controlplanetest.State, id *agentv1.Identity) {
				leaf, err := x509.ParseCertificate(id.GetCertificateChain()[0])
				if err != nil {
					t.Fatal(err)
				}
				id.CertificateChain = [][]byte{s.CA.Sign(t, leaf.PublicKey, life, "web-2.default.proxy.sonde.internal", "spiffe://a/b")}
			},
			want: "its DNS names are",
		},
		"half a certificate": {
			spoil: func(_ *testing.T, _ controlplanetest.State, id *agentv1.Identity) {
				id.CertificateChain[0] = id.CertificateChain[0][:100]
			},
			want: "read certificate: certificate 0",
		},
		"nothing": {
			spoil: func(_ *testing.T, _ controlplanetest.State, id *agentv1.Identity) {
				id.CertificateChain, id.Bundle = nil, nil
			},
			want: "0 certificates",
		},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(t)
			r := w.start()
			files := map[string]string{mesh.FileIdentity: "", mesh.FileCA: ""}
			for name := range files {
				files[name] = string(r.readFile(name))
			}
			state := w.State()
			w.Set(func(s *controlplanetest.State) { s.Spoil = func(id *agentv1.Identity) { tc.spoil(t, state, id) } })
			w.SendRenewNow()
			r.logged(tc.want)
			for name, want := range files {
				if string(r.readFile(name)) != want {
					t.Errorf("%s was changed", name)
				}
			}
			// The agent retries until it succeeds.
			w.Set(func(s *controlplanetest.State) { s.Spoil = nil })
			r.logged("renewed certificate")
			if code, body := r.get("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz = %d %s", code, body)
			}
			if strings.Contains(r.logs.String(), "PRIVATE KEY") {
				t.Error("a key is in the log")
			}
		})
	}
}

func TestRenewalInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 30 * time.Second
		w := newWorld(t)
		w.Set(func(s *controlplanetest.State) { s.Life = life })
		r := w.start()
		leaves := map[string]bool{}
		for began := time.Now(); time.Since(began) < 10*life; time.Sleep(poll) {
			leaf := r.leaf()
			leaves[leaf.SerialNumber.Text(16)] = true
			if left := time.Until(leaf.NotAfter); left < life/4 {
				t.Fatalf("Envoy uses a certificate that has %s left", left)
			}
		}
		if n := len(leaves); n < 11 || n > 20 {
			t.Errorf("%d certificates in ten validity periods", n)
		}
		if code, body := r.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz = %d %s", code, body)
		}
		if strings.Contains(r.logs.String(), "joining again") {
			t.Error("a certificate expired before it was renewed")
		}
	})
}

// TestExpired stops the control plane for longer than the certificate is valid.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = time.Minute
		w := newWorld(t)
		w.Set(func(s *controlplanetest.State) { s.Life = life })
		r := w.start()
		w.Stop()
		end := r.leaf().NotAfter
		time.Sleep(time.Until(end) - time.Second)
		if code, body := r.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz = %d %s a second before the end of the certificate", code, body)
		}
		time.Sleep(2 * time.Second)
		if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "the certificate expired at") {
			t.Errorf("/readyz = %d %s, want 503 with the reason", code, body)
		}
		w.Start()
		r.waitReady()
		if !r.leaf().NotAfter.After(end) {
			t.Error("Envoy uses the old certificate")
		}
	})
}

func TestUnknownMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		w.Send <- &agentv1.ControlMessage{}
		w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Welcome{Welcome: &agentv1.Welcome{Features: []string{agentv1.FeatureInbounds, "later"}}}}
		later := &agentv1.ControlMessage{Message: &agentv1.ControlMessage_RenewNow{RenewNow: &agentv1.RenewNow{}}}
		later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		w.Send <- later
		w.Expect(func(m *agentMessage) bool { return m.GetInUse() != nil }) // the session is still open
		_, body := r.get("/metrics")
		for _, want := range []string{"messages", "features", "fields"} {
			if want := "sonde_dpagent_session_unknown_" + want + "_total 1"; !strings.Contains(body, want) {
				t.Errorf("/metrics = %s, want %s", body, want)
			}
		}
	})
}

// TestInboundsThatEnvoyRefuses checks that refused inbounds make the agent not ready, with the reason, until Envoy
// accepts them.
func TestInboundsThatEnvoyRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		say := func(accepted bool, reason string) {
			w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Inbounds{Inbounds: &agentv1.Inbounds{Accepted: accepted, Reason: reason}}}
		}
		say(false, "no such filter")
		eventually(t, func() string {
			if code, body := r.get("/readyz?verbose"); code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]inbounds failed: ") || !strings.Contains(body, "no such filter") {
				return fmt.Sprintf("/readyz is %d %s", code, body)
			}
			return ""
		})
		say(true, "")
		r.waitReady()
	})
}

// TestOutboundsThatEnvoyRefuses checks that refused outbounds cause only a warning with the reason, since callers of
// the proxy do not need its outbounds.
func TestOutboundsThatEnvoyRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, agentv1.FeatureOutbounds)
		r := w.start()
		says := func(want string) {
			t.Helper()
			eventually(t, func() string {
				if code, body := r.get("/readyz?verbose"); code != http.StatusOK || !strings.Contains(body, want) {
					return fmt.Sprintf("/readyz is %d %s", code, body)
				}
				return ""
			})
		}
		says("[!]outbounds warning: waiting for the control plane")
		w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Outbounds{Outbounds: &agentv1.Outbounds{Reason: "cannot bind"}}}
		says("[!]outbounds warning: cannot bind")
		w.Send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Outbounds{Outbounds: &agentv1.Outbounds{Accepted: true}}}
		says("[+]outbounds ok")
	})
}
