package fidelity_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/test/harness"
)

// envoy is one that answers for one pod after the other.
type envoy struct {
	// directory is its working directory, where the agent's socket is.
	directory string
	// version of its clusters.
	version int
	// alive ends with it.
	alive context.Context //nolint:containedctx // a process is no call
}

// envoyConfig takes listeners and clusters from files.
const envoyConfig = `{
  "node": {"id": "fidelity", "cluster": "fidelity"},
  "admin": {"address": {"pipe": {"path": "admin.sock"}}},
  "dynamic_resources": {
    "cds_config": {"resource_api_version": "V3", "path_config_source": {"path": "./cds.json"}},
    "lds_config": {"resource_api_version": "V3", "path_config_source": {"path": "./lds.json"}}
  }
}`

// startEnvoys starts n of them, which end with the test.
func startEnvoys(t *testing.T, n int) chan *envoy {
	t.Helper()
	binaries, err := harness.Envoys(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan *envoy, n)
	for range n {
		e, err := startEnvoy(t, binaries[0])
		if err != nil {
			t.Fatal(err)
		}
		all <- e
	}
	return all
}

func startEnvoy(t *testing.T, binary string) (*envoy, error) {
	directory, err := os.MkdirTemp("", "envoy") //nolint:usetesting // that names the test, and the path of a socket may have at most 107 bytes
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) }) // nobody uses it
	e := &envoy{directory: directory}
	if err := errors.Join(e.replace("cds.json", nil), e.replace("lds.json", nil)); err != nil {
		return nil, err
	}
	log, err := os.Create(e.log())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // Envoy has its own
	alive, end := context.WithCancel(context.WithoutCancel(t.Context()))
	e.alive = alive
	cmd := exec.CommandContext(alive, binary, "--config-yaml", envoyConfig,
		"--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--drain-time-s", "1")
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		end()
		return nil, err
	}
	var owned sync.WaitGroup
	owned.Go(func() {
		defer end()
		_ = cmd.Wait() // its log says why
	})
	t.Cleanup(func() {
		end()
		owned.Wait()
	})
	return e, nil
}

func (e *envoy) log() string { return filepath.Join(e.directory, "log") }

// replace replaces a file of resources in one step.
func (e *envoy) replace(name string, resources []proto.Message) error {
	response := &discoveryv3.DiscoveryResponse{VersionInfo: strconv.Itoa(e.version)}
	for _, r := range resources {
		packed, err := anypb.New(r)
		if err != nil {
			return err
		}
		response.Resources = append(response.Resources, packed)
	}
	text, err := protojson.Marshal(response)
	if err != nil {
		return err
	}
	path := filepath.Join(e.directory, name)
	return errors.Join(os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path))
}

// configure gives it the inbound resources of a Dataplane but those for redirected connections, and returns when it listens for probes.
func (e *envoy) configure(ctx context.Context, d *mesh.Dataplane) error {
	m, p := &meshview.Mesh{Spec: &mesh.Mesh{}}, &meshview.Proxy{Dataplane: d}
	var clusters, listeners []proto.Message
	for _, c := range generator.InboundClusters(m, p) {
		clusters = append(clusters, c)
	}
	for _, l := range generator.InboundListeners(m, p, "fidelity.test") {
		if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
			listeners = append(listeners, l)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.alive, cancel)()
	e.version++
	if err := e.replace("cds.json", clusters); err != nil {
		return err
	}
	admin := harness.SocketClient(filepath.Join(e.directory, mesh.SocketAdmin))
	want := fmt.Sprintf("cluster_manager.cds.version_text: %q", strconv.Itoa(e.version))
	err := harness.Poll(ctx, limit, "Envoy to take clusters", func(ctx context.Context) error {
		have, err := harness.Get(ctx, admin, "http://envoy/stats?filter=cds.version_text")
		if err == nil && !strings.Contains(have, want) {
			err = fmt.Errorf("it has %q", have)
		}
		return err
	})
	if err == nil { // not before: it refuses listeners without their clusters
		err = e.replace("lds.json", listeners)
	}
	for _, at := range d.ProbeAddresses() {
		if err == nil {
			err = harness.Poll(ctx, limit, "Envoy to listen on "+at.String(), func(ctx context.Context) error { return connect(ctx, at) })
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, e.tail())
	}
	return nil
}

// limit is far longer than Envoy takes.
const limit = 30 * time.Second

// connect makes a connection and closes it.
func connect(ctx context.Context, at netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// tail returns the end of what it logged.
func (e *envoy) tail() string {
	text, err := os.ReadFile(e.log())
	if err != nil {
		return err.Error()
	}
	const lines = 10
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
