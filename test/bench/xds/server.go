package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/identity"
)

// newServer returns a gRPC server with the options of cmd/sonde-cp.
func newServer(a *identity.Authority, more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(append(a.ServerOptions(),
		grpc.MaxConcurrentStreams(16),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	), more...)...)
}

// authorize is the authorisation of ADS in cmd/sonde-cp.
func authorize(ctx context.Context, nodeID string) error {
	caller, err := identity.PeerFromContext(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if caller.ID() != nodeID {
		return fmt.Errorf("the certificate is for proxy %q, the node id is %q", caller.ID(), nodeID)
	}
	return nil
}

// serveSubject prints its address and serves until the input ends. It answers each line of the input: a change of a
// service, or a command that all subjects know.
func serveSubject(ctx context.Context, server *grpc.Server, change func(service int) error) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Println(l.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := command(strings.Fields(lines.Text()), change); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Println("ok")
	}
	server.Stop()
	return errors.Join(lines.Err(), <-served)
}

// profile is the current CPU profile.
var profile io.Closer

func command(words []string, change func(service int) error) error {
	switch words[0] {
	case "change":
		service, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		return change(service)
	case "collect":
		for range 4 { // each collection halves stacks of which little is used
			runtime.GC()
		}
		debug.FreeOSMemory()
		return nil
	case "profile":
		return startProfile(words[1])
	case "heap":
		return writeHeap(words[1])
	case "profiled":
		pprof.StopCPUProfile()
		return profile.Close()
	}
	return errors.New("unknown command")
}

func startProfile(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	profile = file
	return pprof.StartCPUProfile(file)
}

func writeHeap(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.WriteHeapProfile(file), file.Close())
}
