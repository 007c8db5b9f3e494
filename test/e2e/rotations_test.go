//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// rotated is a CA: the words after `sondectl rotate`, and its Secret.
type rotated struct{ words, secret string }

// TestAloneRotations rotates the CA of a mesh, and then the control plane's CA, which also signs the webhook's
// certificate. A replica is killed in each step, the leader and others in turn, and a sidecar restarts after each
// rotation. No call fails. It runs alone.
func TestAloneRotations(t *testing.T) {
	w := newWatched(t, injected)
	w.create(newPod("bystander", "node2"), newService("bystander"))
	w.waitReady("bystander")
	cp := &namespace{t: t, name: systemNamespace}
	for i, r := range []rotated{{"ca", "sonde-ca-" + mesh.DefaultMesh}, {"serving-ca", "sonde-serving-ca.json"}} {
		before := cp.certificates(r)
		steps := cp.rotate(r, cp.killReplica)
		if want := []ca.Step{ca.StepTrustBoth, ca.StepRenewLeaves, ca.StepTrustNew}; !slices.Equal(steps, want) {
			t.Errorf("%s: replicas were killed in the steps %q, want %q", r.words, steps, want)
		}
		if after := cp.certificates(r); after == before || strings.Count(after, "BEGIN CERTIFICATE") != 1 {
			t.Errorf("%s: not only a new CA:\n%s", r.words, after)
		}
		cp.waitReplicas()
		w.rollWeb(r.words + " was rotated") // the webhook injects new pods
		w.restartSidecar("bystander", i+1)
		w.checkLoads(r.words + " was rotated")
	}
	cp.rotate(rotated{"serving-ca", "sonde-serving-ca.json"}, func(bool) {})
	w.rollWeb("serving-ca was rotated while nothing else happened")
}

// rotate rotates a CA with sondectl, and calls kill after each written step, in turn for the leader and another
// replica. It returns the steps.
func (n *namespace) rotate(r rotated, kill func(leads bool)) (steps []ca.Step) {
	n.t.Helper()
	written, err := cluster.client.CoreV1().Secrets(n.name).Watch(n.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + r.secret})
	if err != nil {
		n.t.Fatal(err)
	}
	defer written.Stop()
	out, err := n.sondectl("rotate", r.words)
	if err != nil {
		n.t.Fatalf("sondectl rotate %s: %v", r.words, err)
	}
	late, poll := time.After(patience), time.NewTicker(time.Second)
	defer poll.Stop()
	for {
		select {
		case e := <-written.ResultChan():
			s, is := e.Object.(*corev1.Secret)
			if !is {
				n.t.Fatalf("watch %s: %v", r.secret, e)
			}
			switch step := n.stepOf(s); {
			case step == ca.StepNone && len(steps) > 0:
				return steps
			case step != ca.StepNone && !slices.Contains(steps, step):
				steps = append(steps, step)
				kill(len(steps)%2 == 1)
			}
		case <-poll.C:
			if out, err = n.sondectl("rotate", r.words, "--status"); err == nil && strings.Contains(out, "paused:") {
				out, err = n.sondectl("rotate", r.words, "--continue")
			}
		case <-late:
			n.t.Fatalf("the rotation does not end, its steps were %q: %s %v", steps, out, err)
		}
	}
}

// certificates returns the certificates of a CA as PEM.
func (n *namespace) certificates(r rotated) string {
	n.t.Helper()
	var all strings.Builder
	for _, c := range n.setIn(n.secretObject(r.secret)).CAs {
		all.WriteString(c.Certificate)
	}
	return all.String()
}

// stepOf returns the step of a rotation.
func (n *namespace) stepOf(s *corev1.Secret) ca.Step {
	n.t.Helper()
	if set := n.setIn(s); set.Rotation != nil {
		return set.Rotation.Step
	}
	return ca.StepNone
}

func (n *namespace) setIn(s *corev1.Secret) (set ca.SetFile) {
	n.t.Helper()
	for _, data := range s.Data {
		if err := json.Unmarshal(data, &set); err != nil {
			n.t.Fatalf("read %s: %v", s.Name, err)
		}
	}
	return set
}

// secret returns the data of a Secret with one key.
func (n *namespace) secret(name string) []byte {
	n.t.Helper()
	for _, data := range n.secretObject(name).Data {
		return data
	}
	n.t.Fatalf("Secret %s is empty", name)
	return nil
}

func (n *namespace) secretObject(name string) *corev1.Secret {
	n.t.Helper()
	s, err := cluster.client.CoreV1().Secrets(n.name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// killReplica kills the leader or another replica, which Kubernetes replaces.
func (n *namespace) killReplica(leads bool) {
	n.t.Helper()
	var names []string
	n.wait("two replicas, of which one may be the last one's successor", func() error {
		names = slices.DeleteFunc(n.selected(controlPlaneLabel), func(name string) bool { return n.pod(name).Status.Phase != corev1.PodRunning })
		if len(names) != replicas {
			return fmt.Errorf("there are %q", names)
		}
		return nil
	})
	leader, other := n.leading(names)
	name := other
	if leads {
		name = leader
	}
	n.t.Logf("%s is killed, leader: %v", name, leads)
	for _, p := range n.processes(n.pod(name)) {
		p.kill(n.t)
	}
	err := cluster.client.CoreV1().Pods(n.name).Delete(n.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !apierrors.IsNotFound(err) {
		n.t.Fatal(err)
	}
}

// sondectl runs sondectl with an operator's credentials, against a reachable replica. It accepts the exit codes of a
// rotation in progress and a failed check.
func (n *namespace) sondectl(args ...string) (output string, err error) {
	n.t.Helper()
	directory := n.t.TempDir()
	file := func(name string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, n.secret("sonde-"+name), 0o600); err != nil {
			n.t.Fatal(err)
		}
		return path
	}
	args = append(args, "--token-file="+file("admin-token"), "--ca-cert-file="+file("serving-ca.crt"))
	for _, name := range n.selected(controlPlaneLabel) {
		p := n.pod(name)
		if isReady(p) != nil {
			continue
		}
		address := "--address=" + mesh.JoinHostPort(p.Status.PodIP, mesh.PortAdmin)
		text, failed := exec.CommandContext(n.t.Context(), "../../bin/sondectl", append(slices.Clone(args), address)...).CombinedOutput()
		if exit, is := errors.AsType[*exec.ExitError](failed); failed == nil || is && (exit.ExitCode() == 4 || exit.ExitCode() == 6) {
			return string(text), nil
		}
		err = errors.Join(err, fmt.Errorf("%s: %w: %s", name, failed, text))
	}
	return "", errors.Join(err, errors.New("no replica has answered"))
}

// restartSidecar kills the agent of a pod, and waits until the next agent serves.
func (w *watched) restartSidecar(pod string, restarts int) {
	w.t.Helper()
	w.agent(w.pod(pod), true).kill(w.t)
	w.waitPod(pod, "with a new sidecar and Ready", func(p *corev1.Pod) error {
		if s := status(p, mesh.ContainerSidecar); int(s.RestartCount) != restarts {
			return fmt.Errorf("kuma-sidecar was restarted %d times", s.RestartCount)
		}
		return isReady(p)
	})
	w.wait("an answer of "+pod, func() error {
		if c := w.app("client").call("http://%s.%s/", pod, w.name); c.Status != http.StatusOK {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}
