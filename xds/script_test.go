package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// A script drives a proxy line by line:
//
//	want CDS a@1 b@2 EDS a@1      the proxy should have this and nothing else; a cluster called static… has no endpoints
//	want CDS a@1+xy               a cluster that accepts the peers x and y
//	own LDS l@1                   the same for its own set
//	unknown                       the proxy is in no view (any more)
//	> CDS +a -b init:a@1          a delta request: subscribe, unsubscribe, initial_resource_versions
//	> CDS a b                     a SotW request: names; it repeats the last nonce, unless it has #none or #7
//	drain 10s                     the proxy's drain time
//	after 10s                     so much time passes
//	> CDS ack                     ACK of the oldest response that is in flight; "ack#7" of nonce 7
//	> CDS nack: why               NACK of the oldest response that is in flight, or with "ack#7" before it of nonce 7
//	< CDS a@1 -b                  the next response must be this; < CDS alone is an empty one
//	<                             there must be no response
//	refused CDS a@1               status must report this as refused; refused alone: nothing
//	error text                    the request before this line must have failed with this error
type script struct {
	t     *testing.T
	proxy *proxy
	open  map[resource.Type][]string // nonces of the responses in flight
	names map[resource.Type][]string // SotW: names of the last request, which an ACK repeats
	err   error
	clock time.Time
}

var shortTypes = map[string]resource.Type{
	"CDS": resource.Cluster, "EDS": resource.Endpoint, "LDS": resource.Listener, "RDS": resource.Route,
}

func shortOf(t resource.Type) string {
	for s, full := range shortTypes {
		if full == t {
			return s
		}
	}
	return string(t)
}

func runScript(t *testing.T, sotw bool, text string) {
	t.Helper()
	s := &script{t: t, proxy: newProxy(sotw), open: map[resource.Type][]string{}, names: map[resource.Type][]string{}, clock: time.Unix(0, 0)}
	s.proxy.now = func() time.Time { return s.clock }
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if s.err != nil && !strings.HasPrefix(line, "error ") {
			t.Fatalf("line %d: before %q: %v", i+1, line, s.err)
		}
		if problem := s.do(line); problem != "" {
			t.Fatalf("line %d: %q: %s", i+1, line, problem)
		}
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
}

func (s *script) do(line string) string {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "want":
		s.proxy.setDesired(resource.Desired{Shared: setOf(s.t, rest, s.proxy.desired.Shared), Own: s.proxy.desired.Own})
	case "own":
		s.proxy.setDesired(resource.Desired{Shared: s.proxy.desired.Shared, Own: setOf(s.t, rest, s.proxy.desired.Own)})
	case "unknown":
		s.proxy.setDesired(resource.Desired{})
	case "drain":
		s.proxy.drainTime = s.duration(rest)
	case "after":
		return s.after(s.duration(rest))
	case ">":
		s.request(rest)
	case "<":
		return s.expect(strings.TrimSpace(rest))
	case "refused":
		return s.refused(strings.TrimSpace(rest))
	case "error":
		err := s.err
		s.err = nil
		if err == nil || !strings.Contains(err.Error(), rest) {
			return fmt.Sprintf("error is %v", err)
		}
	default:
		return "unknown verb"
	}
	return ""
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// after lets time pass, but not more than wait returns, since the proxy would have sent a response then.
func (s *script) after(d time.Duration) string {
	if wait := s.proxy.wait(); wait > 0 && wait < d {
		return fmt.Sprintf("the proxy waits only %s", wait)
	}
	s.clock = s.clock.Add(d)
	return ""
}

// setOf makes a set as a successor of before, like the generator.
func setOf(t *testing.T, text string, before *resource.Set) *resource.Set {
	t.Helper()
	var put []*resource.Resource
	var kind resource.Type
	wanted := map[resource.Name]bool{}
	for word := range strings.FieldsSeq(text) {
		if full, ok := shortTypes[word]; ok {
			kind = full
			continue
		}
		r := res(kind, word)
		put = append(put, r)
		wanted[r.Key()] = true
	}
	var remove []resource.Name
	for _, kind := range resource.Types() {
		for _, r := range before.Of(kind) {
			if !wanted[r.Key()] {
				remove = append(remove, r.Key())
			}
		}
	}
	if before == nil {
		before = resource.NewSet()
	}
	return before.With(put, remove)
}

