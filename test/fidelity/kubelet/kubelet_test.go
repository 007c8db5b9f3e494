package kubelet_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// TestVerdicts checks that the kubelet's unexported code is found and called correctly.
func TestVerdicts(t *testing.T) {
	var agents []string
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents = append(agents, r.UserAgent())
		switch r.URL.Path {
		case "/warning":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		case "/failure":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/errored":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short") // shorter than the announced length
		}
	}))
	defer application.Close()
	ip, port, err := net.SplitHostPort(application.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	k := kubelet.New()
	defer k.Close()
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: ip}}
	for path, want := range map[string]cases.Verdict{
		"/": cases.Success, "/warning": cases.Warning, "/failure": cases.Failure, "/errored": cases.Errored,
	} {
		handler := corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(int32(number))}
		container := corev1.Container{
			Name:          "app",
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &handler}, TimeoutSeconds: 10},
			Lifecycle:     &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &handler}},
		}
		if got, event := k.Probe(t.Context(), pod, container, "liveness"); cases.Verdict(got) != want {
			t.Errorf("probe of %s: %s (%s), want %s", path, got, event, want)
		}
		if got, _, message := k.Hook(t.Context(), pod, container, "preStop"); cases.Verdict(got) != cases.Success {
			t.Errorf("hook %s: %s (%s), want Success: a hook's status is ignored", path, got, message)
		}
	}
	if got := kubelet.Version; got != cases.KubeletVersion {
		t.Errorf("Version = %s, want %s", got, cases.KubeletVersion)
	}
	for _, agent := range agents {
		if agent != "kube-probe/"+cases.KubeletVersion && agent != "kube-lifecycle/"+cases.KubeletVersion {
			t.Errorf("user agent %q does not belong to a release", agent)
		}
	}
}
