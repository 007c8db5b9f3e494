package hostile

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// sidecarMemory is the memory limit of an injected sidecar.
const sidecarMemory = 512 << 20

// victim is a proxy with inbounds of each kind and clients, in a cgroup with the limits of an injected sidecar.
type victim struct {
	*harness.Machine
	proxy, client *harness.Proxy
	memory        *cgrouptest.Memory
	// http, http2 and tcp are addresses of its inbounds.
	http, http2, tcp string
	// hostile is the certificate of an attacking member of the mesh.
	hostile tls.Certificate
}

// newVictim starts a mesh in mode PERMISSIVE, so that strangers can attack, too.
func newVictim(t *testing.T, envoy string) *victim {
	t.Helper()
	v := &victim{memory: cgrouptest.NewMemory(t, sidecarMemory)}
	confined := programs
	confined.Envoy = envoy
	confined.Agent = v.memory.Agent(t, programs.Agent, "victim")
	v.Machine = harness.New(t, harness.Options{Programs: confined, MeshYAML: harness.MeshYAML("PERMISSIVE")})
	started, err := v.Add(t.Context(), harness.ProxyOptions{Name: "other", Service: "other"}, harness.ProxyOptions{Name: "hostile", Service: "hostile"})
	must.Do(t, err)
	v.hostile, err = started[1].Identity()
	must.Do(t, err)

	v.proxy, err = v.Prepare(harness.ProxyOptions{Name: "victim", Service: "victim", Outbound: []string{"other"}})
	must.Do(t, err)
	var tcp string
	for _, a := range []*string{&v.http, &v.http2, &v.tcp, &tcp} {
		*a, err = v.FreeAddress()
		must.Do(t, err)
	}
	serveApplication(t, v.proxy.AppAddress, tcp)
	must.Do(t, v.Put("victim.yaml", v.dataplane(t, tcp)))
	must.Do(t, v.proxy.StartAgent(t.Context()))
	must.Do(t, v.proxy.WaitReady(t.Context()))

	v.client, err = v.Prepare(harness.ProxyOptions{Name: "client", Service: "client", Outbound: []string{"victim", "victim-http2", "victim-tcp"}})
	must.Do(t, err)
	must.Do(t, v.Launch(t.Context(), v.client))
	must.Poll(t, "the client to have all endpoints", v.client.Synced)
	return v
}

func (v *victim) dataplane(t *testing.T, tcp string) string {
	t.Helper()
	type object = map[string]any
	inbound := func(at, application, service, protocol string) object {
		return object{
			"port": portOf(t, at), "servicePort": portOf(t, application),
			"tags": object{"kuma.io/service": service, "kuma.io/protocol": protocol},
		}
	}
	text, err := json.Marshal(object{"type": "Dataplane", "mesh": "default", "name": "victim", "networking": object{
		"address": "127.0.0.1",
		"inbound": []object{
			inbound(v.http, v.proxy.AppAddress, "victim", "http"),
			inbound(v.http2, v.proxy.AppAddress, "victim-http2", "http2"),
			inbound(v.tcp, tcp, "victim-tcp", "tcp"),
		},
		"outbound": []object{{"port": portOf(t, v.proxy.Outbounds["other"]), "tags": object{"kuma.io/service": "other"}}},
	}})
	must.Do(t, err)
	return string(text)
}

func portOf(t *testing.T, address string) json.Number {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	return json.Number(port)
}

// tls returns the TLS configuration of the attacking member.
func (v *victim) tls(alpn ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{v.hostile}, NextProtos: append([]string{"sonde"}, alpn...),
		InsecureSkipVerify: true, // the attack works against any server
	}
}

// users returns the users that an attack must not affect.
func (v *victim) users() []user { return append(v.clients(), v.kubelets()...) }

func (v *victim) clients() []user {
	get := func(at string) func(context.Context) error {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // Envoy keeps its connections
		return func(ctx context.Context) error {
			_, err := harness.Get(ctx, client, "http://"+at+"/ok")
			return err
		}
	}
	return []user{
		{"a client of the HTTP/1 inbound", 50 * time.Millisecond, get(v.client.Outbounds["victim"])},
		{"a client of the HTTP/2 inbound", 50 * time.Millisecond, get(v.client.Outbounds["victim-http2"])},
		{"a client of the TCP inbound", 50 * time.Millisecond, func(ctx context.Context) error { return echo(ctx, v.client.Outbounds["victim-tcp"]) }},
		{"a client without the mesh", 50 * time.Millisecond, get(v.http)},
		{"the application that calls others", 50 * time.Millisecond, get(v.proxy.Outbounds["other"])},
	}
}

func (v *victim) kubelets() []user {
	return []user{
		{"a kubelet that asks for readiness", 200 * time.Millisecond, func(ctx context.Context) error {
			_, err := v.Get(ctx, "http://"+v.proxy.Admin+"/readyz")
			return err
		}},
		{"a kubelet that asks for liveness", 200 * time.Millisecond, func(ctx context.Context) error {
			_, err := v.Get(ctx, "http://"+v.proxy.Admin+"/livez")
			return err
		}},
	}
}

var errAnswered = errors.New("the request was answered")

// echo sends a byte over a new connection, and expects the same byte.
func echo(ctx context.Context, at string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.Write([]byte{askEcho, 1}); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err = io.ReadFull(c, answer); err == nil && answer[0] != 1 {
		err = errors.New("another byte came back")
	}
	return err
}

const (
	// envoyAttackTime is the duration of each attack on a proxy.
	envoyAttackTime = 4 * time.Second
	// enoughMemory is the most memory that a proxy may use, in bytes, to keep a reserve.
	enoughMemory = sidecarMemory / 8 * 7
)

// attack runs an attack together with users. It fails the test if a user is refused or late, or if Envoy exits.
func (v *victim) attack(t *testing.T, a envoyAttack) {
	t.Helper()
	must.Poll(t, "the proxy to be ready", func(ctx context.Context) error {
		_, err := v.Get(ctx, "http://"+v.proxy.Admin+"/readyz")
		return err
	})
	before, err := v.proxy.EnvoyPID()
	must.Do(t, err)
	killed := v.memory.Killed(t)
	ctx, cancel := context.WithTimeout(t.Context(), envoyAttackTime)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.run(ctx, v) })
	users := v.users()
	if a.large {
		users = v.kubelets()
	}
	askAll(ctx, t, users)
	if pid, err := v.proxy.EnvoyPID(); err != nil || pid != before || v.memory.Killed(t) > killed {
		t.Fatalf("Envoy has ended (%v): %d processes were killed for lack of memory", err, v.memory.Killed(t)-killed)
	}
	pressure, err := v.proxy.Stats(t.Context(), `overload\..*\.pressure`)
	must.Do(t, err)
	t.Logf("the most memory so far is %d MiB; now %v", v.memory.Peak(t)>>20, pressure)
	if peak := v.memory.Peak(t); peak > enoughMemory && !a.large {
		t.Errorf("the most memory was %d MiB, want at most %d", peak>>20, enoughMemory>>20)
	}
}

// TestEnvoy attacks the ports of a proxy, one attack after the other: the newest Envoy with all attacks, the other
// Envoys with the first ones.
func TestEnvoy(t *testing.T) {
	for n, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			v := newVictim(t, envoy)
			attacks := envoyAttacks()
			if n > 0 {
				attacks = attacks[:4]
			}
			for _, a := range attacks {
				t.Run(a.name, func(t *testing.T) { v.attack(t, a) })
			}
		})
	}
}