// res makes a resource from name@version.
func res(kind resource.Type, text string) *resource.Resource {
	name, version, _ := strings.Cut(text, "@")
	r := resource.New(kind, name, version, []byte(text))
	if kind == resource.Cluster && !strings.HasPrefix(name, "static") {
		r.Endpoints = name
		if _, peers, ok := strings.Cut(version, "+"); ok {
			r.Peers = strings.Split(peers, "")
		}
	}
	return r
}

func (s *script) request(text string) {
	text, reason, nacked := strings.Cut(text, " nack: ")
	words := strings.Fields(text)
	kind, ok := shortTypes[words[0]]
	if !ok {
		kind = resource.Type(words[0])
	}
	d := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(kind), InitialResourceVersions: map[string]string{}}
	if last := s.proxy.subscription(kind); s.proxy.sotw && last != nil {
		d.ResponseNonce = last.lastNonce
	}
	if nacked {
		d.ErrorDetail = &statuspb.Status{Code: 13, Message: reason}
		if !strings.Contains(text, "#") {
			d.ResponseNonce = s.takeNonce(kind)
		}
	}
	var list []string
	for _, w := range words[1:] {
		_, nonce, ok := strings.Cut(w, "#")
		switch {
		case w == "ack":
			d.ResponseNonce = s.takeNonce(kind)
		case ok:
			d.ResponseNonce = strings.TrimPrefix(nonce, "none")
		case s.proxy.sotw:
			list = append(list, w)
		default:
			subscribe(d, w)
		}
	}
	if s.proxy.sotw {
		s.state(d, list)
		return
	}
	_, s.err = s.proxy.receiveDelta(d)
}

// subscribe adds init:name@version, +name or -name to a delta request.
func subscribe(d *discoveryv3.DeltaDiscoveryRequest, word string) {
	if one, ok := strings.CutPrefix(word, "init:"); ok {
		name, version, _ := strings.Cut(one, "@")
		d.InitialResourceVersions[name] = version
	} else if word[0] == '+' {
		d.ResourceNamesSubscribe = append(d.ResourceNamesSubscribe, word[1:])
	} else {
		d.ResourceNamesUnsubscribe = append(d.ResourceNamesUnsubscribe, word[1:])
	}
}

// state makes the SotW request of a line. Without names it repeats the previous line's names; "none" means no names.
func (s *script) state(d *discoveryv3.DeltaDiscoveryRequest, list []string) {
	kind := resource.Type(d.GetTypeUrl())
	if len(list) > 0 {
		s.names[kind] = slices.DeleteFunc(list, func(name string) bool { return name == "none" })
	}
	_, s.err = s.proxy.receiveSotw(&discoveryv3.DiscoveryRequest{
		TypeUrl: d.GetTypeUrl(), ResponseNonce: d.GetResponseNonce(), ErrorDetail: d.GetErrorDetail(), ResourceNames: s.names[kind],
	})
}

func (s *script) takeNonce(kind resource.Type) string {
	if len(s.open[kind]) == 0 {
		s.t.Fatalf("no unanswered %s response", shortOf(kind))
	}
	nonce := s.open[kind][0]
	s.open[kind] = s.open[kind][1:]
	return nonce
}

func (s *script) expect(want string) string {
	r := s.proxy.next()
	if got := describe(r, s.proxy.sotw); got != want {
		return fmt.Sprintf("the response is %q", got)
	}
	if r != nil {
		s.open[r.subscription.kind] = append(s.open[r.subscription.kind], r.nonce)
	}
	return ""
}

func describe(r *response, sotw bool) string {
	if r == nil {
		return ""
	}
	words := []string{shortOf(r.subscription.kind)}
	list, removed := contents(r, sotw)
	for _, p := range list {
		words = append(words, p.Name+"@"+p.Version)
	}
	for _, n := range removed {
		words = append(words, "-"+n)
	}
	return strings.Join(words, " ")
}

// contents returns the content of a response in its protocol. In the state of the world no removal is named.
func contents(r *response, sotw bool) (list []*resource.Resource, removed []string) {
	if sotw {
		return r.full, nil
	}
	for _, m := range r.resources {
		list = append(list, m.resource)
	}
	for _, m := range r.removed {
		removed = append(removed, m.name)
	}
	return list, removed
}

func (s *script) refused(want string) string {
	var got []string
	for _, t := range s.proxy.status() {
		for _, n := range t.NACKs {
			got = append(got, shortOf(n.Type)+" "+n.Name+"@"+n.Version)
		}
	}
	slices.Sort(got)
	if all := strings.Join(got, " "); all != want {
		return fmt.Sprintf("refused is %q", all)
	}
	return ""
}
