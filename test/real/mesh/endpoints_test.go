package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// plainEndpoint is an endpoint without a sidecar.
type plainEndpoint struct {
	at     string
	health string // "ready: false", or empty
}

// serviceYAML returns a Service with the given endpoints.
func serviceYAML(t *testing.T, name, protocol string, endpoints ...plainEndpoint) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "type: Service\nmesh: default\nname: %s\nprotocol: %s\n", name, protocol)
	if len(endpoints) > 0 {
		text.WriteString("endpoints:\n")
	}
	for _, e := range endpoints {
		fmt.Fprintf(&text, "- {address: 127.0.0.1, port: %d, health: {%s}}\n", must.Port(t, e.at), e.health)
	}
	return text.String()
}

// answersOf makes calls until exactly these instances respond.
func answersOf(t *testing.T, at string, want ...string) {
	t.Helper()
	c := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer c.Close()
	must.Poll(t, fmt.Sprintf("answers of %s", want), func(ctx context.Context) error {
		got := map[string]bool{}
		for range 10 * len(want) {
			instance, err := c.Call(ctx)
			if err != nil {
				return err
			}
			got[instance] = true
		}
		for _, instance := range want {
			if !got[instance] {
				return fmt.Errorf("they are of %v", got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("they are of %v", got)
		}
		return nil
	})
}

// noEndpoint makes an HTTP call that Envoy must fail itself, because the service has no endpoint.
func noEndpoint(ctx context.Context, at string) error {
	c := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer c.Close()
	instance, err := c.Call(ctx)
	if status, ok := errors.AsType[*harness.StatusError](err); ok && status.Code == http.StatusServiceUnavailable &&
		strings.Contains(status.Body, "no healthy upstream") {
		return nil
	}
	return fmt.Errorf("%q answers, error %w", instance, err)
}

func TestEndpointsOfSidecars(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	b := harness.ProxyOptions{Service: "b"}
	first, second := b, b
	first.Name, second.Name = "b-1", "b-2"
	proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, first)
	a, b1 := proxies[0], proxies[1]
	answersOf(t, a.Outbounds["b"], "b-1")

	started := time.Now()
	b2 := must.Add(t, m, second)[0]
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")
	t.Logf("a new replica is called %s after its start", time.Since(started))

	started = time.Now()
	must.Do(t, b1.SetReady(false))
	must.HaveEndpoints(t, a, "b", b2.Inbound)
	t.Logf("an endpoint that is not ready was removed after %s", time.Since(started))
	answersOf(t, a.Outbounds["b"], "b-2")

	must.Do(t, b2.SetReady(false))
	must.HaveEndpoints(t, a, "b")
	if err := noEndpoint(t.Context(), a.Outbounds["b"]); err != nil {
		t.Error(err)
	}

	must.Do(t, b1.SetReady(true))
	answersOf(t, a.Outbounds["b"], "b-1")
	must.Do(t, b2.SetReady(true))
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")

	must.Do(t, m.Remove("b-1.yaml"))
	must.HaveEndpoints(t, a, "b", b2.Inbound)
	answersOf(t, a.Outbounds["b"], "b-2")
	must.Do(t, m.Remove("b-2.yaml"))
	// The protocol of the empty service is unknown: Envoy accepts connections, but has no endpoint for them.
	must.Poll(t, "the service to be empty", func(ctx context.Context) error {
		c := harness.NewHTTPCaller("http://"+a.Outbounds["b"]+"/", false, false)
		defer c.Close()
		if instance, err := c.Call(ctx); !errors.Is(err, io.EOF) {
			return fmt.Errorf("%q answers, error %w", instance, err)
		}
		return nil
	})
}

func TestEndpointsWithoutSidecars(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	here, there := must.FreeAddress(t, m), must.FreeAddress(t, m)
	for name, at := range map[string]string{"here": here, "there": there} {
		_, err := m.StartApp(t.Context(), name, "http", at)
		must.Do(t, err)
	}
	put := func(endpoints ...plainEndpoint) {
		t.Helper()
		must.Do(t, m.Put("web.yaml", serviceYAML(t, "web", "http", endpoints...)))
		must.Do(t, m.Put("raw.yaml", serviceYAML(t, "raw", "tcp", endpoints...)))
	}
	put(plainEndpoint{at: here})
	a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"web", "raw"}})[0]
	services := []string{"web", "raw"} // the application speaks HTTP, which Envoy can also forward as TCP
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here")
	}

	put(plainEndpoint{at: here}, plainEndpoint{at: there})
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here", "there")
	}

	put(plainEndpoint{at: there}) // the endpoint has moved
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "there")
	}

	put(plainEndpoint{at: here, health: "ready: false"}, plainEndpoint{at: there, health: "ready: false"})
	for _, service := range services {
		must.HaveEndpoints(t, a, service)
	}
	if err := noEndpoint(t.Context(), a.Outbounds["web"]); err != nil {
		t.Error(err)
	}
	for range 10 {
		if err := closedWithout(must.Connect(t, a.Outbounds["raw"])); err != nil {
			t.Error(err)
		}
	}

	put(plainEndpoint{at: here}, plainEndpoint{at: there})
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here", "there")
	}
}
