package fidelity_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/held"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// heldPod serves a guarded liveness probe whose failure the agent holds back, and returns its pod as the kubelet sees
// it, with a failure threshold of one. It calls checked for each check.
func heldPod(t *testing.T, hold mesh.LivenessHold, checked func()) *corev1.Pod {
	t.Helper()
	p, err := newAddressPool(2).take("")
	if err != nil {
		t.Fatal(err)
	}
	table := mesh.ProbeTable{{
		ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, PeriodSeconds: 1, FailureThreshold: 1, Guarded: true,
		HTTPGet: &mesh.HTTPGetProbe{Path: "/alive", Port: int32(p.Closed)},
	}}
	guard := held.New(held.Options{Keep: func(*agentv1.Restarts) {}, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	h, err := probe.New(probe.Options{Table: table, PodIP: netip.MustParseAddr(p.IP), Port: p.Virtual, Guarded: guard, Hold: hold, Failed: func(probe.Failure) { checked() }})
	if err != nil {
		t.Fatal(err)
	}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", h.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := h.Serve(ctx, l); err != nil {
			t.Errorf("Serve() error = %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		served.Wait()
	})
	return &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", LivenessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Scheme: corev1.URISchemeHTTP, Path: table[0].VirtualPath(), Port: intstr.FromInt(p.Virtual), HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: "app-liveness"}},
			}},
			TimeoutSeconds: 600, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1,
		}}}},
		Status: corev1.PodStatus{PodIP: p.IP, PodIPs: []corev1.PodIP{{IP: p.IP}}},
	}
}

// TestHeld asks as the kubelet does for a failure that is held back. Errored is discarded, but would be a failure with
// the gate ProbeErrorAsFailure. A warning is a passed check with an event that says HELD, with and without the gate.
func TestHeld(t *testing.T) {
	t.Parallel()
	for hold, want := range map[mesh.LivenessHold]struct {
		verdict  string
		event    string
		withGate bool
	}{
		mesh.HoldErrored: {"Errored", "Warning Unhealthy liveness probe errored and resulted in failure state: ", true},
		mesh.HoldWarning: {"Warning", "Warning ProbeWarning Liveness probe warning: Probe terminated redirects, Response body: HELD by Sonde: not a reason to restart yet: ", false},
	} {
		t.Run(string(hold), func(t *testing.T) {
			pod := heldPod(t, hold, func() {})
			k := kubelet.New()
			defer k.Close()
			verdict, event := k.Probe(t.Context(), pod, pod.Spec.Containers[0], "liveness")
			if verdict != want.verdict || !strings.HasPrefix(strings.ToLower(event), strings.ToLower(want.event)) {
				t.Errorf("verdict %s, event %q; want %s, %q", verdict, event, want.verdict, want.event)
			}
			if counts, withGate := k.Counted(t.Context(), pod, pod.Spec.Containers[0]); counts || withGate != want.withGate {
				t.Errorf("counts as a failure: %t, with the gate: %t; want false, %t", counts, withGate, want.withGate)
			}
		})
	}
}

// TestHeldPodIsNotRestarted lets the kubelet's probe manager ask for some periods, with a failure threshold of one.
func TestHeldPodIsNotRestarted(t *testing.T) {
	t.Parallel()
	for _, hold := range []mesh.LivenessHold{mesh.HoldErrored, mesh.HoldWarning} {
		t.Run(string(hold), func(t *testing.T) {
			t.Parallel()
			slowtest.Skip(t, "a kubelet probes for some seconds")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			const periods = 4
			checks := 0 // needs no lock: checks do not overlap
			kubelet.Watch(ctx, heldPod(t, hold, func() {
				if checks++; checks == periods {
					cancel()
				}
			}), func(c kubelet.Change) {
				if c.Kind == "liveness" && !c.Passed {
					t.Errorf("the kubelet restarted container %s", c.Container)
				}
			})
		})
	}
}
