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
	"github.com/sonde-mesh/sonde/test/must"
)

// The API server rejects objects that violate the schema before it calls a webhook, with the field, its value and the
// allowed values.
func TestSchema(t *testing.T) {
	namespace(t, newClient(t), "schema", nil)
	mesh := func(spec string) string {
		return sondePath("", "meshes") + " {apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: test}, spec: " + spec + "}"
	}
	dataplane := func(spec string) string {
		return sondePath("schema", "dataplanes") + " {apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: test}, spec: " + spec + "}"
	}
	inbound := func(inbound string) string {
		return dataplane("{networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}, {" + inbound + "}]}}")
	}
	invalid := func(field, value, allowed string) string {
		return fmt.Sprintf("%[1]s: Invalid value: %[2]s: %[1]s in body %[3]s", field, value, allowed)
	}
	tests := map[string]struct {
		request string
		want    string // part of the message; "" if the object is valid
	}{
		"a right Mesh":             {mesh("{mtls: {enabledBackend: a, backends: [{name: a, type: builtin, mode: STRICT, dpCert: {rotation: {expiration: 1d}}}]}}"), ""},
		"a list for the spec":      {mesh("[]"), invalid("spec", `\"array\"`, "must be of type object")},
		"a number for text":        {mesh("{mtls: {enabledBackend: 5}}"), invalid("spec.mtls.enabledBackend", `\"integer\"`, "must be of type string")},
		"an object for a list":     {mesh("{mtls: {backends: {}}}"), invalid("spec.mtls.backends", `\"object\"`, "must be of type array")},
		"text for an object":       {mesh("{mtls: a}"), invalid("spec.mtls", `\"string\"`, "must be of type object")},
		"null":                     {mesh("{mtls: null}"), ""},
		"a number for a duration":  {mesh("{mtls: {backends: [{name: a, type: builtin, dpCert: {rotation: {expiration: 5}}}]}}"), invalid("spec.mtls.backends[0].dpCert.rotation.expiration", `\"integer\"`, "must be of type string")},
		"an unknown field":         {mesh("{mtls: {backends: [{name: a, type: builtin, conf: {cacert: {}}}]}, colour: red}"), `unknown field \"spec.colour\", unknown field \"spec.mtls.backends[0].conf.cacert\"`},
		"a right Dataplane":        {inbound("port: 81, servicePort: 8080, tags: {kuma.io/service: web}, serviceProbe: {periodSeconds: 1}"), ""},
		"a Dataplane without spec": {dataplane("null"), "spec: Required value"},
		"text for a port":          {inbound(`port: "80"`), invalid("spec.networking.inbound[1].port", `\"string\"`, "must be of type integer")},
		"a fraction":               {inbound("port: 1.5"), invalid("spec.networking.inbound[1].port", `\"float64\"`, "must be of type int32")},
		"a port 0":                 {inbound("port: 80, servicePort: 0"), invalid("spec.networking.inbound[1].servicePort", "0", "should be greater than or equal to 1")},
		"a large port":             {inbound("port: 65536"), invalid("spec.networking.inbound[1].port", "65536", "should be less than or equal to 65535")},
		"a port 0 of a probe":      {inbound("port: 80, serviceProbe: {grpc: {port: 0}}"), invalid("spec.networking.inbound[1].serviceProbe.grpc.port", "0", "should be greater than or equal to 1")},
		"a time 0 of a probe":      {inbound("port: 80, serviceProbe: {timeoutSeconds: 0}"), invalid("spec.networking.inbound[1].serviceProbe.timeoutSeconds", "0", "should be greater than or equal to 1")},
		"a number for a switch":    {inbound("port: 80, serverFirst: 1"), invalid("spec.networking.inbound[1].serverFirst", `\"integer\"`, "must be of type boolean")},
		"a number for tags":        {inbound("port: 80, tags: 5"), invalid("spec.networking.inbound[1].tags", `\"integer\"`, "must be of type object")},
		"a list for a tag":         {inbound("port: 80, tags: {a: [1]}"), invalid("spec.networking.inbound[1].tags.a", `\"array\"`, "must be of type string")},
		"a number for a header":    {inbound("port: 80, serviceProbe: {httpGet: {httpHeaders: [{name: a, value: 5}]}}"), invalid("spec.networking.inbound[1].serviceProbe.httpGet.httpHeaders[0].value", `\"integer\"`, "must be of type string")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path, yaml, _ := strings.Cut(tc.request, " ")
			_, err := cluster.Do(t.Context(), http.MethodPost, path+"?fieldValidation=Strict&dryRun=All", "application/yaml", yaml)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestDefaultMesh(t *testing.T) {
	deleteMeshes(t)
	first := startPlane(t, "first")
	must.Poll(t, "the Mesh named default", func(ctx context.Context) error {
		m, err := cluster.Do(ctx, http.MethodGet, sondePath("", "meshes")+"/default", "", "")
		if err == nil && !strings.Contains(m, `"mode":"PERMISSIVE"`) {
			t.Fatalf("default Mesh: %s", m)
		}
		return err
	})
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	must.Poll(t, "the record of the created Mesh", func(ctx context.Context) error {
		_, err := newClient(t).CoreV1().Secrets(systemNamespace).Get(ctx, objects.DefaultMeshMade, metav1.GetOptions{})
		return err
	})
	first.stop()

	// After a user deletes the Mesh, it is not created again.
	remove := func() {
		t.Helper()
		if _, err := cluster.Do(t.Context(), http.MethodDelete, sondePath("", "meshes")+"/default", "", ""); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	apply(t, "", "meshes", "{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: prod}}")
	second := startPlane(t, "second")
	accepted(t, sondePath("", "meshes")+"/prod", "True", "Accepted", "") // the same replica would have created default earlier
	if _, err := cluster.Do(t.Context(), http.MethodGet, sondePath("", "meshes")+"/default", "", ""); err == nil {
		t.Error("a default Mesh was made again")
	}
	second.stop()

	// A new installation creates the Mesh default beside other Meshes.
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

// holder returns the leading replica.
func holder(ctx context.Context, client kubernetes.Interface) (string, error) {
	lease, err := client.CoordinationV1().Leases(systemNamespace).Get(ctx, leader.LeaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("the Lease has no holder")
	}
	return *lease.Spec.HolderIdentity, nil
}

// Two control planes that start at the same time use one CA, and one of them leads.
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
	must.Poll(t, "the CA of the mesh", func(ctx context.Context) error {
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
		return fmt.Errorf("%d Secrets, without a Secret of mesh default", len(made))
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
	must.Poll(t, other+" to lead", func(ctx context.Context) error {
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
