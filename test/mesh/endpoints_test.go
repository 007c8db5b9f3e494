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
)

// plainEndpoint is an endpoint without a sidecar.
type plainEndpoint struct {
	at     string
	health string // "ready: false", or nothing
}

// serviceYAML returns a Service with those endpoints.
func serviceYAML(t *testing.T, name, protocol string, endpoints ...plainEndpoint) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "type: Service\nmesh: default\nname: %s\nprotocol: %s\n", name, protocol)
	if len(endpoints) > 0 {
		text.WriteString("endpoints:\n")
	}
	for _, e := range endpoints {
		fmt.Fprintf(&text, "- {address: 127.0.0.1, port: %d, health: {%s}}\n", portOf(t, e.at), e.health)
	}
	return text.String()
}

// answersOf makes calls until exactly these instances answer.
func answersOf(t *testing.T, at string, want ...string) {
	t.Helper()
	c := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer c.Close()
	poll(t, fmt.Sprintf("answers of %s", want), func(ctx context.Context) error {
		got := map[string]bool{}
		for range 10 * len(want) {
			instance, err := call(ctx, c)
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

// noEndpoint makes an HTTP call that Envoy must answer itself, since there is no endpoint.
func noEndpoint(ctx context.Context, at string) error {
	c := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer c.Close()
	instance, err := call(ctx, c)
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
	proxies := add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, first)
	a, b1 := proxies[0], proxies[1]
	answersOf(t, a.Outbounds["b"], "b-1")

	started := time.Now()
	b2 := add(t, m, second)[0]
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")
	t.Logf("a new replica is called %s after its start", time.Since(started))

	started = time.Now()
	must(t, b1.SetReady(false))
	endpoints(t, a, "b", b2.Inbound)
	t.Logf("an endpoint that is not ready is gone after %s", time.Since(started))
	answersOf(t, a.Outbounds["b"], "b-2")

	must(t, b2.SetReady(false))
	endpoints(t, a, "b")
	if err := noEndpoint(t.Context(), a.Outbounds["b"]); err != nil {
		t.Error(err)
	}

	must(t, b1.SetReady(true))
	answersOf(t, a.Outbounds["b"], "b-1")
	must(t, b2.SetReady(true))
	answersOf(t, a.Outbounds["b"], "b-1", "b-2")

	must(t, m.Remove("b-1.yaml"))
	endpoints(t, a, "b", b2.Inbound)
	answersOf(t, a.Outbounds["b"], "b-2")
	must(t, m.Remove("b-2.yaml"))
	// Nothing says any longer that the service speaks HTTP: Envoy accepts connections, but has no endpoint for them.
	poll(t, "the service to be empty", func(ctx context.Context) error {
		c := harness.NewHTTPCaller("http://"+a.Outbounds["b"]+"/", false, false)
		defer c.Close()
		if instance, err := call(ctx, c); !errors.Is(err, io.EOF) {
			return fmt.Errorf("%q answers, error %w", instance, err)
		}
		return nil
	})
}

func TestEndpointsWithoutSidecars(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	here, there := freeAddress(t, m), freeAddress(t, m)
	for name, at := range map[string]string{"here": here, "there": there} {
		_, err := m.StartApp(t.Context(), name, "http", at)
		must(t, err)
	}
	put := func(endpoints ...plainEndpoint) {
		t.Helper()
		must(t, m.Put("web.yaml", serviceYAML(t, "web", "http", endpoints...)))
		must(t, m.Put("raw.yaml", serviceYAML(t, "raw", "tcp", endpoints...)))
	}
	put(plainEndpoint{at: here})
	a := add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"web", "raw"}})[0]
	services := []string{"web", "raw"} // the application speaks HTTP, which may also be forwarded as bytes
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here")
	}

	put(plainEndpoint{at: here}, plainEndpoint{at: there})
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here", "there")
	}

	put(plainEndpoint{at: there}) // it has moved
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "there")
	}

	put(plainEndpoint{at: here, health: "ready: false"}, plainEndpoint{at: there, health: "ready: false"})
	for _, service := range services {
		endpoints(t, a, service)
	}
	if err := noEndpoint(t.Context(), a.Outbounds["web"]); err != nil {
		t.Error(err)
	}
	for range 10 {
		if err := closedWithout(connect(t, a.Outbounds["raw"])); err != nil {
			t.Error(err)
		}
	}

	put(plainEndpoint{at: here}, plainEndpoint{at: there})
	for _, service := range services {
		answersOf(t, a.Outbounds[service], "here", "there")
	}
}
