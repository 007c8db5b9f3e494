package xds

import (
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
	"testing"

	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// Subjects. All except for subjectSonde are roles.
const (
	subjectSonde     = "sonde"
	subjectBuilder   = "sonde-builder"
	subjectBroadcast = "broadcast"
	subjectSnapshot  = "snapshot"
	subjectBare      = "bare"
)

func TestMain(m *testing.M) {
	roles := map[string]rig.Role{}
	for name, serve := range map[string]func(context.Context, *sondecp.Identity, topology) error{
		subjectBuilder: serveBuilder, subjectBroadcast: serveBroadcast, subjectSnapshot: serveSnapshot, subjectBare: serveBare,
	} {
		roles[name] = func(ctx context.Context, args []string) error {
			id, err := sondecp.OpenIdentity(args[0])
			if err != nil {
				return err
			}
			var w topology
			if _, err := fmt.Sscanf(args[1], "%dx%d", &w.proxies, &w.services); err != nil {
				return fmt.Errorf("parse topology %q: %w", args[1], err)
			}
			return serve(ctx, id, w)
		}
	}
	rig.Main(m, roles)
}

// serve serves until the input of the role ends. Its commands are a change of a service, and the commands that all
// subjects support.
func serve(ctx context.Context, server *grpc.Server, change func(service int) error) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var profile io.Closer
	err = rig.Serve(l.Addr(), func(words []string) (err error) {
		switch words[0] {
		case "change":
			service, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			return change(service)
		case "collect":
			for range 4 { // each collection halves stacks that are mostly unused
				runtime.GC()
			}
			debug.FreeOSMemory()
			return nil
		case "profile":
			profile, err = startProfile(words[1])
			return err
		case "profiled":
			pprof.StopCPUProfile()
			return profile.Close()
		}
		return errors.New("unknown command")
	})
	server.Stop()
	return errors.Join(err, <-served)
}

func startProfile(path string) (io.Closer, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return file, pprof.StartCPUProfile(file)
}
