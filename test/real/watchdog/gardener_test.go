package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/watchdog"
)

const (
	clustersPath = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
	crdsPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	merge        = "application/merge-patch+json"
)

// clusterCRD is Gardener's CustomResourceDefinition of Clusters.
const clusterCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.extensions.gardener.cloud}
spec:
  group: extensions.gardener.cloud
  names: {kind: Cluster, listKind: ClusterList, plural: clusters, singular: cluster}
  scope: Cluster
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [cloudProfile, shoot]
            properties:
              cloudProfile: {type: object, x-kubernetes-preserve-unknown-fields: true}
              seed: {type: object, x-kubernetes-preserve-unknown-fields: true}
              shoot: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// created is a created shoot.
const created = `{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "metadata": {"name": "b", "namespace": "garden-a"},
"spec": {"hibernation": {"enabled": false}, "kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "` + grace + `"}}, "provider": {"workers": [{"name": "w"}]}},
"status": {"hibernated": false, "lastOperation": {"type": "Create", "state": "Succeeded"}}}`

// installGardener installs Clusters at the API server.
func installGardener(t *testing.T) {
	t.Helper()
	if _, err := cluster.Do(t.Context(), http.MethodPost, crdsPath, "application/yaml", clusterCRD); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
	must.Poll(t, "Clusters to be served", func(ctx context.Context) error {
		_, err := cluster.Do(ctx, http.MethodGet, clustersPath, "", "")
		return err
	})
}

// seedShoot is a Cluster of Gardener, with the name of the scene's namespace.
type seedShoot struct {
	*scene

	p *proxy
}

// newSeedShoot creates a shoot, and the Secret with its kubeconfig.
func newSeedShoot(t *testing.T, name string, nodes int) *seedShoot {
	t.Helper()
	installGardener(t)
	s := &seedShoot{scene: newScene(t, name, nodes), p: newProxy(t, apiserver.OwnAddress(t))}
	s.secret(s.p.kubeconfig(t))
	s.create()
	t.Cleanup(func() { // this API server has no garbage collector
		_, _ = cluster.Do(context.Background(), http.MethodDelete, s.path()+"/config", "", "")
		_, _ = cluster.Do(context.Background(), http.MethodDelete, clustersPath+"/"+name, "", "")
	})
	return s
}

func (s *seedShoot) create() {
	s.t.Helper()
	body := `{"apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "Cluster", "metadata": {"name": "` + s.name + `"}, "spec": {"cloudProfile": {"kind": "CloudProfile"}, "shoot": ` + created + `}}`
	if _, err := cluster.Do(s.t.Context(), http.MethodPost, clustersPath, "application/json", body); err != nil {
		s.t.Fatal(err)
	}
}

// shoot patches the shoot, as gardenlet does.
func (s *seedShoot) shoot(patch string) {
	s.t.Helper()
	if _, err := cluster.Do(s.t.Context(), http.MethodPatch, clustersPath+"/"+s.name, merge, `{"spec": {"shoot": `+patch+`}}`); err != nil {
		s.t.Fatal(err)
	}
}

// config returns the WatchedCluster of the shoot.
func (s *seedShoot) config(ctx context.Context) (*v1alpha1.WatchedCluster, error) {
	text, err := cluster.Do(ctx, http.MethodGet, s.path()+"/config", "", "")
	if err != nil {
		return nil, err
	}
	var o v1alpha1.WatchedCluster
	return &o, json.Unmarshal([]byte(text), &o)
}

// is waits until the WatchedCluster has a verdict, and its condition Probed a reason.
func (s *seedShoot) is(verdict, reason string) *v1alpha1.WatchedCluster {
	s.t.Helper()
	var o *v1alpha1.WatchedCluster
	must.Poll(s.t, verdict+" "+reason, func(ctx context.Context) (err error) {
		if o, err = s.config(ctx); err != nil {
			return err
		}
		for _, c := range o.Status.Conditions {
			if c.Type == "Probed" && c.Reason == reason && o.Status.Verdict == verdict {
				return nil
			}
		}
		return fmt.Errorf("the status is %+v", o.Status)
	})
	return o
}

// dwdFile writes a configuration file of the Dependency Watchdog, whose grace period differs from
// the shoots'.
func dwdFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dep-config.yaml")
	text := "kubeConfigSecretName: probe\nkcmNodeMonitorGraceDuration: 10m\nprobeInterval: " + interval + "\ninitialDelay: 0s\nprobeTimeout: 5s\ndependentResourceInfos: " + example + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// withGardener makes a watchdog follow Clusters.
