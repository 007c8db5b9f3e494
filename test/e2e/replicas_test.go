//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/leader"
)

// replicas is the chart's number of replicas of the control plane.
const replicas = 2

// peersHeard matches the readyz page of a replica that is connected to all peers; the lines below this one
// may contain older results.
var peersHeard = regexp.MustCompile(`(?m)^\[\+\]peers ok`)

// waitReplicas waits until all replicas of the control plane run and are connected to each other, and returns their
// names.
func (n *namespace) waitReplicas() []string {
	n.t.Helper()
	n.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	var names []string
	n.wait("the replicas to hear each other", func() error {
		names = n.selected(controlPlaneLabel)
		if len(names) != replicas {
			return fmt.Errorf("there are %q", names)
		}
		for _, name := range names {
			code, text, err := health(n.t.Context(), n.pod(name).Status.PodIP, "/readyz?verbose")
			if err != nil {
				return err
			}
			if code != http.StatusOK || !peersHeard.MatchString(text) {
				return fmt.Errorf("%s says %d %s", name, code, text)
			}
		}
		return nil
	})
	return names
}

// leading returns the leading replica, and another one.
func (n *namespace) leading(names []string) (leads, follows string) {
	n.t.Helper()
	n.wait("a leader", func() error {
		lease, err := cluster.client.CoordinationV1().Leases(systemNamespace).Get(n.t.Context(), leader.LeaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || !slices.Contains(names, *holder) {
			return fmt.Errorf("the Lease is %v", lease.Spec)
		}
		leads = *lease.Spec.HolderIdentity
		return nil
	})
	for _, name := range names {
		if name != leads {
			follows = name
		}
	}
	return leads, follows
}

// cut drops packets between the pod of a replica and a port, in both directions, until heal is called or the test
// ends. With an address, it drops only this host's.
func (n *namespace) cut(pod, address string, port int) (heal func()) {
	n.t.Helper()
	p := n.processes(n.pod(pod))[0]
	family := "ip"
	if strings.Contains(address, ":") {
		family = "ip6"
	}
	to, from := fmt.Sprintf("tcp dport %d drop", port), fmt.Sprintf("tcp sport %d drop", port)
	if address != "" {
		to, from = family+" daddr "+address+" "+to, family+" saddr "+address+" "+from
	}
	onNetworkOf(n.t, p, "nft", fmt.Sprintf("table inet sonde_e2e { chain out { type filter hook output priority 0; %s; tcp sport %d drop; }; chain in { type filter hook input priority 0; %s; tcp dport %d drop; }; }", to, port, from, port))
	heal = sync.OnceFunc(func() { onNetworkOf(n.t, p, "nft", "delete table inet sonde_e2e") })
	n.t.Cleanup(heal) // later tests need the replicas
	return heal
}

// rollWeb replaces all pods of web, one after the other.
func (w *watched) rollWeb(when string) {
	w.t.Helper()
	w.rolls++
	w.restart("web", map[string]string{"rolled": strconv.Itoa(w.rolls)}) // without a change, no pod would be replaced
	w.waitRolledOut("web")
	w.acceptEnds(when, "client tcp", "stranger tcp")
	w.pods = append(w.podsOf("web"), "client", "stranger")
	w.checkCaughtUp(when)
}

// acceptEnds accepts that TCP connections of these loads have ended, once for each of the two pods of web: each load
// has one connection.
func (w *watched) acceptEnds(when string, loads ...string) {
	w.t.Helper()
	for _, from := range loads {
		r := w.loads[from].report()
		if ended := r.Failed - w.failed[from]; ended > 2 {
			w.t.Errorf("%s: %s: %d more have failed: %v", when, from, ended, r)
		}
		w.failed[from] = r.Failed
	}
}

// TestAloneReplicasKilled kills replicas of the control plane while it replaces pods: no call fails. It runs alone.
// TestAloneControlPlane stops all replicas.
func TestAloneReplicasKilled(t *testing.T) {
	w := newWatched(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	for _, which := range []string{"a replica that follows", "the leader"} {
		leads, follows := cp.leading(cp.waitReplicas())
		victim := follows
		if which == "the leader" {
			victim = leads
		}
		for _, p := range cp.processes(cp.pod(victim)) {
			p.kill(t)
		}
		w.rollWeb(which + " was killed")
	}
}

// TestAloneReplicasCut disconnects replicas of the control plane from each other and from the API server while it
// replaces pods: no call fails. It runs alone.
func TestAloneReplicasCut(t *testing.T) {
	w := newWatched(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	names := cp.waitReplicas()
	heal := cp.cut(names[0], "", mesh.PortPeers)
	cp.wait("a warning about the peers", func() error {
		code, text, err := health(t.Context(), cp.pod(names[0]).Status.PodIP, "/readyz?verbose")
		if err == nil && (code != http.StatusOK || peersHeard.MatchString(text)) {
			err = fmt.Errorf("%d %s", code, text)
		}
		return err
	})
	w.rollWeb("the replicas were cut from each other")
	heal()

	leads, _ := cp.leading(cp.waitReplicas())
	api, err := cluster.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	heal = cp.cut(leads, api.Spec.ClusterIP, 443)
	began := time.Now()
	w.rollWeb("the leader was cut from the API server")
	pass(t, time.Until(began.Add(away)))
	w.checkLoads("the leader was cut from the API server for a while")
	heal()
	cp.waitReplicas()
	w.checkCaughtUp("all is well again")
}

// TestAlonePodsOfReplicas creates 20 pods at once, with one replica of the control plane and with all. It logs the
// duration.
func TestAlonePodsOfReplicas(t *testing.T) {
	cp := &namespace{t: t, name: systemNamespace}
	for _, count := range []int32{1, replicas} {
		cp.scale("sonde-cp", count)
		if count == replicas {
			cp.waitReplicas()
		} else {
			cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
		}
		n := newNamespace(t, injected)
		began := time.Now()
		n.create(newDeployment("many", 20, nil))
		n.waitRolledOut("many")
		t.Logf("%d replicas: 20 pods are ready after %s", count, time.Since(began).Round(100*time.Millisecond))
		n.scale("many", 0)
		n.wait("the end of the pods: a node has room for 20", func() error {
			if left := n.podsOf("many"); len(left) > 0 {
				return fmt.Errorf("there are %d", len(left))
			}
			return nil
		})
	}
}
