package serving

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Names of the files in the directory, as in cert-manager's and kubernetes.io/tls Secrets.
const (
	fileCertificate = "tls.crt"
	fileKey         = "tls.key"
	fileCA          = "ca.crt"
)

// reread is the interval at which the files are read. Kubelets update a Secret's files about once a minute.
const reread = 10 * time.Second

// FilesOptions are the options of Files.
type FilesOptions struct {
	// Directory with tls.crt (the certificate and any intermediates), tls.key, and ca.crt. Required.
	Directory string
	// NeedCA requires ca.crt, because clients have no other source of the CA.
	NeedCA bool
	// Name for which the certificate must be valid. Required.
	Name string
	// Logger. Required.
	Logger *slog.Logger
	// Registerer of the metrics. Default: no metrics.
	Registerer prometheus.Registerer
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// Files is a serving certificate that another program keeps and renews in a directory. It may be used from any
// goroutine.
type Files struct {
	o       FilesOptions
	changed run.Signal
	current atomic.Pointer[content]
	problem string // last logged problem; only for Run
}

// content is the content of the files.
type content struct {
	certificate *tls.Certificate
	ca          []byte // PEM; nil if the file is missing
	// texts of the files, to detect changes.
	texts [3][]byte
}

// OpenFiles reads the files. It uses even an expired certificate, and logs an error, since the rest of the process must
// work although the certificate was not renewed. An error names the file.
func OpenFiles(o FilesOptions) (*Files, error) {
	f := &Files{o: o, changed: run.NewSignal()}
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	f.current.Store(c)
	return f, f.registerExpiry()
}

// registerExpiry registers the metrics of the certificate's remaining and total validity.
func (f *Files) registerExpiry() error {
	if f.o.Registerer == nil {
		return nil
	}
	leaf := func() *x509.Certificate { return f.current.Load().certificate.Leaf }
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_webhook_certificate_expiry_seconds",
		Help: "Seconds until the webhook's certificate from files expires.",
	}, func() float64 { return time.Until(leaf().NotAfter).Seconds() })
	validity := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_webhook_certificate_validity_seconds",
		Help: "Total validity of the webhook's certificate from files in seconds, from notBefore to notAfter.",
	}, func() float64 { return leaf().NotAfter.Sub(leaf().NotBefore).Seconds() })
	for _, c := range []prometheus.Collector{expiry, validity} {
		if err := f.o.Registerer.Register(c); err != nil {
			return fmt.Errorf("register metrics of the certificate's expiry: %w", err)
		}
	}
	return nil
}

// Run rereads the files until ctx ends, and then returns nil. It logs problems, and keeps using the last valid
// certificate.
func (f *Files) Run(ctx context.Context) error {
	for range run.Every(ctx, reread) {
		f.o.Loop.Begin()
		f.reload(ctx)
		f.o.Loop.End()
	}
	return nil
}

func (f *Files) reload(ctx context.Context) {
	before := f.current.Load()
	now, err := f.read()
	if err == nil && !equal(now.texts, before.texts) {
		f.current.Store(now)
		f.o.Logger.InfoContext(ctx, "loaded webhook certificate", "directory", f.o.Directory,
			"expires", now.certificate.Leaf.NotAfter)
		f.changed.Set()
	}
	if err == nil {
		err = f.current.Load().verify(f.o.Name)
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != f.problem {
		f.o.Logger.ErrorContext(ctx, "invalid webhook certificate, keeping the one in use", "err", err)
	}
	f.problem = problem
}

func equal(a, b [3][]byte) bool {
	return bytes.Equal(a[0], b[0]) && bytes.Equal(a[1], b[1]) && bytes.Equal(a[2], b[2])
}

// read returns the files' content, if it is valid. Kubelets replace all files of a Secret at once, perhaps between two
// reads here. Then certificate and key do not match, and the next read corrects this.
func (f *Files) read() (*content, error) {
	c := &content{}
	for i, name := range []string{fileCertificate, fileKey, fileCA} {
		text, err := os.ReadFile(filepath.Join(f.o.Directory, name))
		if err != nil && (f.o.NeedCA || name != fileCA || !errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		c.texts[i] = text
	}
	certificate, err := tls.X509KeyPair(c.texts[0], c.texts[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s in %s: %w", fileCertificate, fileKey, f.o.Directory, err)
	}
	c.certificate, c.ca = &certificate, c.texts[2]
	if err := c.verify(f.o.Name); err != nil && !errors.Is(err, errExpired) {
		return nil, fmt.Errorf("%s in %s: %w", fileCertificate, f.o.Directory, err)
	}
	return c, nil
}

// verify checks the certificate as an API server with the CA does.
func (c *content) verify(name string) error {
	return Verify(c.certificate, Bundle{Name: fileCA, PEM: c.ca}, name, time.Now())
}

// Bundle has the CAs with which a client verifies a certificate. Name is for errors.
type Bundle struct {
	Name string
	PEM  []byte
}

// Verify checks a certificate, with its Leaf, as a client does that has these CAs and connects to this name. A nil
// bundle means that another program has the CA: then Verify checks only the certificate itself.
func Verify(certificate *tls.Certificate, cas Bundle, name string, now time.Time) error {
	leaf := certificate.Leaf
	if err := leaf.VerifyHostname(name); err != nil {
		return err //nolint:wrapcheck // it names the certificate
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return expired(leaf)
	}
	if cas.PEM == nil {
		return nil
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: name, CurrentTime: now}
	if !o.Roots.AppendCertsFromPEM(cas.PEM) {
		return errors.New(cas.Name + " has no certificate")
	}
	for _, der := range certificate.Certificate[1:] {
		between, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("intermediate certificate: %w", err)
		}
		o.Intermediates.AddCert(between)
	}
	_, err := leaf.Verify(o)
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		err = expired(invalid.Cert) // without the current time, which would make each error differ
	}
	if err != nil {
		return fmt.Errorf("%s does not verify it: %w", cas.Name, err)
	}
	return nil
}

// errExpired means that a certificate is expired or not yet valid.
var errExpired = errors.New("not valid now")

func expired(c *x509.Certificate) error {
	return fmt.Errorf("%w: %s is valid from %s to %s", errExpired, cmp.Or(c.Subject.String(), "the certificate"),
		c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
}

// CA returns the content of ca.crt, nil if the file is missing.
func (f *Files) CA() []byte { return f.current.Load().ca }

// Changed receives after the files have changed.
func (f *Files) Changed() <-chan struct{} { return f.changed }

// TLS returns a configuration with the certificate, without client certificates.
func (f *Files) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12, // some API servers need TLS 1.2
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.current.Load().certificate, nil },
	}
}
