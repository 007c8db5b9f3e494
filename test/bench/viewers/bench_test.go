package viewers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/bench/proc"
)

const (
	// settle is how long the viewers read before the measurement, which lasts for measure.
	settle  = 10 * time.Second
	measure = 30 * time.Second
)

// BenchmarkViewers measures the control plane with viewers: the share of a processor that it uses, and the bytes that
// it sends.
func BenchmarkViewers(b *testing.B) {
	f := newFleet(b, 1000)
	for _, tc := range []struct {
		name    string
		changes int // per second, each of one agent
		viewers int
		follow  follow
	}{
		{"none", 0, 0, nil},
		{"poll/viewers=1", 0, 1, poll(9)},
		{"poll/viewers=20", 0, 20, poll(9)},
		{"poll without pauses/viewers=20", 0, 20, poll(0)},
		{"watch/viewers=1", 0, 1, watch},
		{"watch/viewers=20", 0, 20, watch},
		{"changes/none", 10, 0, nil},
		{"changes/poll/viewers=20", 10, 20, poll(9)},
		{"changes/watch/viewers=20", 10, 20, watch},
	} {
		b.Run(tc.name, func(b *testing.B) {
			for b.Loop() {
				stop := f.changes(tc.changes)
				f.view(b, tc.viewers, tc.follow)
				stop()
			}
		})
	}
}

// follow follows the mesh until ctx ends, and calls read after each reading.
type follow func(ctx context.Context, api adminv1.AdminServiceClient, read func(*status.Facts)) error

// poll reads as sondectl dashboard does, with a pause of idleShare times the length of a reading.
func poll(idleShare int) follow {
	return func(ctx context.Context, api adminv1.AdminServiceClient, read func(*status.Facts)) error {
		var asked time.Time
		for ctx.Err() == nil {
			began := time.Now()
			ask := time.Since(asked) >= 15*time.Second
			if ask {
				asked = began
			}
			r := status.ReadAll(ctx, api, ask)
			if err := r.Err(); err != nil {
				return err
			}
			read(r.Facts)
			if err := run.Sleep(ctx, max(time.Second, time.Duration(idleShare)*time.Since(began))); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

// watch follows the stream of changes, as sondectl dashboard does.
func watch(ctx context.Context, api adminv1.AdminServiceClient, read func(*status.Facts)) error {
	stream, err := status.Watch(ctx, api)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		r, err := stream.Next()
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return err
		}
		read(r.Facts)
	}
}

// view has viewers follow, and reports what that costs.
func (f *fleet) view(b *testing.B, viewers int, how follow) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var received, readings atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for i := range viewers {
		api, closed := f.dial(&received)
		group.Go(func() error {
			defer closed()
			if err := run.Sleep(ctx, time.Duration(i)*time.Second/time.Duration(viewers)); err != nil {
				return nil
			}
			err := how(ctx, api, func(facts *status.Facts) {
				if len(facts.Proxies) != len(f.change) || len(facts.Proxies[0].GetVerdicts().GetProbes()) != 3 {
					b.Errorf("a reading has %d proxies, the first is %v", len(facts.Proxies), facts.Proxies[0])
				}
				readings.Add(1)
				if i == 0 {
					f.seen(facts.Proxies)
				}
			})
			if ctx.Err() != nil {
				return nil
			}
			return err
		})
	}
	f.must(run.Sleep(ctx, settle))
	before, err := proc.CPU(f.machine.ControlPlane.PID())
	f.must(err)
	bytes, began, done := received.Load(), time.Now(), readings.Load()
	f.forget()
	f.must(run.Sleep(ctx, measure))
	after, err := proc.CPU(f.machine.ControlPlane.PID())
	f.must(err)
	took := time.Since(began).Seconds()
	memory, err := memorytest.Of(f.machine.ControlPlane.PID())
	f.must(err)
	b.ReportMetric(memory.RssAnon/1e6, "MB")
	b.ReportMetric(100*after.Since(before).Ran.Seconds()/took, "%core")
	b.ReportMetric(float64(received.Load()-bytes)/took/1e3, "kB/s")
	b.ReportMetric(float64(readings.Load()-done)/took/max(1, float64(viewers)), "readings/s/viewer")
	b.ReportMetric(0, "ns/op")
	f.report(b)
	cancel()
	f.must(group.Wait())
	if err := f.ended.Load(); err != nil {
		b.Fatal(*err)
	}
}

// dial connects a viewer with the admin token.
func (f *fleet) dial(received *atomic.Int64) (api adminv1.AdminServiceClient, closed func()) {
	ca, err := os.ReadFile(filepath.Join(f.machine.StateDir(), "serving-ca.crt"))
	f.must(err)
	token, err := os.ReadFile(filepath.Join(f.machine.StateDir(), "admin-token"))
	f.must(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		f.Fatal("the serving CA is no certificate")
	}
	authorize := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	conn, err := grpc.NewClient("passthrough:///"+f.machine.Admin,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			return metered{raw, received}, err
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return invoke(authorize(ctx), method, request, reply, conn, o...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(authorize(ctx), desc, conn, method, o...)
		}))
	f.must(err)
	return adminv1.NewAdminServiceClient(conn), func() { _ = conn.Close() }
}

// metered counts the bytes that a viewer receives, as they are on the wire.
type metered struct {
	net.Conn
	received *atomic.Int64
}

func (m metered) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	m.received.Add(int64(n))
	return n, err
}
