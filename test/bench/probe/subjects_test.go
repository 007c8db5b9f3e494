package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// Subjects. The naive proxy and the handler are roles.
const (
	subjectDirect  = "direct"   // the application without a proxy
	subjectNaive   = "naive"    // httputil.ReverseProxy with the kubelet's transport, which keeps no connections
	subjectHandler = "handler"  // dpagent/probe without a guard
	subjectSonde   = "sonde-dp" // guard and worker
)

func TestMain(m *testing.M) {
	roles := maps.Clone(apps)
	roles[subjectNaive], roles[subjectHandler] = serveNaive, serveHandler
	rig.Main(m, roles)
}

// subject is a program that answers probes.
type subject struct {
	address string // "" means the application itself
	pids    []int
}

// startSubject starts a subject with a probe table. program is the path of sonde-dp.
func startSubject(b *testing.B, name, program string, a app, table string) *subject {
	b.Helper()
	switch name {
	case subjectDirect:
		return &subject{}
	case subjectSonde:
		s, err := startAgent(b, program, table)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	// The handler runs with the settings that sonde-dp chooses.
	env := map[string][]string{subjectHandler: {"GOGC=40", "GOMAXPROCS=1", mesh.EnvProbeTable + "=" + table}}[name]
	p := rig.Start(b, name, env, strconv.Itoa(a[kindHTTP]), strconv.Itoa(a[kindTCP]), strconv.Itoa(a[kindGRPC]))
	return &subject{address: p.Address, pids: []int{p.PID()}}
}

func startAgent(b *testing.B, program, table string) (*subject, error) {
	b.Helper()
	l, err := listen(b.Context())
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	agent, err := sondedp.Start(program, netip.MustParseAddrPort(l.Addr().String()), slog.LevelError, table)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() {
		if err := agent.Stop(); err != nil {
			b.Error(err)
		}
	})
	worker, err := agent.Worker()
	return &subject{address: agent.Address, pids: []int{agent.Guard(), worker}}, err
}

// buildAgent builds sonde-dp, and returns its path.
func buildAgent(b *testing.B) string {
	b.Helper()
	program, err := harness.BuildInto(b.Context(), b.TempDir(), "cmd/sonde-dp")
	if err != nil {
		b.Fatal(err)
	}
	return program
}

// cpu returns the CPU time of all threads of its processes.
func (s *subject) cpu() (time.Duration, error) {
	if len(s.pids) == 0 {
		return 0, nil
	}
	spent, err := proc.CPU(s.pids...)
	return spent.Ran, err
}

// memory returns the maximum memory of the subject within 2 s: RssAnon is the sum of guard and worker, VmRSS the
// larger of both.
func (s *subject) memory(ctx context.Context) (most memorytest.Memory, err error) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		var now memorytest.Memory
		for _, pid := range s.pids {
			one, err := memorytest.Of(pid)
			if err != nil {
				return most, err
			}
			now = now.And(one)
		}
		most = most.Max(now)
		select {
		case <-ctx.Done():
			return most, ctx.Err()
		case <-ticker.C:
		}
	}
	return most, nil
}

// serveHandler reads the probe table from the environment, as the agent does.
func serveHandler(ctx context.Context, _ []string) error {
	return serve(ctx, func(l net.Listener) error {
		o, err := probe.Environment{
			Table: os.Getenv(mesh.EnvProbeTable), InstanceIP: ip, Port: l.Addr().(*net.TCPAddr).Port,
		}.Options(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		o.PodIP = netip.MustParseAddr(ip)
		h, err := probe.New(o)
		if err != nil {
			return err
		}
		return h.Serve(ctx, l)
	})
}

// serveNaive proxies HTTP, connects for TCP, and creates a new client for each gRPC probe. Its arguments are the
// application's ports.
func serveNaive(ctx context.Context, ports []string) error {
	if len(ports) != len(kinds) {
		return errors.New("it needs a port of the application for each kind of probe")
	}
	web, tcp, health := ports[0], net.JoinHostPort(ip, ports[1]), net.JoinHostPort(ip, ports[2])
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	target := &url.URL{Scheme: "http", Host: net.JoinHostPort(ip, web)}
	mux := http.NewServeMux()
	mux.Handle("/", &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, "/"+web)
	}})
	mux.HandleFunc("/tcp/", func(w http.ResponseWriter, r *http.Request) {
		var d net.Dialer
		c, err := d.DialContext(r.Context(), "tcp", tcp)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = c.Close() // an open port is enough
	})
	mux.HandleFunc("/grpc/", func(w http.ResponseWriter, r *http.Request) {
		if err := checkGRPC(r.Context(), health); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	return serve(ctx, server.Serve)
}

// checkGRPC creates a new client for one check.
func checkGRPC(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the call has ended
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if s := answer.GetStatus(); s != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("status %s", s)
	}
	return nil
}
