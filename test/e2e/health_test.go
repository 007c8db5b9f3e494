//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// healthPaths are the paths that the kubelet probes at the control plane.
var healthPaths = []string{"/livez", "/readyz"}

// health makes the kubelet's request to a control plane whose pod has an address.
func health(ctx context.Context, address, path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+mesh.JoinHostPort(address, mesh.PortHealth)+path, nil)
	if err != nil {
		return 0, "", err
	}
	got, err := control.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	return got.StatusCode, string(text), err
}

// watchHealth checks each second whether the control planes in pods are live and ready, until the returned function
// is called. That function returns how often each response occurred, such as "/livez 200 ok".
func (n *namespace) watchHealth(pods []string) (stop func() map[string]int) {
	n.t.Helper()
	var addresses []string
	for _, name := range pods {
		addresses = append(addresses, n.pod(name).Status.PodIP)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	answers := map[string]int{}
	var done sync.WaitGroup
	done.Go(func() {
		for ticker := time.Tick(time.Second); ; {
			for _, address := range addresses {
				for _, path := range healthPaths {
					code, body, err := health(ctx, address, path)
					switch {
					case ctx.Err() != nil:
						return
					case err != nil:
						answers[path+" "+err.Error()]++
					default:
						answers[fmt.Sprintf("%s %d %s", path, code, strings.TrimSpace(body))]++
					}
				}
			}
			select {
			case <-ticker:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() map[string]int {
		cancel()
		done.Wait()
		return answers
	}
}

// loopLimit is how long an iteration of the fan-out may take.
const loopLimit = time.Minute

// newStuckPod returns the chart's pod of the control plane with test/stuckcp, and with its own mesh.
func newStuckPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	d, err := cluster.client.AppsV1().Deployments(systemNamespace).Get(t.Context(), "sonde-cp", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const directory, volume = "/var/lib/sonde", "sonde"
	spec := d.Spec.Template.Spec
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = "", ""
	spec.Volumes = []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c := &spec.Containers[0]
	c.Image, c.Command, c.Args = "docker.io/sonde-test/stuckcp:1", nil, []string{"--directory=" + directory}
	c.VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: directory}}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	}
}

// TestDeadlockRestarted deadlocks the fan-out of a control plane: exactly after the limit, livez names the loop, and
// the kubelet restarts the container, which then works. The cluster's own control plane is not affected.
func TestDeadlockRestarted(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, outside)
	const name = "stuck"
	n.create(newStuckPod(t, name))
	n.waitReady(name)
	p := n.pod(name)
	all := n.processes(p)
	i := slices.IndexFunc(all, func(p process) bool { return p.command[0] == "/stuckcp" })
	if i < 0 {
		t.Fatalf("pod %s has no such process: %+v", name, all)
	}
	log := n.follow(name)
	began := time.Now()
	if err := syscall.Kill(all[i].pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	n.wait("a livez that fails", func() error {
		code, body, err := health(t.Context(), p.Status.PodIP, "/livez")
		if err != nil {
			return err
		}
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]loop-view failed: ") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	found := time.Since(began)
	if found < loopLimit {
		t.Errorf("livez fails after %s; an iteration that takes less than %s is only slow", found, loopLimit)
	}
	n.waitEvent(name, "Unhealthy", "Liveness probe failed", "503")
	n.waitPod(name, "with a restarted container and Ready", func(p *corev1.Pod) error {
		if restarts := status(p, p.Spec.Containers[0].Name).RestartCount; restarts != 1 {
			return fmt.Errorf("restarted %d times", restarts)
		}
		return isReady(p)
	})
	t.Logf("livez failed %s after the deadlock; the container was restarted and the pod ready %s after it",
		found.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	n.waitEvent(name, "Killing", "failed liveness probe")

	said := log()
	stuck := slices.DeleteFunc(slices.Collect(strings.Lines(said)), func(line string) bool { return !strings.Contains(line, `"loop is stuck"`) })
	if len(stuck) != 1 || !strings.Contains(stuck[0], `"loop":"view"`) || !strings.Contains(stuck[0], "(*Pipeline).apply") {
		t.Errorf("the log has not the stack of the fan-out, once:\n%s", said)
	}
	cp := &namespace{t: t, name: systemNamespace}
	cp.checkPodsUntouched("another control plane was deadlocked", cp.selected(controlPlaneLabel)...)
}

// follow follows the log of a pod's only container. It returns a function that waits for the container's end and
// returns the log. A log read later may be lost, because the kubelet's garbage collection removes ended containers.
func (n *namespace) follow(pod string) (log func() string) {
	n.t.Helper()
	stream, err := cluster.client.CoreV1().Pods(n.name).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	var text []byte
	var ended error
	read := make(chan struct{})
	go func() {
		defer close(read)
		text, ended = io.ReadAll(stream)
		_ = stream.Close() // everything was read
	}()
	return func() string {
		n.t.Helper()
		select {
		case <-read:
		case <-time.After(patience):
			n.t.Fatalf("the log of pod %s does not end", pod)
		}
		if ended != nil {
			n.t.Logf("the log of pod %s ended with %v", pod, ended)
		}
		return string(text)
	}
}
