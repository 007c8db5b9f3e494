package adsclient

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

// contents is what a proxy should have, as State.Contents returns it.
func contents(all ...*resource.Resource) map[resource.Type]map[string]string {
	want := map[resource.Type]map[string]string{}
	for _, t := range resource.Types() {
		want[t] = map[string]string{}
	}
	for _, r := range all {
		want[r.Type][r.Name] = r.Version
	}
	return want
}

func has(s *State, all ...*resource.Resource) func() bool {
	return func() bool { return s.Settled() && reflect.DeepEqual(s.Contents(), contents(all...)) }
}

// counter is an Observer.
type counter struct{ connected, resources, acked atomic.Int64 }

func (c *counter) Connected()                             { c.connected.Add(1) }
func (c *counter) Resource(resource.Type, []byte, []byte) { c.resources.Add(1) }
func (c *counter) Acked()                                 { c.acked.Add(1) }

func TestProxyFollowsReferences(t *testing.T) {
	t.Parallel()
	static := encode(t, "static", staticCluster())
	first := []*resource.Resource{
		static, cluster(t, "a", ""), assignment(t, "a"), listener(t, "l", "r1"), route(t, "r1"),
		// nothing refers to these
		assignment(t, "z"), route(t, "r2"),
	}
	p := startPlane(t, anyone, first...)
	s := NewState(NewCatalog())
	p.run(p.options(s))
	until(t, "the proxy has what it refers to", has(s, first[:5]...))

	changed := cluster(t, "a", "changed")
	p.publish(static, changed, assignment(t, "a"), listener(t, "l", "r2"), route(t, "r1"), route(t, "r2"))
	until(t, "the listener refers to another route", has(s, static, changed, assignment(t, "a"), listener(t, "l", "r2"), route(t, "r2")))

	p.publish(static, assignment(t, "a"), route(t, "r2"))
	until(t, "what was referred to is forgotten", has(s, static))

	p.publish(first...)
	until(t, "all comes back", has(s, first[:5]...))
}

func TestReconnectSaysWhatItHas(t *testing.T) {
	t.Parallel()
	all := []*resource.Resource{cluster(t, "a", ""), assignment(t, "a"), listener(t, "l", "r"), route(t, "r")}
	p := startPlane(t, anyone, all...)
	s := NewState(NewCatalog())
	stop := p.run(p.options(s))
	until(t, "the proxy has all", has(s, all...))
	stop()

	o := p.options(s)
	count := &counter{}
	o.Observer = count
	p.run(o)
	more := cluster(t, "b", "")
	until(t, "the stream is there", func() bool { return len(p.server.Status()) == 1 && len(p.server.Status()[0].Types) == 4 })
	p.publish(append(all, more, assignment(t, "b"))...)
	until(t, "the proxy has the news", has(s, append(all, more, assignment(t, "b"))...))
	if got := count.resources.Load(); got != 2 {
		t.Errorf("%d resources came after the proxy had said what it has, want the 2 new ones", got)
	}
}

func TestLargeResponses(t *testing.T) {
	t.Parallel()
	var all []*resource.Resource
	for i := range 3000 { // many times what the windows of HTTP/2 hold
		name := fmt.Sprintf("cluster-%050d", i)
		all = append(all, cluster(t, name, ""), assignment(t, name))
	}
	p := startPlane(t, anyone, all...)
	for name, rate := range map[string]int{"all at once": 0, "slowly, with small windows": 4 << 20} {
		s := NewState(NewCatalog())
		o := p.options(s)
		o.BytesPerSecond = rate
		o.Received = new(atomic.Int64)
		stop := p.run(o)
		until(t, name, func() bool { return s.Settled() && s.Count()[resource.Endpoint] == 3000 })
		if got := o.Received.Load(); got < 400_000 {
			t.Errorf("%s: received %d bytes, want more", name, got)
		}
		stop()
	}
}

func TestSilentClientDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := startPlane(t, anyone, cluster(t, "a", ""))
	o := p.options(NewState(NewCatalog()))
	o.Silent = true
	p.run(o)
	until(t, "clusters are sent", func() bool {
		all := p.server.Status()
		return len(all) == 1 && len(all[0].Types) > 0 && all[0].Types[0].Sent != ""
	})
	if got := p.server.Status()[0].Types[0].Acked; got != "" {
		t.Errorf("response %q was ACKed", got)
	}
}

func TestRefusalIsTheServersStatus(t *testing.T) {
	t.Parallel()
	p := startPlane(t, func(context.Context, string) error { return errors.New("not you") })
	err := Run(t.Context(), p.options(NewState(NewCatalog())))
	if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "not you" {
		t.Errorf("Run() error = %v, want PermissionDenied with the server's words", err)
	}
}
