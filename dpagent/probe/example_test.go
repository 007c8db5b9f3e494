package probe_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// The kubelet probes the agent. The agent probes the application as the kubelet would, and passes the verdict on.
func ExampleHandler() {
	network, healthy := virtual.NewNetwork(), true
	l, err := network.Listen(context.Background(), "tcp", "192.0.2.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	application := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !healthy {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})}
	go func() { _ = application.Serve(l) }() // until l is closed
	defer func() { _ = application.Close() }()

	handler, err := probe.New(probe.Options{
		PodIP: netip.MustParseAddr("192.0.2.1"),
		Port:  9000,
		Table: mesh.ProbeTable{{
			ID: "web-liveness", Type: mesh.ProbeLiveness, TimeoutSeconds: 60,
			HTTPGet: &mesh.HTTPGetProbe{Path: "/healthz", Port: 8080, Scheme: mesh.SchemeHTTP},
		}},
		Dial: network.DialFrom("192.0.2.1"),
	})
	if err != nil {
		log.Fatal(err)
	}
	ask := func() {
		request := httptest.NewRequest(http.MethodGet, handler.Table()[0].VirtualPath(), http.NoBody)
		request.Header.Set(mesh.ProbeHeader, "web-liveness")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		fmt.Println(answer.Code)
	}
	ask()
	healthy = false
	ask()
	// Output:
	// 200
	// 500
}
