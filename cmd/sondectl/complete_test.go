package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// kubeconfigOf writes a kubeconfig for an API server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "` + server + `"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}], "users": [{"name": "u", "user": {}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// completions returns sondectl's completions, without the directive for the shell, and other output.
func completions(t *testing.T, n *virtual.Network, args ...string) (names []string, stderr string) {
	t.Helper()
	var out, errors strings.Builder
	if code := on(n).run(t.Context(), append([]string{"__complete"}, args...), strings.NewReader(""), &out, &errors); code != exit.OK {
		t.Fatalf("exit code = %d: %s", code, errors.String())
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, ":") {
			names = append(names, line)
		}
	}
	return names, errors.String()
}

// apiServer is the address of a network's API server.
const apiServer = "127.0.0.1:8080"

// serveAPI serves an API server for the duration of the test.
func serveAPI(t *testing.T, n *virtual.Network, h http.HandlerFunc) {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", apiServer)
	if err != nil {
		t.Fatal(err)
	}
	server, ended := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}, make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// listsOnly serves lists of nodes and pods, and returns not found for a single one.
func listsOnly(t *testing.T) *virtual.Network {
	t.Helper()
	n := virtual.NewNetwork()
	serveAPI(t, n, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		names, listed := map[string][]string{"/api/v1/nodes": {"worker-1", "worker-2", "main"}, "/api/v1/namespaces/shop/pods": {"web-0"}, "/api/v1/namespaces/edge/pods": {"gateway-0"}}[r.URL.Path]
		if !listed {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Message: "it is not found", Code: http.StatusNotFound}) // as below
			return
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		for _, name := range names {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			})
		}
		_ = json.NewEncoder(w).Encode(list) // the test detects missing output
	})
	return n
}

func TestDrainNamesWhatMayHaveBeenMeant(t *testing.T) {
	kubeconfig := kubeconfigOf(t, "http://"+apiServer)
	for target, want := range map[string]string{
		"node/worker1": `sondectl: drain: read node "worker1": it is not found: did you mean "worker-1"?`,
		"pod/wbe-0":    `sondectl: drain: read pod "wbe-0": it is not found: did you mean "web-0"?`,
		"node/wbe-0":   `sondectl: drain: read node "wbe-0": it is not found`,
		"mian":         `sondectl: drain: "mian": not found as a node, nor as a pod in namespace shop: did you mean "main"?`,
		"nothing":      `sondectl: drain: "nothing": not found as a node, nor as a pod in namespace shop`,
	} {
		virtual.Run(t, target, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := on(listsOnly(t)).run(t.Context(), []string{"drain", target, "--kubeconfig", kubeconfig}, strings.NewReader(""), &stdout, &stderr)
			if code != exit.Failed || stderr.String() != want+"\n" {
				t.Errorf("exit code %d: %q, want %q", code, stderr.String(), want)
			}
		})
	}
}

func TestCompleteNodesAndPods(t *testing.T) {
	kubeconfig := "--kubeconfig=" + kubeconfigOf(t, "http://"+apiServer)
	tests := map[string]struct {
		args []string
		want []string
	}{
		"what there is":     {[]string{"drain", kubeconfig, ""}, []string{"node/", "pod/"}},
		"nodes":             {[]string{"drain", kubeconfig, "node/w"}, []string{"node/worker-1", "node/worker-2"}},
		"pods":              {[]string{"undrain", kubeconfig, "pod/"}, []string{"pod/web-0"}},
		"of a namespace":    {[]string{"drain", kubeconfig, "-n", "edge", "po/"}, []string{"po/gateway-0"}},
		"neither":           {[]string{"drain", kubeconfig, "service/"}, nil},
		"a second argument": {[]string{"drain", kubeconfig, "node/main", "node/"}, nil},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			got, _ := completions(t, listsOnly(t), tc.args...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompletionIsBounded shows that an unresponsive server only causes a short delay, without output.
func TestCompletionIsBounded(t *testing.T) {
	config, _ := certificate.Server(t, mesh.ServingName)
	files := t.TempDir()
	ca, token := filepath.Join(files, "ca.crt"), filepath.Join(files, "token")
	for path, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: config.Certificates[0].Certificate[0]}), token: []byte("token")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, token = "--ca-cert-file="+ca, "--token-file="+token
	tests := map[string]struct {
		args []string
		took time.Duration
	}{
		"no API server":          {[]string{"drain", "--kubeconfig=" + kubeconfigOf(t, "http://127.0.0.1:1"), "node/"}, 0},
		"a silent API server":    {[]string{"drain", "--kubeconfig=" + kubeconfigOf(t, "http://"+apiServer), "node/"}, completionTimeout},
		"no kubeconfig":          {[]string{"drain", "--kubeconfig=/nowhere", "node/"}, 0},
		"a silent control plane": {[]string{"get", "meshes", "--address=" + adminAt, ca, token, ""}, completionTimeout},
		"no control plane":       {[]string{"get", "dataplanes", "--address=127.0.0.1:1", ca, token, ""}, 0},
		"three kinds of names":   {[]string{"why", "--address=" + adminAt, ca, token, ""}, completionTimeout},
		"nothing is known":       {[]string{"get", "services", ""}, 0},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			n := virtual.NewNetwork()
			serveAPI(t, n, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			silent, err := n.Listen(t.Context(), "tcp", adminAt) // accepts connections, but never responds
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close() //nolint:errcheck // nothing was sent
			began := time.Now()
			names, stderr := completions(t, n, tc.args...)
			if names != nil {
				t.Errorf("completions = %q, want none", names)
			}
			if strings.Contains(stderr, "sondectl:") {
				t.Errorf("it says %q", stderr)
			}
			if took := time.Since(began); took != tc.took {
				t.Errorf("it took %s, want %s", took, tc.took)
			}
		})
	}
}
