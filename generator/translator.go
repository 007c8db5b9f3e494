// Package generator turns the mesh view into Envoy's configuration. A pure function makes each kind of resource; the
// Translator calls these functions for changes, and keeps the resources that each attached proxy should have.
//
// For settings that are not obvious, "Envoy:" names the page about them, below
// https://www.envoyproxy.io/docs/envoy/latest/.
package generator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// TranslatorOptions of a Translator.
type TranslatorOptions struct {
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// Report receives the errors of Attach and Resources; Apply returns its own. Several goroutines may call it at once.
	// Default: errors are dropped.
	Report func(error)
}

// Translator turns changes of the view into the resources that each attached proxy should have. The cost of a change is
// proportional to what changed: a service's resources are encoded once for all proxies, proxies that see the same
// services share one set, and proxies that are not attached cost nothing. Equal resources in proxies' own sets are
// stored once. Any goroutine may call the methods.
//
// A resource that cannot be encoded affects no other: its last good version, if any, stays.
type Translator struct {
	trustDomain string
	report      func(error)
	encode      func(name string, m proto.Message) (*resource.Resource, error) // resource.Encode, or a test

	mu       sync.Mutex // guards the fields below
	view     *meshview.View
	services map[mesh.ID]*serviceResources  // services with resources in a shared set
	shared   map[*meshview.Scope]*sharedSet // shared sets of attached proxies
	attached map[mesh.ID]*attachment
	own      map[ownKey]ownUse // the resources of their own sets
	errs     []error           // errors of resources that could not be encoded, see takeErrors
}

// attachment is a proxy with at least one stream.
type attachment struct {
	id        mesh.ID
	says      resource.Metadata // metadata of the newest stream
	streams   int
	desired   resource.Desired
	shared    *sharedSet // nil while the proxy is not in the view
	node      *nodeSet   // part of shared, with the same lifetime
	outbounds bool       // it has its own outbound listeners
}

// NewTranslator returns a Translator without a view.
func NewTranslator(o TranslatorOptions) *Translator {
	if o.TrustDomain == "" {
		o.TrustDomain = mesh.DefaultTrustDomain
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	return &Translator{
		trustDomain: o.TrustDomain,
		report:      o.Report,
		encode:      resource.Encode,
		services:    map[mesh.ID]*serviceResources{},
		shared:      map[*meshview.Scope]*sharedSet{},
		attached:    map[mesh.ID]*attachment{},
		own:         map[ownKey]ownUse{},
	}
}

// Attach starts to keep the resources of a proxy up to date, for its Envoy's metadata, and returns them. It returns the
// zero Desired if the proxy is not in the view yet. Each Attach needs one Detach: a proxy that reconnects has two
// streams for a moment.
func (t *Translator) Attach(proxy mesh.ID, says resource.Metadata) resource.Desired {
	t.mu.Lock()
	desired, err := t.attach(proxy, says)
	t.mu.Unlock()
	if err != nil {
		t.report(err)
	}
	return desired
}

func (t *Translator) attach(proxy mesh.ID, says resource.Metadata) (resource.Desired, error) {
	a := t.attached[proxy]
	if a == nil {
		a = &attachment{id: proxy}
		t.attached[proxy] = a
	}
	a.streams++
	same := a.streams > 1 && a.says == says
	a.says = says
	m, p := t.view.Proxy(proxy)
	if same || p == nil {
		return a.desired, nil
	}
	t.joinShared(a, m, p)
	a.desired = resource.Desired{Shared: a.shared.set, Node: a.node.set, Own: t.ownSet(m, p, a), For: says}
	return a.desired, t.takeErrors()
}

// Detach ends one Attach. The last Detach drops resources that only this proxy used.
func (t *Translator) Detach(proxy mesh.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detach(proxy)
}

func (t *Translator) detach(proxy mesh.ID) {
	a := t.attached[proxy]
	if a == nil {
		return
	}
	if a.streams--; a.streams == 0 {
		t.leaveShared(a)
		t.countOwn(a.desired.Own, nil)
		delete(t.attached, proxy)
	}
}

// Resources returns the resources that the proxy should have, attached or not, and false if there is no such proxy. A
// proxy that is not attached has no metadata. Resources is for the admin API: each call makes the resources of an
// unattached proxy again.
func (t *Translator) Resources(proxy mesh.ID) (resource.Desired, bool) {
	t.mu.Lock()
	var says resource.Metadata
	if a := t.attached[proxy]; a != nil {
		says = a.says
	}
	desired, err := t.attach(proxy, says)
	t.detach(proxy)
	t.mu.Unlock()
	if err != nil {
		t.report(err)
	}
	return desired, desired.Known()
}

// Apply applies the next change and returns the attached proxies whose resources changed. Unchanged sets and resources
// are the same pointers as before. The error joins one error for each resource that cannot be encoded, and names the
// resource; the result is valid nevertheless. An attached proxy that has left the view keeps its resources and is not
// in the result, since a deleted file must not empty a running Envoy (docs/decisions/002-proxy-without-dataplane.md).
func (t *Translator) Apply(c meshview.Change) (map[mesh.ID]resource.Desired, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.view = c.After
	changedServices := t.encodeChanged(c)
	affected := affectedProxies{}
	for _, id := range c.Proxies {
		a := t.attached[id]
		if a == nil {
			continue
		}
		m, p := t.view.Proxy(id)
		if p == nil {
			t.leaveShared(a)
			continue
		}
		affected.add(id, ownDiffers(c.Before, m, p))
		t.joinShared(a, m, p)
	}
	t.updateShared(changedServices, affected)
	changed := map[mesh.ID]resource.Desired{}
	for _, id := range slices.Sorted(maps.Keys(affected)) {
		a := t.attached[id]
		now := resource.Desired{Shared: a.shared.set, Node: a.node.set, Own: a.desired.Own, For: a.says}
		if affected[id] {
			m, p := t.view.Proxy(id)
			now.Own = t.ownSet(m, p, a)
		}
		if now != a.desired {
			a.desired = now
			changed[id] = now
		}
	}
	return changed, t.takeErrors()
}

// affectedProxies are the attached proxies whose resources may differ. The value is true if the proxy's own set may
// differ, too.
type affectedProxies map[mesh.ID]bool

func (a affectedProxies) add(id mesh.ID, own bool) { a[id] = a[id] || own }

// encodeOrKeep encodes m. It returns old if m is unchanged, or if m cannot be encoded; old may be nil.
func (t *Translator) encodeOrKeep(
	old *resource.Resource, name string, m proto.Message, whose string,
) *resource.Resource {
	r, err := t.encode(name, m)
	switch {
	case err != nil:
		t.errs = append(t.errs, fmt.Errorf("translate %s: %w", whose, err))
		return old
	case old != nil && old.Version == r.Version:
		return old
	}
	return r
}

// takeErrors joins the errors since the last call.
func (t *Translator) takeErrors() error {
	err := errors.Join(t.errs...)
	t.errs = nil
	return err
}
