package watchdog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/watchdog"
)

// The watchdog runs with exactly the chart's rights, under its policies, and uses each right.
func TestRightsOfTheChart(t *testing.T) {
	// Watches stream their initial list if the API server supports that; before 1.34, they need list
	// requests.
	featurestesting.SetFeatureDuringTest(t, features.WatchListClient, false)
	s := newScene(t, "rights", 3)
	manifests, err := chart.Render(t.Context(), "--set=watchdog.enabled=true", "--set=watchdog.namespaces[0].name="+s.name, "--set=watchdog.namespaces[0].secrets={probe}",
		"--set=watchdog.dependants.apps={deployments}")
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.Namespace}}, metav1.CreateOptions{})
	mustCreate(t, made, err)
	granted := install(s, manifests)
	remove, err := cluster.InstallPolicies(t.Context(), manifests)
	t.Cleanup(func() {
		if err := remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	account := asAccount(s)
	s.watch("local: true")
	stop := s.start("a", account)
	s.verdict("seen", "")
	for range 2 { // the second loss patches the event series of the first
		s.connect(false)
		s.scaled(0, 0, 0)
		s.connect(true)
		s.scaled(2, 1, 1)
	}
	stop()
	s.start("b", account) // it takes the next epoch
	s.secret(newProxy(t, apiserver.OwnAddress(t)).kubeconfig(t))
	patch := `{"spec":{"local":null,"kubeconfigSecretName":"probe"}}`
	if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/"+s.name, "application/merge-patch+json", patch); err != nil {
		t.Fatal(err)
	}
	must.Poll(t, "each right to be used", func(context.Context) error { return unused(granted) })
}

// asAccount runs a watchdog with the chart's service account, in its namespace.
func asAccount(s *scene) func(*watchdog.Options) {
	s.t.Helper()
	token, err := s.client.CoreV1().ServiceAccounts(chart.Namespace).CreateToken(s.t.Context(), watchdog.DefaultName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	kubeconfig := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, cluster.Config.Host, token.Status.Token); err != nil {
		s.t.Fatal(err)
	}
	return func(o *watchdog.Options) { o.Kubeconfig, o.Namespace = kubeconfig, chart.Namespace }
}

// unused returns rights that no request of the watchdog has used, and its forbidden requests.
func unused(granted map[string][]rbacv1.PolicyRule) error {
	requests, err := cluster.Requests("system:serviceaccount:" + chart.Namespace + ":" + watchdog.DefaultName)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	var errs []error
	for _, r := range requests {
		if !r.Allowed {
			errs = append(errs, fmt.Errorf("the chart does not allow a request of the watchdog: %s", r))
		}
		used[strings.Join([]string{r.Role, r.Verb, r.Group, r.Resource}, " ")] = r.Allowed
	}
	for role, rules := range granted {
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if right := strings.Join([]string{role, verb, rule.APIGroups[0], resource}, " "); !used[right] {
						errs = append(errs, fmt.Errorf("nothing uses %s", right))
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// install creates the chart's objects for the watchdog, without its Deployment, until the test ends, and returns the
// rules by role.
func install(s *scene, manifests []chart.Manifest) map[string][]rbacv1.PolicyRule {
	t := s.t
	t.Helper()
	granted := map[string][]rbacv1.PolicyRule{}
	for _, m := range manifests {
		if !strings.HasPrefix(m.Name, watchdog.DefaultName) {
			continue
		}
		decode := func(into any) {
			t.Helper()
			if err := m.Decode(into); err != nil {
				t.Fatal(err)
			}
		}
		switch m.Kind {
		case "ServiceAccount":
			var o corev1.ServiceAccount
			decode(&o)
			made, err := s.client.CoreV1().ServiceAccounts(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
			mustCreate(t, made, err)
		case "ClusterRole":
			var o rbacv1.ClusterRole
			decode(&o)
			granted[fmt.Sprintf("ClusterRole %q", o.Name)] = o.Rules
			made, err := s.client.RbacV1().ClusterRoles().Create(t.Context(), &o, metav1.CreateOptions{})
			mustCreate(t, made, err)
			t.Cleanup(func() { // other tests use other rights
				if err := s.client.RbacV1().ClusterRoles().Delete(context.Background(), o.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		case "ClusterRoleBinding":
			var o rbacv1.ClusterRoleBinding
			decode(&o)
			made, err := s.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &o, metav1.CreateOptions{})
			mustCreate(t, made, err)
		case "Role":
			var o rbacv1.Role
			decode(&o)
			granted[fmt.Sprintf("Role %q", o.Name)] = o.Rules
			made, err := s.client.RbacV1().Roles(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
			mustCreate(t, made, err)
		case "RoleBinding":
			var o rbacv1.RoleBinding
			decode(&o)
			made, err := s.client.RbacV1().RoleBindings(o.Namespace).Create(t.Context(), &o, metav1.CreateOptions{})
			mustCreate(t, made, err)
		}
	}
	return granted
}