func withGardener(path string) func(*watchdog.Options) {
	return func(o *watchdog.Options) { o.Gardener, o.File, o.FileCluster = true, path, watchdog.DefaultFileCluster }
}

// The watchdog watches a shoot while Gardener runs it, from the start or later, with the settings of the file and of
// the shoot.
func TestShoot(t *testing.T) {
	s := newSeedShoot(t, "shoot--a--b", 4)
	s.shoot(`{"status": {"lastOperation": {"state": "Processing"}}}`)
	other := newScene(t, "beside", 0) // a WatchedCluster of a user is watched as well
	other.watch("kubeconfigSecretName: none")
	s.start("a", withGardener(dwdFile(t)))
	other.condition("Probed", "False", "must be an existing Secret")
	if o, err := s.config(t.Context()); err == nil {
		t.Errorf("a shoot that is being created has a WatchedCluster: %+v", o)
	}
	s.shoot(`{"status": {"lastOperation": {"state": "Succeeded"}}}`)
	o := s.is("seen", "Probed")
	if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].Kind != "Cluster" || o.OwnerReferences[0].Name != s.name || o.Spec.Settings.KCMNodeMonitorGraceDuration.Duration.String() != grace || len(o.Spec.Dependants) != 3 {
		t.Errorf("the WatchedCluster is %+v, %+v", o.ObjectMeta, o.Spec)
	}
	for _, tc := range []struct{ halt, patch, back string }{
		{"ShootHibernated", `{"spec": {"hibernation": {"enabled": true}}}`, `{"spec": {"hibernation": {"enabled": false}}}`},
		{"ShootWaking", `{"status": {"hibernated": true}}`, `{"status": {"hibernated": false}}`},
		{"ShootMigrating", `{"status": {"lastOperation": {"type": "Migrate"}}}`, `{"status": {"lastOperation": {"type": "Restore"}}}`},
		{"ShootMigrating", `{"status": {"lastOperation": {"state": "Processing"}}}`, `{"status": {"lastOperation": {"state": "Succeeded"}}}`},
		{"ShootWorkerless", `{"spec": {"provider": {"workers": []}}}`, `{"spec": {"provider": {"workers": [{}]}}}`},
		{"ShootUnreadable", `{"spec": {"provider": {"workers": "three"}}}`, `{"spec": {"provider": {"workers": [{}]}}}`},
		{"ShootDeleted", `{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}`, `{"metadata": {"deletionTimestamp": null}}`},
	} {
		s.shoot(tc.patch)
		s.is("", tc.halt)
		s.shoot(tc.back)
		s.is("seen", "Probed")
	}
	must.Poll(t, "the condition to report the end of probes", func(ctx context.Context) error {
		events, err := s.client.EventsV1().Events(s.name).List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == "ProbesEnded" && e.Regarding.Name == "config" && strings.HasPrefix(e.Note, "not probed: the shoot ")
		}) {
			err = fmt.Errorf("the events are %+v", events.Items)
		}
		return err
	})
	s.shoot(`{"spec": {"hibernation": {"enabled": true}}}`)
	s.is("", "ShootHibernated")
	s.connect(false)
	s.stays("hibernated", longEnough)
	s.connect(true)
	s.shoot(`{"spec": {"hibernation": {"enabled": false}}}`)
	s.is("seen", "Probed")
	s.connect(false)
	s.scaled(0, 0, 0)
	s.connect(true)
	s.scaled(2, 1, 1)
}

// Hibernation ends a loss, also for the next leader: scaled-down dependants stay down, and are scaled up when the
// nodes are back. An operator's pause survives hibernation and changes of the leader.
func TestShootHibernatesWhileLost(t *testing.T) {
	s := newSeedShoot(t, "shoot--c--d", 3)
	file := dwdFile(t)
	stop := s.start("a", withGardener(file))
	s.is("seen", "Probed")
	s.connect(false)
	s.scaled(0, 0, 0)
	s.taken()
	s.shoot(`{"spec": {"hibernation": {"enabled": true}}, "status": {"hibernated": true}}`)
	if o := s.is("", "ShootHibernated"); o.Status.LostSince != nil || len(o.Status.Steps) != 3 {
		t.Errorf("the status is %+v, want the steps, and no loss", o.Status)
	}
	s.connect(true)
	stop()
	stop = s.start("b", withGardener(file)) // hibernated from the start
	s.stays("hibernated", 2*time.Second)
	s.shoot(`{"spec": {"hibernation": {"enabled": false}}}`)
	s.is("", "ShootWaking")
	s.shoot(`{"status": {"hibernated": false, "lastOperation": {"type": "Reconcile"}}}`)
	s.scaled(2, 1, 1)
	s.taken()
	s.is("seen", "Probed")
	if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/config", merge, `{"spec":{"paused":true}}`); err != nil {
		t.Fatal(err)
	}
	stop()
	s.start("c", withGardener(file))
	s.shoot(`{"spec": {"hibernation": {"enabled": true}, "kubernetes": {"kubeControllerManager": {"nodeMonitorGracePeriod": "3s"}}}}`)
	s.is("", "ShootHibernated")
	s.shoot(`{"spec": {"hibernation": {"enabled": false}}}`)
	must.Poll(t, "the new grace period", func(ctx context.Context) error {
		o, err := s.config(ctx)
		if err == nil && (o.Spec.Settings.KCMNodeMonitorGraceDuration.Duration.String() != "3s" || !o.Spec.Paused) {
			err = fmt.Errorf("the spec is %+v", o.Spec)
		}
		return err
	})
	s.is("seen", "Probed")
	s.connect(false)
	s.is("lost", "Probed")
	s.stays("paused", time.Second)
}

