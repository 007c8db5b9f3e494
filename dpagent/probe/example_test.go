package probe_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// The kubelet asks the agent, which asks the application as the kubelet would have done, and passes the verdict on.
func ExampleHandler() {
	healthy := true
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !healthy {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer application.Close()
	address, err := url.Parse(application.URL)
	if err != nil {
		log.Fatal(err)
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		log.Fatal(err)
	}

	handler, err := probe.New(probe.Options{
		PodIP: netip.MustParseAddr("127.0.0.1"),
		Port:  9000,
		Table: mesh.ProbeTable{{
			ID: "web-liveness", Type: mesh.ProbeLiveness, TimeoutSeconds: 1,
			HTTPGet: &mesh.HTTPGetProbe{Path: "/healthz", Port: int32(port), Scheme: mesh.SchemeHTTP},
		}},
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
