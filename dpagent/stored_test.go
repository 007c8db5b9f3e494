package dpagent_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

type options = dpagent.Options

// joinOnce runs an agent until it is ready, and returns the secret that it leaves behind.
func (w *world) joinOnce(o options) []byte {
	w.t.Helper()
	r := w.run(o)
	r.waitReady()
	r.end()
	return r.readFile(mesh.FileIdentity)
}

func writeToken(t *testing.T, o options, token string) {
	t.Helper()
	if err := os.WriteFile(o.TokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func keyOf(t *testing.T, text []byte) string {
	t.Helper()
	return parseSecret(t, text).Resources[0].Certificate.Key.PEM
}

// TestJoinsWithStoredCertificate restarts an agent whose token is no longer valid. Each start uses a new key.
func TestJoinsWithStoredCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Start()
		o := w.options()
		before := w.joinOnce(o)
		for name, token := range map[string]string{"expired": "bad", "empty": "", "gone": "-"} {
			writeToken(t, o, token)
			if token == "-" {
				if err := os.Remove(o.TokenFile); err != nil {
					t.Fatal(err)
				}
			}
			after := w.joinOnce(o)
			if keyOf(t, before) == keyOf(t, after) {
				t.Errorf("token %s: the key is from the previous start", name)
			}
			before = after
		}
	})
}

// spoilSecret changes the secret of an ended agent.
func spoilSecret(t *testing.T, o options, spoil func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(o.WorkDir, mesh.FileIdentity)
	text, err := os.ReadFile(path)
	if err := errors.Join(err, os.WriteFile(path, spoil(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// expire puts an expired certificate into the secret of an ended agent.
func (w *world) expire(o options) {
	w.t.Helper()
	spoilSecret(w.t, o, func(text []byte) []byte {
		parts := parseSecret(w.t, text).Resources[0].Certificate
		pair, err := tls.X509KeyPair([]byte(parts.Chain.PEM), []byte(parts.Key.PEM))
		if err != nil {
			w.t.Fatal(err)
		}
		leaf := w.State().CA.Sign(w.t, pair.Leaf.PublicKey, 0, pair.Leaf.DNSNames[0], pair.Leaf.URIs[0].String())
		was, errWas := json.Marshal(parts.Chain)
		is, errIs := json.Marshal(inline{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf}))})
		if err := errors.Join(errWas, errIs); err != nil || bytes.Count(text, was) != 1 {
			w.t.Fatalf("the secret has the certificate %d times, %v", bytes.Count(text, was), err)
		}
		return bytes.Replace(text, was, is, 1)
	})
}

// setCA replaces the CA, and trusts only the new one.
func (w *world) setCA(ca *controlplanetest.Authority) {
	w.Set(func(s *controlplanetest.State) { s.CA, s.Trusted = ca, []*controlplanetest.Authority{ca} })
}

// TestStoredCertificateNotUsed restarts an agent whose certificate is no longer valid, so that it uses the token.
func TestStoredCertificateNotUsed(t *testing.T) {
	tests := map[string]struct {
		harm func(w *world, o *options)
		log  string
	}{
		"refused by the control plane": {
			func(w *world, _ *options) { w.setCA(controlplanetest.NewAuthority(w.t)) },
			"control plane rejected the certificate in the work directory, joined with the token",
		},
		"of another dataplane": {func(_ *world, o *options) { o.Name = "web-2" }, "its DNS names are"},
		"of another CA than the one beside it": {func(w *world, o *options) {
			other := newWorld(w.t)
			other.Start()
			theirs := other.options()
			other.joinOnce(theirs)
			data, err := os.ReadFile(filepath.Join(theirs.WorkDir, mesh.FileCA))
			if err := errors.Join(err, os.WriteFile(filepath.Join(o.WorkDir, mesh.FileCA), data, 0o600)); err != nil {
				w.t.Fatal(err)
			}
		}, "certificate signed by unknown authority"},
		"cut": {func(w *world, o *options) {
			spoilSecret(w.t, *o, func(text []byte) []byte { return text[:len(text)-5] })
		}, "not written by this agent"},
		"without its key": {func(w *world, o *options) {
			spoilSecret(w.t, *o, func(text []byte) []byte {
				return bytes.ReplaceAll(text, []byte("PRIVATE KEY"), []byte("SECRET KEY"))
			})
		}, "read sds/identity.json: tls: "},
		"without its CA": {func(w *world, o *options) {
			if err := os.WriteFile(filepath.Join(o.WorkDir, mesh.FileCA), []byte(`{"resources":[{}]}`), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}, "certificate or CA is missing"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(t)
			w.Start()
			o := w.options()
			text := w.joinOnce(o)
			tc.harm(w, &o)
			r := w.run(o)
			r.waitReady()
			if log := r.logs.String(); !strings.Contains(log, tc.log) {
				t.Errorf("no %q in the log:\n%s", tc.log, log)
			}
			if line := strings.Split(keyOf(t, text), "\n")[1]; strings.Contains(r.logs.String(), line) {
				t.Error("the log contains the key")
			}
		})
	}
}

// TestStoredCertificateExpires restarts an agent after its certificate has expired, with an invalid token: the agent
// waits for a valid one.
func TestStoredCertificateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Start()
		o := w.options()
		w.joinOnce(o)
		w.expire(o)
		writeToken(t, o, "bad")
		r := w.run(o)
		r.logged("certificate in the work directory unusable, joining with the token")
		r.logged("certificate has expired")
		r.becomesReadyWithAToken(o)
	})
}

// TestBothAreRefused checks that the error has both reasons.
func TestBothAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Start()
		o := w.options()
		w.joinOnce(o)
		w.setCA(controlplanetest.NewAuthority(t))
		w.Set(func(s *controlplanetest.State) { s.Token = "another" })
		r := w.run(o)
		eventually(t, func() string {
			code, body := r.get("/readyz")
			if code == http.StatusServiceUnavailable && strings.Contains(body, "bad token; with the certificate in the work directory: ") &&
				strings.Contains(body, "unknown authority") {
				return ""
			}
			return fmt.Sprint(code, " ", body)
		})
	})
}
