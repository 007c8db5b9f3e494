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
	"time"

	"github.com/sonde-mesh/sonde/dpagent"
)

// joinOnce runs an agent until it is ready, and returns the secret that it leaves behind.
func joinOnce(t *testing.T, o dpagent.Options) []byte {
	t.Helper()
	r := startAgent(t, o)
	r.waitReady()
	r.cancel()
	r.waitEnd(20 * time.Second)
	secret, err := os.ReadFile(filepath.Join(o.WorkDir, "sds", "identity.json"))
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestJoinsWithStoredCertificate restarts an agent whose token is no longer good. Each start has a key of its own.
func TestJoinsWithStoredCertificate(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	before := joinOnce(t, o)
	for name, token := range map[string]string{"expired": "bad", "empty": "", "gone": "-"} {
		if err := os.WriteFile(o.TokenFile, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if token == "-" {
			if err := os.Remove(o.TokenFile); err != nil {
				t.Fatal(err)
			}
		}
		after := joinOnce(t, o)
		if keyOf(t, before) == keyOf(t, after) {
			t.Errorf("token %s: the key is the one of the start before", name)
		}
		before = after
	}
}

// inline is what a field of a secret file has, in PEM.
type inline struct {
	PEM string `json:"inline_string"`
}

// partsOf returns the certificate and the private key of a secret file.
func partsOf(t *testing.T, secret []byte) (chain, key string) {
	t.Helper()
	var file struct {
		Resources []struct {
			Certificate struct {
				Chain inline `json:"certificate_chain"`
				Key   inline `json:"private_key"`
			} `json:"tls_certificate"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(secret, &file); err != nil || len(file.Resources) != 1 {
		t.Fatalf("the secret has %d resources, %v", len(file.Resources), err)
	}
	parts := file.Resources[0].Certificate
	if parts.Chain.PEM == "" || parts.Key.PEM == "" {
		t.Fatal("the secret has no certificate or no key")
	}
	return parts.Chain.PEM, parts.Key.PEM
}

func keyOf(t *testing.T, secret []byte) string {
	t.Helper()
	_, key := partsOf(t, secret)
	return key
}

// expire puts a certificate that has expired into the secret of an agent that has ended.
func expire(t *testing.T, cp *controlPlane, o *dpagent.Options) {
	t.Helper()
	spoilSecret(t, o, func(secret []byte) []byte {
		chain, key := partsOf(t, secret)
		pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		leaf := cp.ca.sign(t, pair.Leaf.PublicKey, 0, pair.Leaf.DNSNames[0], pair.Leaf.URIs[0].String())
		was, errWas := json.Marshal(inline{chain})
		is, errIs := json.Marshal(inline{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf}))})
		if err := errors.Join(errWas, errIs); err != nil || bytes.Count(secret, was) != 1 {
			t.Fatalf("the certificate is %d times in the secret, %v", bytes.Count(secret, was), err)
		}
		return bytes.Replace(secret, was, is, 1)
	})
}

// TestStoredCertificateNotUsed restarts an agent with a certificate that is not good any more: the token decides.
func TestStoredCertificateNotUsed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		harm func(t *testing.T, cp *controlPlane, o *dpagent.Options)
		log  string
	}{
		"refused by the control plane": {func(t *testing.T, cp *controlPlane, _ *dpagent.Options) {
			ca := newAuthority(t)
			cp.set(func() { cp.ca, cp.trusted = ca, []*authority{ca} })
		}, "control plane refuses the certificate in the work directory, joined with the token"},
		"of another dataplane": {func(_ *testing.T, _ *controlPlane, o *dpagent.Options) {
			o.Name = "web-2"
		}, "its DNS names are"},
		"of another CA than the one beside it": {func(t *testing.T, _ *controlPlane, o *dpagent.Options) {
			ca := filepath.Join(o.WorkDir, "sds", "ca.json")
			other := newControlPlane(t, bootstrap(t, ports{}))
			other.start()
			theirs := options(t, other)
			joinOnce(t, theirs)
			data, err := os.ReadFile(filepath.Join(theirs.WorkDir, "sds", "ca.json"))
			if err := errors.Join(err, os.WriteFile(ca, data, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "certificate signed by unknown authority"},
		"cut": {func(t *testing.T, _ *controlPlane, o *dpagent.Options) {
			spoilSecret(t, o, func(secret []byte) []byte { return secret[:len(secret)-5] })
		}, "it is not what this agent writes"},
		"without its key": {func(t *testing.T, _ *controlPlane, o *dpagent.Options) {
			spoilSecret(t, o, func(secret []byte) []byte {
				return bytes.ReplaceAll(secret, []byte("PRIVATE KEY"), []byte("SECRET KEY"))
			})
		}, "read sds/identity.json: tls: "},
		"without its CA": {func(t *testing.T, _ *controlPlane, o *dpagent.Options) {
			if err := os.WriteFile(filepath.Join(o.WorkDir, "sds", "ca.json"), []byte(`{"resources":[{}]}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "certificate or CA is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cp := newControlPlane(t, bootstrap(t, ports{}))
			cp.start()
			o := options(t, cp)
			secret := joinOnce(t, o)
			tc.harm(t, cp, &o)
			r := startAgent(t, o)
			r.waitReady()
			if log := r.logs.String(); !strings.Contains(log, tc.log) {
				t.Errorf("the log does not say %q:\n%s", tc.log, log)
			}
			if line := strings.Split(keyOf(t, secret), "\n")[1]; strings.Contains(r.logs.String(), line) {
				t.Error("the log has the key in it")
			}
		})
	}
}

func spoilSecret(t *testing.T, o *dpagent.Options, spoil func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(o.WorkDir, "sds", "identity.json")
	secret, err := os.ReadFile(path)
	if err := errors.Join(err, os.WriteFile(path, spoil(secret), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestStoredCertificateExpires restarts an agent after its certificate has expired, with a bad token: it waits for a good one.
func TestStoredCertificateExpires(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	joinOnce(t, o)
	expire(t, cp, &o)
	if err := os.WriteFile(o.TokenFile, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startAgent(t, o)
	r.logged("certificate in the work directory not used, joining with the token")
	r.logged("certificate has expired")
	r.logged("control plane refuses this proxy")
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "bad token") {
		t.Errorf("/readyz = %d %q, want 503 that says why", code, body)
	}
	if err := os.WriteFile(o.TokenFile, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.waitReady()
}

// TestBothAreRefused shows both reasons.
func TestBothAreRefused(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	joinOnce(t, o)
	ca := newAuthority(t)
	cp.set(func() { cp.ca, cp.trusted, cp.token = ca, []*authority{ca}, "another" })
	r := startAgent(t, o)
	eventually(t, 10*time.Second, func() string {
		code, body := r.get("/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "bad token; with the certificate in the work directory: ") &&
			strings.Contains(body, "unknown authority") {
			return ""
		}
		return fmt.Sprint(code, " ", body)
	})
}
