package watchdog

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/must"
)

// Kubeconfigs that would run a program, read a file, or are invalid are rejected one after the other, and the status
// has the reason. The watchdog scales nothing.
func TestBadKubeconfigs(t *testing.T) {
	s := newScene(t, "badkubeconfigs", 3)
	p := newProxy(t, apiserver.OwnAddress(t))
	good := string(p.kubeconfig(t))
	replaced := func(old, text string) []byte {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("no %q in %s", old, good)
		}
		return []byte(strings.Replace(good, old, text, 1))
	}
	token := "token: " + cluster.Config.BearerToken
	s.watch("kubeconfigSecretName: probe")
	s.start("a")
	for _, tc := range []struct {
		name       string
		kubeconfig []byte
		want       string
	}{
		{"exec", replaced(token, "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true, interactiveMode: Never}"), "user.exec: must not be given"},
		{"file", replaced(token, "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"), "user.tokenFile: must not be a file"},
		{"link-local", replaced(p.address, "https://169.254.169.254"), "must not be an address of the host itself"},
		{"rotated, the old one is refused", replaced(token, "token: old"), "Unauthorized"},
		{"another CA", replaced("tls-server-name: example.com", "tls-server-name: other.example.org"), "certificate is valid for example.com"},
		{"a closed port", replaced(p.address, strings.TrimRight(p.address, "0123456789")+"1"), "connection refused"},
		{"empty", nil, "current-context: must be the name of one of contexts"},
	} {
		s.secret([]byte(good))
		s.condition("Probed", "True", "")
		s.secret(tc.kubeconfig)
		s.condition("Probed", "False", tc.want)
	}
	s.secret([]byte(good))
	s.condition("Probed", "True", "")
	if err := s.client.CoreV1().Secrets(s.name).Delete(t.Context(), "probe", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.condition("Probed", "False", `"probe": must be an existing Secret`)
	s.secret([]byte(good))
	s.condition("Probed", "True", "")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Data: map[string][]byte{"config": []byte(good)}}
	if _, err := s.client.CoreV1().Secrets(s.name).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.condition("Probed", "False", "Secret probe: must have the key kubeconfig")
	s.secret([]byte(good))
	s.verdict("seen", "")
	s.stays("of kubeconfigs", 0)
}

// Dependants that do not exist, have an unknown kind, or cannot be scaled fail, each with its reason, and block the
// levels after them. Dependants before them are scaled down, and up again.
func TestDependantsThatCannotBeScaled(t *testing.T) {
	s := newScene(t, "unscalable", 3)
	made, err := s.client.CoreV1().ConfigMaps(s.name).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	mustCreate(t, made, err)
	s.watch("local: true")
	ref := func(version, kind, name string, down int) string {
		return fmt.Sprintf(`{"ref":{"apiVersion":%q,"kind":%q,"name":%q},"scaleUp":{"level":0},"scaleDown":{"level":%d}}`, version, kind, name, down)
	}
	all := []string{
		ref("apps/v1", "Deployment", "mcm", 0), ref("apps/v1", "Deployment", "absent", 1), ref("v1", "ConfigMap", "a", 1), ref("example.com/v1", "Thing", "a", 1),
		ref("v1", "Node", "unscalable-0", 1), ref("apps/v1", "Deployment", "kcm", 2),
	}
	if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/"+s.name, merge, `{"spec":{"dependants":[`+strings.Join(all, ",")+`]}}`); err != nil {
		t.Fatal(err)
	}
	s.start("a")
	s.verdict("seen", "")
	s.connect(false)
	s.scaled(2, 0, 1)
	must.Poll(t, "the reason of each failure", func(ctx context.Context) error {
		events, err := s.client.EventsV1().Events(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes strings.Builder
		for _, e := range events.Items {
			if e.Reason == "ScaleFailed" {
				notes.WriteString(e.Note + "\n")
			}
		}
		for _, want := range []string{
			"scale Deployment absent: not found", "scale ConfigMap a: its kind has no scale subresource", "scale Thing a: kind Thing of example.com/v1: not found",
			"scale Node unscalable-0: kind Node of v1: must be namespaced",
		} {
			if !strings.Contains(notes.String(), want) {
				return fmt.Errorf("no %q in %q", want, notes.String())
			}
		}
		return nil
	})
	s.ordered("mcm 0")
	s.connect(true)
	s.scaled(2, 1, 1)
	s.verdict("seen", "")
}
