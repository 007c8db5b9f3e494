package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/harness"
)

const systemNamespace = "sonde-system"

// replica is a control plane that uses the API server of the package.
type replica struct {
	t         *testing.T
	name, log string
	client    kubernetes.Interface
	health    string
	cmd       *exec.Cmd
}

// startReplica starts a control plane of a release as a peer of the others.
func startReplica(t *testing.T, client kubernetes.Interface, name string, of harness.Programs) *replica {
	t.Helper()
	at, release, err := harness.FreeAddresses(5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	var ports [5]string
	for i := range at {
		_, ports[i], _ = net.SplitHostPort(at[i])
	}
	r := &replica{t: t, name: name, client: client, health: at[0], log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the process has its own file descriptor
	r.cmd = exec.Command(of.ControlPlane, "--store=kubernetes", "--kubeconfig="+cluster.Kubeconfig, "--namespace="+systemNamespace, "--replica="+name,
		"--health-port="+ports[0], "--agents-port="+ports[1], "--admin-port="+ports[2], "--webhook-port="+ports[3], "--peer-port="+ports[4])
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, r.read())
		}
	})
	r.announce(ports[4])
	return r
}

// announce lets the other replicas discover this replica, as the EndpointSlice controller would.
func (r *replica) announce(port string) {
	r.t.Helper()
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		r.t.Fatal(err)
	}
	slice := apiserver.PeerSlice(r.t, r.name, int32(number))
	if _, err := r.client.DiscoveryV1().EndpointSlices(systemNamespace).Create(r.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// kill ends the replica as kill -9 does, and removes it from the others' peers.
func (r *replica) kill() {
	r.t.Helper()
	if r.cmd.ProcessState != nil {
		return
	}
	_ = r.cmd.Process.Kill() // an error means that the process has ended
	_ = r.cmd.Wait()
	err := r.client.DiscoveryV1().EndpointSlices(systemNamespace).Delete(context.WithoutCancel(r.t.Context()), "peers-"+r.name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		r.t.Error(err)
	}
}

func (r *replica) read() string {
	r.t.Helper()
	text, err := os.ReadFile(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func (r *replica) poll(what string, check func(ctx context.Context) error) {
	r.t.Helper()
	if err := harness.Poll(r.t.Context(), r.name+": "+what, check); err != nil {
		r.t.Fatal(err)
	}
}

// hears waits until the replica is ready and connected to all peers.
func (r *replica) hears() {
	r.t.Helper()
	r.poll("ready, with all peers", func(ctx context.Context) error {
		text, err := harness.Get(ctx, http.DefaultClient, "http://"+r.health+"/readyz?verbose")
		if err == nil && !strings.Contains("\n"+text, "\n[+]peers ok") {
			err = errors.New(text)
		}
		return err
	})
}

// leads waits until the replica is the leader.
func (r *replica) leads() {
	r.t.Helper()
	r.poll("leading", func(ctx context.Context) error {
		lease, err := r.client.CoordinationV1().Leases(systemNamespace).Get(ctx, leader.LeaseName, metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != r.name) {
			err = fmt.Errorf("the Lease is %+v", lease.Spec)
		}
		if err == nil && !strings.Contains(r.read(), `"msg":"leading"`) {
			err = errors.New("the log does not show that it leads")
		}
		return err
	})
}

// epoch returns the epoch in which the replica leads, from its log.
func (r *replica) epoch() int64 {
	r.t.Helper()
	for line := range strings.Lines(r.read()) {
		var said struct {
			Msg   string
			Epoch int64
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "leading" {
			return said.Epoch
		}
	}
	r.t.Fatalf("%s has not logged the epoch in which it leads", r.name)
	return 0
}

// checkLog fails the test if the replica logged that it could not read something.
func (r *replica) checkLog() {
	r.t.Helper()
	for line := range strings.Lines(r.read()) {
		if strings.Contains(line, `"level":"ERROR"`) {
			r.t.Errorf("%s: %s", r.name, line)
		}
	}
}

// secrets returns the parts of the control plane's Secrets that no release may change. Of a Secret with CAs, this is
// only the CAs.
func secrets(t *testing.T, client kubernetes.Interface) map[string]map[string][]byte {
	t.Helper()
	list, err := client.CoreV1().Secrets(systemNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string][]byte{}
	for i := range list.Items {
		data := list.Items[i].Data
		for key, value := range data {
			var cas ca.SetFile
			if err := json.Unmarshal(value, &cas); err != nil || len(cas.CAs) == 0 {
				continue
			}
			if data[key], err = json.Marshal(cas); err != nil {
				t.Fatal(err)
			}
		}
		all[list.Items[i].Name] = data
	}
	return all
}

// TestReplicasForthAndBack upgrades a control plane of two replicas and rolls it back, one replica at a time, as a
// Deployment does. Meanwhile both releases run as peers, and each leads once with the state that the other has
// written.
func TestReplicasForthAndBack(t *testing.T) {
	now, before := releases(t)
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := startReplica(t, client, "before-1", before)
	first.leads()
	first.poll("the keys of the mesh", func(context.Context) error {
		if _, ok := secrets(t, client)["sonde-ca-default"]; !ok {
			return fmt.Errorf("the replicas are only %q", slices.Sorted(maps.Keys(secrets(t, client))))
		}
		return nil
	})
	made := secrets(t, client)
	last, epoch := first, first.epoch()
	for _, next := range []struct {
		name string
		of   harness.Programs
	}{{"now-1", now}, {"before-2", before}, {"now-2", now}} {
		r := startReplica(t, client, next.name, next.of)
		for _, one := range []*replica{r, last} {
			one.hears()
		}
		last.kill()
		r.leads()
		r.hears()
		last.checkLog()
		last = r
		is := secrets(t, client)
		for name, data := range made {
			if name == "sonde-leader" || name == "sonde-freeze" { // each leader writes it
				continue
			}
			if diff := cmp.Diff(data, is[name]); diff != "" {
				t.Errorf("%s leads, and has not kept Secret %s", next.name, name)
			}
		}
		// This release stores the epoch in the Lease, the previous release in a Secret.
		if was := epoch; r.epoch() <= was {
			t.Errorf("%s leads in epoch %d, after %d", next.name, r.epoch(), was)
		}
		made, epoch = is, r.epoch()
	}
	last.checkLog()
}
