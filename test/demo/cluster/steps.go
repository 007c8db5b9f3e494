package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// step is one row of the table.
type step struct {
	title string
	do    func(context.Context) ([]string, error)
}

func (s *scene) steps() []step {
	return []step{
		{"the same pod is created twice, and injected in one namespace", s.start},
		{"both are ready", s.ready},
		{"its probes call the agent, which calls the application", s.probes},
		{"HTTP readiness returns 500", s.httpFails},
		{"HTTP readiness returns 200 again", s.httpHeals},
		{"gRPC liveness is NOT_SERVING", s.grpcFails},
		{"the mesh becomes STRICT", s.strict},
		{"a pod of the mesh calls the other by its Service", s.callInside},
	}
}

func (s *scene) start(ctx context.Context) ([]string, error) {
	if err := s.mode(ctx, mesh.ModePermissive); err != nil {
		return nil, err
	}
	if err := s.create(ctx, plain, nil); err != nil {
		return nil, err
	}
	if err := s.create(ctx, meshed, map[string]string{mesh.LabelInjection: "enabled"}); err != nil {
		return nil, err
	}
	pod, err := s.client.CoreV1().Pods(meshed).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var containers []string
	for i := range pod.Spec.InitContainers {
		containers = append(containers, pod.Spec.InitContainers[i].Name)
	}
	if !slices.Equal(containers, []string{mesh.ContainerInit, mesh.ContainerSidecar}) {
		return nil, fmt.Errorf("its init containers are %v", containers)
	}
	return []string{meshed + " has " + strings.Join(containers, " and ") + " too; the manifest is the same"}, nil
}

func (s *scene) ready(ctx context.Context) ([]string, error) {
	return s.both(ctx, func(now state) bool { return now.ready && now.inService && now.restarts == 0 })
}

func (s *scene) probes(ctx context.Context) ([]string, error) {
	pod, err := s.client.CoreV1().Pods(meshed).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &pod.Spec.Containers[0]
	var seen []string
	for _, p := range []struct{ what, path string }{
		{"readiness", c.ReadinessProbe.HTTPGet.Path}, {"liveness", c.LivenessProbe.HTTPGet.Path},
		{"startup", c.StartupProbe.HTTPGet.Path},
	} {
		target := "http://" + mesh.JoinHostPort(pod.Status.PodIP, mesh.PortVirtualProbes) + p.path
		if _, err := request(ctx, http.MethodGet, target); err != nil {
			return seen, err
		}
		seen = append(seen, fmt.Sprintf("%-10s GET :%d%s  200", p.what, mesh.PortVirtualProbes, p.path))
	}
	return seen, nil
}

func (s *scene) httpFails(ctx context.Context) ([]string, error) {
	if err := s.tell(ctx, "/http?status=500"); err != nil {
		return nil, err
	}
	return s.withEvents(ctx, "statuscode: 500", func(now state) bool { return !now.ready && !now.inService && now.restarts == 0 })
}

func (s *scene) httpHeals(ctx context.Context) ([]string, error) {
	if err := s.tell(ctx, "/http?status=200"); err != nil {
		return nil, err
	}
	return s.ready(ctx)
}

func (s *scene) grpcFails(ctx context.Context) ([]string, error) {
	if err := s.tell(ctx, "/grpc?service=liveness&status=NOT_SERVING"); err != nil {
		return nil, err
	}
	return s.withEvents(ctx, "NOT_SERVING", func(now state) bool { return now.restarts == 1 && now.ready })
}

// withEvents is both, and checks that each pod has a warning event with that text.
func (s *scene) withEvents(ctx context.Context, text string, holds func(state) bool) ([]string, error) {
	seen, err := s.both(ctx, func(now state) bool {
		return holds(now) && slices.ContainsFunc(now.events, func(e string) bool { return strings.Contains(e, text) })
	})
	if err != nil {
		return seen, err
	}
	for _, namespace := range []string{plain, meshed} {
		now, err := s.state(ctx, namespace)
		if err != nil {
			return seen, err
		}
		for _, e := range now.events {
			if strings.Contains(e, text) {
				seen = append(seen, fmt.Sprintf("%-10s  event %s", namespace, e))
			}
		}
	}
	return seen, nil
}

func (s *scene) strict(ctx context.Context) ([]string, error) {
	if err := s.mode(ctx, mesh.ModeStrict); err != nil {
		return nil, err
	}
	now, err := s.state(ctx, meshed)
	if err != nil {
		return nil, err
	}
	// Envoy receives the new mode a moment later.
	var refused error
	err = wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		_, refused = request(ctx, http.MethodGet, "http://"+mesh.JoinHostPort(now.address, portHTTP)+"/healthz")
		return refused != nil, nil
	})
	if err != nil {
		return nil, errors.New("plain requests are still served")
	}
	seen := []string{"a plain request to the application: " + lastPart(refused)}
	more, err := s.stillReady(ctx)
	return append(seen, more...), err
}

// stillReady waits until both pods are ready.
func (s *scene) stillReady(ctx context.Context) ([]string, error) {
	return s.both(ctx, func(now state) bool { return now.ready && now.inService })
}

func (s *scene) callInside(ctx context.Context) ([]string, error) {
	now, err := s.state(ctx, meshed)
	if err != nil {
		return nil, err
	}
	target := "http://" + name + "." + meshed + ".svc.cluster.local/"
	var answer called
	// The caller's Envoy receives an endpoint's change a moment after the API server: on a busy machine, the pod may
	// have been unready just now.
	err = wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		var err error
		answer, err = s.call(ctx, now.address, target)
		return answer.Body != noEndpoint, err
	})
	if err != nil && !wait.Interrupted(err) {
		return nil, err
	}
	if answer.Status != http.StatusOK {
		return nil, fmt.Errorf("%s returns %d %s%s", target, answer.Status, answer.Body, answer.Error)
	}
	return []string{target + " returns 200, over mTLS"}, nil
}

// noEndpoint is the body of Envoy's 503 without a ready endpoint.
const noEndpoint = "no healthy upstream"

// called is the result of an application's request.
type called struct {
	Status      int
	Body, Error string
}

// call has the application in a pod send a request.
func (s *scene) call(ctx context.Context, pod, target string) (called, error) {
	address := "http://" + mesh.JoinHostPort(pod, portControl) + "/call?url=" + url.QueryEscape(target)
	body, err := request(ctx, http.MethodGet, address)
	if err != nil {
		return called{}, err
	}
	var answer called
	err = json.Unmarshal([]byte(body), &answer)
	return answer, err
}

// mode sets the mode of the mesh default.
func (s *scene) mode(ctx context.Context, mode mesh.MTLSMode) error {
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil,
		`{"spec":{"mtls":{"enabledBackend":"ca-1","backends":[{"name":"ca-1","type":"builtin","mode":%q}]}}}`, mode)
	meshes := client.Resource(schema.GroupVersionResource{Group: "sonde.dev", Version: "v1alpha1", Resource: "meshes"})
	// The control plane creates the mesh a moment after its start.
	return wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		_, err := meshes.Patch(ctx, mesh.DefaultMesh, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func lastPart(err error) string {
	parts := strings.Split(err.Error(), ": ")
	return parts[len(parts)-1]
}
