package generator

import (
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// ownDiffers reports whether the proxy's own set may differ from before. Most proxies in a Change only see other services
// than before, such as a new one with a virtual address. updateShared handles the changed protocol of an outbound.
func ownDiffers(before *meshview.View, m *meshview.Mesh, p *meshview.Proxy) bool {
	oldMesh, old := before.Proxy(p.ID())
	return old == nil || old.Dataplane != p.Dataplane || oldMesh.Spec.Mode() != m.Spec.Mode()
}

// ownSet makes the set that is the proxy's alone. Resources that did not change stay the same pointers.
func (t *Translator) ownSet(m *meshview.Mesh, p *meshview.Proxy, a *attachment) *resource.Set {
	old := a.desired.Own
	var want []*resource.Resource
	add := func(typ resource.Type, name string, message proto.Message) {
		r := t.encodeOrKeep(old.Get(resource.Name{Type: typ, Name: name}), name, message, "proxy "+a.id)
		if r != nil {
			want = append(want, r)
		}
	}
	for _, c := range InboundClusters(m, p) {
		add(resource.Cluster, c.GetName(), c)
	}
	if c := OutboundPassthrough(p); c != nil {
		add(resource.Cluster, c.GetName(), c)
	}
	for _, l := range InboundListeners(m, p, t.trustDomain) {
		add(resource.Listener, l.GetName(), l)
	}
	for _, l := range OutboundListeners(m, p) {
		add(resource.Listener, l.GetName(), l)
	}
	return replace(old, want)
}
