// Package admission measures how fast the webhook admits pods over TLS.
package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/webhook"
)

// rate is how many pods are admitted per second.
const rate = 500

// BenchmarkAdmissionsOverTLS sends admission reviews of a small pod as an API server does: on one HTTP/2 connection.
// It reports their durations, measured from the scheduled time of each.
func BenchmarkAdmissionsOverTLS(b *testing.B) {
	admit := serve(b)
	if err := admit(); err != nil { // opens the connection
		b.Fatal(err)
	}
	took := make([]time.Duration, b.N)
	var group errgroup.Group
	start := time.Now()
	b.ResetTimer()
	for i := range b.N {
		due := start.Add(time.Duration(i) * time.Second / rate)
		<-time.After(time.Until(due))
		group.Go(func() error {
			err := admit()
			took[i] = time.Since(due)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	for name, share := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99, "max-ms": 1} {
		b.ReportMetric(float64(took[int(share*float64(b.N-1))].Microseconds())/1000, name)
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "admissions/s")
}

// serve starts a webhook, and returns a function that has it admit a pod.
func serve(b *testing.B) (admit func() error) {
	b.Helper()
	config, roots := certificate.Server(b, "webhook")
	s, err := webhook.NewServer(webhook.ServerOptions{
		TLS: config, Log: slog.New(slog.DiscardHandler),
		Namespace: func(context.Context, string) (webhook.Namespace, error) {
			return webhook.Namespace{Name: "shop", Labels: map[string]string{"kuma.io/sidecar-injection": "enabled"}}, nil
		},
		Meshes:     func(context.Context, string) ([]string, error) { return []string{"default"}, nil },
		Mode:       func(string) mesh.MTLSMode { return "" },
		InUse:      func(string) (int, error) { return 0, nil },
		PodExists:  func(string, string) (bool, error) { return false, nil },
		ServiceIPs: func(string, string) ([]string, error) { return nil, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "webhook", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	client, review := &http.Client{Transport: transport, Timeout: time.Minute}, podReview(b)
	return func() error {
		answer, err := client.Post("https://"+l.Addr().String()+webhook.PathInject, "application/json", bytes.NewReader(review))
		if err != nil {
			return err
		}
		defer answer.Body.Close() //nolint:errcheck // read to its end
		text, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, text)
		}
		return err
	}
}

// podReview returns the AdmissionReview for the creation of the pod that the benchmarks of package webhook
// also use.
func podReview(b *testing.B) []byte {
	b.Helper()
	text, err := os.ReadFile("../../../webhook/testdata/bench/pod.yaml")
	if err != nil {
		b.Fatal(err)
	}
	pod, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		b.Fatal(err)
	}
	return fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1","kind":{"group":"","version":"v1","kind":"Pod"},`+
		`"resource":{"group":"","version":"v1","resource":"pods"},"namespace":"shop","operation":"CREATE","object":%s}}`, pod)
}