// Deleting a Cluster ends its probes, even before the garbage collector deletes its WatchedCluster; a new Cluster
// with the same name is another one. Without --gardener, the WatchedCluster of a shoot is not probed.
func TestClusterGoes(t *testing.T) {
	s := newSeedShoot(t, "shoot--e--f", 3)
	file := dwdFile(t)
	stop := s.start("a", withGardener(file))
	first := s.is("seen", "Probed")
	if _, err := cluster.Do(t.Context(), http.MethodDelete, clustersPath+"/"+s.name, "", ""); err != nil {
		t.Fatal(err)
	}
	s.is("", "ShootDeleted")
	s.create()
	if again := s.is("seen", "Probed"); len(again.OwnerReferences) != 1 || again.OwnerReferences[0].UID == first.OwnerReferences[0].UID {
		t.Errorf("the owners are %+v, and were %+v", again.OwnerReferences, first.OwnerReferences)
	}
	stop()
	s.start("b")
	s.is("", "ShootUnfollowed")
	s.connect(false)
	s.stays("not followed", longEnough)
}

// chartConfig is a configuration file, as a value of the chart.
const chartConfig = `{"kubeConfigSecretName": "probe", "kcmNodeMonitorGraceDuration": "10m", "probeInterval": "` + interval + `", "initialDelay": "0s", "dependentResourceInfos": [
{"ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "kcm"}, "scaleUp": {"level": 0}, "scaleDown": {"level": 1}},
{"ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "mcm"}, "scaleUp": {"level": 1}, "scaleDown": {"level": 0}},
{"ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ca"}, "scaleUp": {"level": 2}, "scaleDown": {"level": 0}}]}`

// With the chart's rights and configuration, the watchdog follows shoots and uses each right.
func TestRightsForShoots(t *testing.T) {
	featurestesting.SetFeatureDuringTest(t, features.WatchListClient, false) // as in TestRightsOfTheChart
	s := newSeedShoot(t, "shoot--g--h", 3)
	manifests, err := chart.Render(t.Context(), "--set=watchdog.enabled=true", "--set=watchdog.local=false", "--set=watchdog.dependants.apps={deployments}", "--set=watchdog.gardener.enabled=true",
		"--set-json=watchdog.gardener.config="+chartConfig)
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.Namespace}}, metav1.CreateOptions{})
	mustCreate(t, made, err)
	granted := install(s.scene, manifests)
	file := filepath.Join(t.TempDir(), "dep-config.yaml")
	for _, m := range manifests {
		if m.Kind != "ConfigMap" || m.Name != watchdog.DefaultName {
			continue
		}
		var o corev1.ConfigMap
		if err := errors.Join(m.Decode(&o), os.WriteFile(file, []byte(o.Data["dep-config.yaml"]), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s.start("a", withGardener(file), asAccount(s.scene))
	s.is("seen", "Probed")
	s.connect(false)
	s.scaled(0, 0, 0)
	s.connect(true)
	s.scaled(2, 1, 1)
	const role = `ClusterRole "sonde-watchdog-shoots"`
	shoots := slices.DeleteFunc(granted[role], func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.Verbs, []string{"create"}) // the API server itself checks it if a patch has to create
	})
	if len(shoots) == 0 || len(shoots) == len(granted[role]) {
		t.Fatalf("the rights for shoots are %v", granted[role])
	}
	must.Poll(t, "each right for shoots to be used", func(context.Context) error { return unused(map[string][]rbacv1.PolicyRule{role: shoots}) })
}
