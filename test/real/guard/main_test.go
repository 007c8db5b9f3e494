// Package guard_test tests the guard and its worker as processes of this test binary.
package guard_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/dpagent/guard"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/internal/shutdown"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// patient is the ID of a probe with a timeout longer than any test, so that a busy machine does not cause
// Errored.
const patient = "patient"

// Variables of the processes that tests start from this binary.
const (
	roleEnv    = "SONDE_TEST_ROLE"    // the worker's behavior; set in guards
	addressEnv = "SONDE_TEST_ADDRESS" // address where it listens
	grpcEnv    = "SONDE_TEST_GRPC"    // address of a gRPC probe with the timeout of patient
	shortEnv   = "SONDE_TEST_SHORT"   // address of a gRPC probe with a timeout of two seconds
	hooksEnv   = "SONDE_TEST_HOOKS"   // file that gets a line for each call of a hook
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		slowtest.SkipAll(m, "guards and workers")
		slowtest.AtOnce(6)
		reservePort()
		goleak.VerifyTestMain(m)
		return
	}
	if _, ok := worker.Guarded(); ok {
		os.Exit(work(role))
	}
	fmt.Fprintln(os.Stderr, guard.Exec(os.Args, os.Environ()))
	os.Exit(1)
}

// work is a worker whose HTTP server has a few paths, instead of an agent.
func work(role string) int {
	starts, _ := worker.Guarded()
	switch {
	case role == "misconfigured":
		fmt.Fprintln(os.Stderr, "bad option")
		return 3
	case role == "never ready", role == "ready once" && starts > 1:
		hang()
	case role == "slow again" && starts > 1:
		time.Sleep(slow)
	}
	all, err := worker.Listen(context.Background(), worker.Options{
		Ports: []wire.Port{
			{Address: os.Getenv(addressEnv), MaxHead: 100 << 10},
			{Address: os.Getenv(grpcEnv), MaxHead: 4 << 10, GRPC: true, Timeout: time.Hour},
			{Address: os.Getenv(shortEnv), MaxHead: 4 << 10, GRPC: true, Timeout: 2 * time.Second},
		},
		Probes: []wire.Limit{
			{ID: "one", Timeout: time.Second},
			{ID: "three", Timeout: 3 * time.Second},
			{ID: patient, Timeout: time.Hour},
			{ID: "hook", Hook: true},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "listen:", err)
		return 1
	}
	drained := make(chan struct{})
	handler := mux(sync.OnceFunc(func() { close(drained) }))
	server := &http.Server{Handler: handler}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, shutdown.Signals()...)
	go func() { _ = server.Serve(all[0]) }()
	grpc := &http.Server{Handler: handler, Protocols: http2()}
	go func() { _ = grpc.Serve(all[1]) }()
	go func() { _ = grpc.Serve(all[2]) }()
	fmt.Fprintln(os.Stderr, "worker listens on", all[0].Addr())
	<-signals
	fmt.Fprintln(os.Stderr, "worker drains")
	if role == "drains for ever" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		hang()
	}
	select {
	case <-signals:
		return 7
	case <-drained:
		return 0
	}
}

// hang never returns. It uses a timer, because a program without cgo would exit if nothing could
// wake it.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

// slow is how long a slow worker, or a slow response, takes.
const slow = 700 * time.Millisecond

func http2() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// mux serves a few paths. /end ends the drain of this worker.
func mux(end func()) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/end", func(http.ResponseWriter, *http.Request) { end() })
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, os.Getpid(), " ", r.RemoteAddr)
	})
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/head", func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.RequestURI)) })
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(1<<20))
		_, _ = w.Write(make([]byte, 1<<20))
	})
	mux.HandleFunc("/first/{action}", func(w http.ResponseWriter, r *http.Request) {
		if starts, _ := worker.Guarded(); starts == 1 {
			act(r.PathValue("action"))
		}
		_, _ = fmt.Fprint(w, os.Getpid())
	})
	var hanging atomic.Int32
	mux.HandleFunc("/always/{action}", func(_ http.ResponseWriter, r *http.Request) {
		hanging.Add(1)
		act(r.PathValue("action"))
	})
	mux.HandleFunc("/hanging", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, hanging.Load()) })
	mux.HandleFunc("/hook", func(w http.ResponseWriter, r *http.Request) {
		f, err := os.OpenFile(os.Getenv(hooksEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		_, _ = fmt.Fprintln(f, os.Getpid())
		act(r.URL.RawQuery)
		w.Header().Set("Connection", "close")
	})
	var client atomic.Value
	mux.HandleFunc("/left", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, client.Load()) })
	mux.HandleFunc("/leave", func(_ http.ResponseWriter, r *http.Request) {
		client.Store("waits")
		<-r.Context().Done()
		client.Store("left")
	})
	return mux
}

func act(action string) {
	switch action {
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		hang()
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(50 * time.Millisecond) // another thread may receive the signal
	case "hang":
		hang()
	case "slow":
		time.Sleep(slow)
	}
}

// freePort is below the ports that the kernel uses for connections, and reserved until the process ends.
var freePort string

func reservePort() {
	addresses, _, err := harness.FreeAddresses(1)
	if err == nil {
		_, freePort, err = net.SplitHostPort(addresses[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reserve a port:", err)
		os.Exit(1)
	}
}

var lastAddress atomic.Int32

// freeAddress returns an address where nothing listens. Each has another IP address.
func freeAddress(t testing.TB) string {
	t.Helper()
	n := lastAddress.Add(1)
	return net.JoinHostPort(net.IPv4(127, 0, byte(7+n>>8), byte(n)).String(), freePort)
}
