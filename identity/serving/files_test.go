package serving

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
)

const webhookName = "sonde-cp.sonde-system.svc"

// pair returns tls.crt, tls.key and ca.crt of a new CA. The certificate is for a name, and valid for an hour from a
// time.
func pair(t *testing.T, name string, from time.Time) [3][]byte {
	t.Helper()
	authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("test")}, from, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	leaf, err := authority.Sign(&x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key.Public(), from, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bundle, _ := authority.Encode()
	return [3][]byte{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), ca.EncodeKey(key), bundle}
}

// swap writes files into a directory like a kubelet: it replaces the link to the version's files.
func swap(t *testing.T, directory string, files [3][]byte) {
	t.Helper()
	version, err := os.MkdirTemp(directory, "..version") //nolint:usetesting // kubelets create it in this directory
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if files[i] == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(version, file), files[i], 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Symlink(filepath.Join("..data", file), filepath.Join(directory, file)) // exists since the first version
	}
	next := filepath.Join(directory, "..next")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(directory, "..data")); err != nil {
		t.Fatal(err)
	}
}

func TestOpenFilesNamesWhatIsWrong(t *testing.T) {
	now := time.Now()
	good, other := pair(t, webhookName, now), pair(t, webhookName, now)
	tests := map[string]struct {
		files  [3][]byte
		want   string // "" for no error
		needCA bool
	}{
		"good":                     {files: good, needCA: true},
		"without a CA":             {files: [3][]byte{good[0], good[1]}},
		"without the CA":           {[3][]byte{good[0], good[1]}, "ca.crt: no such file", true},
		"no certificate":           {[3][]byte{nil, good[1], good[2]}, "tls.crt: no such file", false},
		"no key":                   {[3][]byte{good[0], nil, good[2]}, "tls.key: no such file", false},
		"another key":              {[3][]byte{good[0], other[1], good[2]}, "private key does not match public key", false},
		"another CA":               {[3][]byte{good[0], good[1], other[2]}, "ca.crt does not verify it", false},
		"an invalid CA":            {[3][]byte{good[0], good[1], []byte("x")}, "ca.crt has no certificate", false},
		"a certificate of another": {pair(t, "web.shop.svc", now), "not " + webhookName, false},
		"no PEM":                   {[3][]byte{[]byte("x"), good[1], good[2]}, "failed to find any PEM data", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			swap(t, directory, tc.files)
			_, err := OpenFiles(FilesOptions{Directory: directory, Name: webhookName, NeedCA: tc.needCA, Logger: slog.New(slog.DiscardHandler)})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("OpenFiles() = %v, want %q", err, tc.want)
			}
		})
	}
}

// errorsOf returns the errors that were logged since the last time.
func errorsOf(log *logtest.Buffer) (errs []string) {
	for line := range strings.Lines(log.Take()) {
		if strings.Contains(line, "level=ERROR") {
			errs = append(errs, line)
		}
	}
	return errs
}

// checkExpired checks the metrics of a certificate that has just expired.
func checkExpired(t *testing.T, metrics prometheus.Gatherer, leaf *x509.Certificate) {
	t.Helper()
	all, err := metrics.Gather()
	if err != nil || len(all) != 2 {
		t.Fatalf("there are %d metrics: %v", len(all), err)
	}
	if n := all[0].GetMetric()[0].GetGauge().GetValue(); n > 0 || n < -1000 {
		t.Errorf("the certificate expires in %v s, want some seconds ago", n)
	}
	if n := all[1].GetMetric()[0].GetGauge().GetValue(); n <= 0 || n != leaf.NotAfter.Sub(leaf.NotBefore).Seconds() {
		t.Errorf("the certificate was made for %v s, want from %s to %s", n, leaf.NotBefore, leaf.NotAfter)
	}
}

func TestFilesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		directory, log, metrics := t.TempDir(), &logtest.Buffer{}, prometheus.NewRegistry()
		first := pair(t, webhookName, time.Now())
		swap(t, directory, first)
		f, err := OpenFiles(FilesOptions{Directory: directory, Name: webhookName, Logger: slog.New(slog.NewTextHandler(log, nil)), Registerer: metrics})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		// after waits for pause, and then checks the CA and the logged errors.
		after := func(pause time.Duration, want [3][]byte, problems ...string) {
			t.Helper()
			<-time.After(pause)
			synctest.Wait()
			errs := errorsOf(log)
			if len(errs) != len(problems) || len(errs) == 1 && !strings.Contains(errs[0], problems[0]) {
				t.Errorf("errors %q, want %q", errs, problems)
			}
			c, err := f.TLS().GetCertificate(nil)
			if err != nil || !bytes.Equal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw}), want[0]) || !bytes.Equal(f.CA(), want[2]) {
				t.Errorf("not the certificate that was wanted: %v", err)
			}
		}
		after(time.Minute, first)

		second := pair(t, webhookName, time.Now())
		swap(t, directory, second)
		after(time.Minute, second)
		select {
		case <-f.Changed():
		default:
			t.Error("the change was not announced")
		}

		swap(t, directory, [3][]byte{second[0], first[1], second[2]})
		after(time.Minute, second, "private key does not match")
		if err := os.Remove(filepath.Join(directory, "tls.crt")); err != nil {
			t.Fatal(err)
		}
		after(time.Minute, second, "tls.crt: no such file")
		swap(t, directory, second)
		after(time.Minute, second)
		after(time.Hour, second, "not valid now")
		checkExpired(t, metrics, f.current.Load().certificate.Leaf)
		third := pair(t, webhookName, time.Now())
		swap(t, directory, third)
		after(time.Minute, third)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
