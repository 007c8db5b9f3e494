package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/objects"
)

// What no type of the API allows is refused before any webhook is asked.
func TestSchema(t *testing.T) {
	namespace(t, newClient(t), "schema", nil)
	tests := map[string]struct {
		namespace, resource, spec string
		want                      string
	}{
		"a right Mesh": {
			resource: "meshes", spec: `{mtls: {enabledBackend: a, backends: [{name: a, type: builtin, mode: STRICT}]}}`,
		},
		"a text for a list":        {resource: "meshes", spec: `{mtls: {backends: a}}`, want: "spec.mtls.backends"},
		"an unknown field":         {resource: "meshes", spec: `{mtls: {enabledBackends: a}}`, want: `unknown field \"spec.mtls.enabledBackends\"`},
		"a Dataplane without spec": {namespace: "schema", resource: "dataplanes", spec: "null", want: "spec"},
		"a text for a port": {
			namespace: "schema", resource: "dataplanes", want: "spec.networking.inbound[0].port",
			spec: `{networking: {address: 10.0.0.1, inbound: [{port: "80", tags: {kuma.io/service: web}}]}}`,
		},
		"a right Dataplane": {
			namespace: "schema", resource: "dataplanes", spec: `{networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}`,
		},
	}
	kinds := map[string]string{"meshes": "Mesh", "dataplanes": "Dataplane"}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			yaml := fmt.Sprintf("{apiVersion: sonde.dev/v1alpha1, kind: %s, metadata: {name: test}, spec: %s}", kinds[tc.resource], tc.spec)
			_, err := cluster.Do(t.Context(), http.MethodPost, sondePath(tc.namespace, tc.resource)+"?fieldValidation=Strict&dryRun=All", "application/yaml", yaml)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestDefaultMesh(t *testing.T) {
	deleteMeshes(t)
	first := startPlane(t, "first")
	poll(t, "the Mesh named default", func(ctx context.Context) error {
		m, err := cluster.Do(ctx, http.MethodGet, sondePath("", "meshes")+"/default", "", "")
		if err == nil && !strings.Contains(m, `"mode":"PERMISSIVE"`) {
			t.Fatalf("default Mesh: %s", m)
		}
		return err
	})
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	poll(t, "a note that it was made", func(ctx context.Context) error {
		_, err := newClient(t).CoreV1().Secrets(systemNamespace).Get(ctx, objects.DefaultMeshMade, metav1.GetOptions{})
		return err
	})
	first.stop()

	// Somebody deletes it: it stays away.
	remove := func() {
		t.Helper()
		if _, err := cluster.Do(t.Context(), http.MethodDelete, sondePath("", "meshes")+"/default", "", ""); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	apply(t, "", "meshes", "{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: prod}}")
	second := startPlane(t, "second")
	accepted(t, sondePath("", "meshes")+"/prod", "True", "Accepted", "") // the same replica would have made it before
	if _, err := cluster.Do(t.Context(), http.MethodGet, sondePath("", "meshes")+"/default", "", ""); err == nil {
		t.Error("a default Mesh was made again")
	}
	second.stop()

	// In a new installation it is made beside other Meshes.
	forgetDefaultMesh(t)
	startPlane(t, "third")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
}

func TestAcceptedConditions(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "accepted", map[string]string{"kuma.io/mesh": "later"})
	p := startPlane(t, "a")
	const dataplane = `{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: %s}}]}}}`
	apply(t, "accepted", "dataplanes", fmt.Sprintf(dataplane, "web"))
	path := sondePath("accepted", "dataplanes") + "/vm"
	accepted(t, path, "False", "UnknownMesh", `mesh \"later\" does not exist`)
	apply(t, "", "meshes", "{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: later}}")
	accepted(t, path, "True", "Accepted", "")

	change := func(service string) {
		t.Helper()
		patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/networking/inbound/0/tags", "value": {"kuma.io/service": %q}}]`, service)
		if _, err := cluster.Do(t.Context(), http.MethodPatch, path, "application/json-patch+json", patch); err != nil {
			t.Fatal(err)
		}
	}
	change("web_bank_svc_80")
	accepted(t, path, "False", "Invalid", "must not be a service of another namespace")
	change("web_accepted_svc_80")
	accepted(t, path, "True", "Accepted", "")
	if _, err := cluster.Do(t.Context(), http.MethodDelete, path, "", ""); err != nil {
		t.Fatal(err)
	}
	p.stop()
}

// holder returns which replica leads.
func holder(ctx context.Context, client kubernetes.Interface) (string, error) {
	lease, err := client.CoordinationV1().Leases(systemNamespace).Get(ctx, leader.LeaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("nobody has the Lease")
	}
	return *lease.Spec.HolderIdentity, nil
}

// Two control planes that start at the same time have one CA, and one of them leads.
func TestTwoReplicas(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	if err := client.CoreV1().Secrets(systemNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	replicas := make([]*plane, 2)
	var both sync.WaitGroup
	for i := range replicas {
		both.Go(func() { replicas[i] = startPlane(t, fmt.Sprint("replica-", i)) })
	}
	both.Wait()
	if t.Failed() {
		return
	}
	var made []corev1.Secret
	poll(t, "the CA of the mesh", func(ctx context.Context) error {
		all, err := client.CoreV1().Secrets(systemNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		made = all.Items
		for i := range made {
			if strings.Contains(made[i].Name, "default") {
				return nil
			}
		}
		return fmt.Errorf("%d Secrets, none of mesh default", len(made))
	})
	leads, err := holder(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	i := strings.TrimPrefix(leads, "replica-")
	other := "replica-0"
	if i == "0" {
		other = "replica-1"
		replicas[0].stop()
	} else {
		replicas[1].stop()
	}
	poll(t, other+" to lead", func(ctx context.Context) error {
		now, err := holder(ctx, client)
		if err == nil && now != other {
			err = fmt.Errorf("%s leads", now)
		}
		return err
	})
	apply(t, "", "meshes", "{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: acts}}")
	accepted(t, sondePath("", "meshes")+"/acts", "True", "Accepted", "")
	for _, before := range made {
		now, err := client.CoreV1().Secrets(systemNamespace).Get(t.Context(), before.Name, metav1.GetOptions{})
		if err != nil || now.UID != before.UID {
			t.Errorf("Secret %s was made again: %v", before.Name, err)
		}
	}
}
