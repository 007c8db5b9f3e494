package fidelity_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/strangers"
)

// TestPerPortFloods sends requests from strangers to the ports of a pod. The kubelet must still get the right verdict
// for each probe.
func TestPerPortFloods(t *testing.T) {
	slowtest.Skip(t, "a flood")
	const connections, rounds = 1600, 6
	toHTTP := func(w *perPortPod) netip.AddrPort { return w.http }
	toGRPC := func(w *perPortPod) netip.AddrPort { return w.grpc }
	for test, tc := range []struct {
		name      string
		at        func(*perPortPod) netip.AddrPort
		addresses int
		kind      string
	}{
		{"HTTP, idle, one address", toHTTP, 1, "idle"},
		{"HTTP, idle, many addresses", toHTTP, connections, "idle"},
		{"HTTP, all shapes", toHTTP, 100, "http"},
		{"gRPC, idle, one address", toGRPC, 1, "idle"},
		{"gRPC, idle, many addresses", toGRPC, connections, "idle"},
		{"gRPC, all shapes", toGRPC, 100, "http2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newPerPortPod(t, 10+test, cases.Unforgiving())
			askAll := func() (asked int) {
				t.Helper()
				w.each(func(container, kind string) {
					begin := time.Now()
					verdict, message := w.ask(container, kind)
					if verdict != cases.Success {
						t.Errorf("%s of %s: %s after %s: %s, want %s", kind, container, verdict, time.Since(begin), message, cases.Success)
					}
					asked++
				})
				return asked
			}
			askAll()
			attack := strangers.Attack{Connections: connections, Addresses: tc.addresses, Kind: tc.kind, Path: "/x"}
			opened, stop := attack.Start(t, tc.at(w).String())
			defer stop()
			eventually(t, fmt.Sprintf("%d connections", connections), func() bool { return opened() >= connections })
			asked := 0
			second := time.NewTicker(time.Second)
			defer second.Stop()
			for range rounds {
				asked += askAll()
				<-second.C
			}
			w.end()
			for _, container := range []string{"web", "grpc"} {
				if verdict, message := w.ask(container, "liveness"); verdict != cases.Failure {
					t.Errorf("%s while its application is down: %s: %s", container, verdict, message)
				}
			}
			t.Logf("%d connections in total, %d probes", opened(), asked)
		})
	}
}

// each calls do for each probe that the agent answers.
func (w *perPortPod) each(do func(container, kind string)) {
	for _, list := range [][]corev1.Container{w.injected.Spec.InitContainers, w.injected.Spec.Containers} {
		for i := range list {
			for _, kind := range cases.Kinds {
				if probe := cases.ProbeOf(&list[i], kind); probe != nil && probe.TCPSocket == nil {
					do(list[i].Name, kind)
				}
			}
		}
	}
}
