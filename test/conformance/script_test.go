package conformance

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// scenario is one behaviour: the steps that lead to it.
type scenario struct {
	// types and protocols for which the scenario is played. Default: all.
	types     []resource.Type
	protocols []envoysim.Protocol
	steps     []step
}

var (
	// listed are the types whose SotW responses have the whole list, and whose wildcard has no name.
	listed = []resource.Type{resource.Cluster, resource.Listener}
	// single are the types whose SotW responses have only what the client lacks.
	single = []resource.Type{resource.Endpoint, resource.Route}

	delta = []envoysim.Protocol{envoysim.Delta}
	sotw  = []envoysim.Protocol{envoysim.SotW}
)

// play runs each scenario for each of its types and protocols.
func play(t *testing.T, scenarios map[string]scenario) {
	t.Helper()
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s.types == nil {
				s.types = resource.Types()
			}
			if s.protocols == nil {
				s.protocols = envoysim.Protocols()
			}
			for _, p := range s.protocols {
				for _, kind := range s.types {
					t.Run(string(p)+" "+kind.Short(), func(t *testing.T) { playOne(t, p, kind, s.steps...) })
				}
			}
		})
	}
}

// playOne runs steps with their own server and stream.
func playOne(t *testing.T, p envoysim.Protocol, kind resource.Type, steps ...step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &run{t: t, protocol: p, kind: kind, server: startServer(t), versions: map[string]string{}}
		r.client = r.server.client(p)
		for r.step = range steps {
			steps[r.step](r)
		}
		r.quiet()
		for _, r.kind = range r.client.types() {
			r.quiet()
		}
	})
}

// run is a scenario in progress.
type run struct {
	t        *testing.T
	protocol envoysim.Protocol
	kind     resource.Type
	server   *server
	client   *client
	step     int
	versions map[string]string // version_info by type and contents
}

// settle waits until the server has nothing more to send: a minute of virtual time.
func (r *run) settle() {
	<-time.After(time.Minute)
	synctest.Wait()
}

// quiet checks that the script has received every response and that the stream is still open.
func (r *run) quiet() {
	r.t.Helper()
	r.settle()
	if n, err := r.client.unread(r.kind); n > 0 {
		r.t.Fatalf("step %d: unexpected response: %q", r.step+1, r.describe(r.client.next(r.kind)))
	} else if err != nil {
		r.t.Fatalf("step %d: the stream ended: %v", r.step+1, err)
	}
}

// describe returns a response in the language of the scripts.
func (r *run) describe(m *envoysim.Response) string {
	if m == nil {
		return nothing
	}
	var words []string
	for _, i := range m.Put {
		words = append(words, r.server.label(i.Key.Name, i.Version))
	}
	slices.Sort(words)
	for _, name := range slices.Sorted(slices.Values(m.Gone)) {
		words = append(words, "-"+name)
	}
	if len(words) == 0 {
		return empty
	}
	return strings.Join(words, " ")
}

// checkVersion checks that version_info changes exactly when the contents change.
func (r *run) checkVersion(m *envoysim.Response, text string) {
	r.t.Helper()
	if r.protocol == envoysim.Delta {
		return
	}
	content, version := r.kind.Short()+" content "+text, r.kind.Short()+" version "+m.Version
	if m.Version == "" {
		r.t.Errorf("step %d: the response has no version_info", r.step+1)
	}
	for _, key := range []string{content, version} {
		if before, ok := r.versions[key]; ok && before != content+version {
			r.t.Errorf("step %d: %q has version_info %q, but had %q before", r.step+1, text, m.Version, before)
		}
		r.versions[key] = content + version
	}
}

// request sends a request with the names, nonce and version that a client would send.
func (r *run) request(add, remove []string, refusal string) {
	r.t.Helper()
	q := &envoysim.Request{Type: r.kind, Add: add, Remove: remove, Refusal: refusal}
	q.Names = r.client.subscribe(r.kind, add, remove)
	if last := r.client.last[r.kind]; last != nil && r.protocol == envoysim.SotW {
		q.Nonce = last.Nonce
	}
	if acked := r.client.acked[r.kind]; acked != nil {
		q.Version = acked.Version
	}
	r.client.send(q)
}

// answer ACKs the last response of the type, or NACKs it for a reason.
func (r *run) answer(refusal string) {
	r.t.Helper()
	last := r.client.last[r.kind]
	if last == nil {
		r.t.Fatalf("step %d: no response to answer", r.step+1)
	}
	if refusal == "" {
		r.client.acked[r.kind] = last
	}
	q := &envoysim.Request{Type: r.kind, Nonce: last.Nonce, Refusal: refusal, Names: r.client.subscribe(r.kind, nil, nil)}
	if acked := r.client.acked[r.kind]; acked != nil {
		q.Version = acked.Version
	}
	r.client.send(q)
}
