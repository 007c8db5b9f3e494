package generator

import (
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// ownDiffers reports whether the proxy's own set may differ from before. Most proxies in a Change only see different
// services, such as a new one with a virtual address. updateShared handles a changed protocol of an outbound.
func ownDiffers(before *meshview.View, m *meshview.Mesh, p *meshview.Proxy) bool {
	oldMesh, old := before.Proxy(p.ID())
	return old == nil || old.Dataplane != p.Dataplane || !oldMesh.SameResources(m)
}

// ownSet makes the set that only this proxy uses. Unchanged resources stay the same pointers.
func (t *Translator) ownSet(m *meshview.Mesh, p *meshview.Proxy, a *attachment) *resource.Set {
	old := a.desired.Own
	var want []*resource.Resource
	add := func(typ resource.Type, name string, message proto.Message) {
		r := t.encodeOrKeep(old.Get(resource.Name{Type: typ, Name: name}), name, message, "proxy "+a.id)
		if r == nil {
			return
		}
		if same := t.own[ownKeyOf(r)].resource; same != nil {
			r = same
		}
		want = append(want, r)
	}
	for _, c := range InboundClusters(m, p) {
		add(resource.Cluster, c.GetName(), c)
	}
	if c := RecordsCluster(m, a.says.Records); c != nil {
		add(resource.Cluster, c.GetName(), c)
	}
	if c := OutboundPassthrough(m, p); c != nil {
		add(resource.Cluster, c.GetName(), c)
	}
	for _, l := range InboundListeners(m, p, t.trustDomain, a.says.Records) {
		add(resource.Listener, l.GetName(), l)
	}
	for _, l := range OutboundListeners(m, p) {
		add(resource.Listener, l.GetName(), l)
	}
	now := replace(old, want)
	t.countOwn(old, now)
	return now
}

// ownKey is equal for equal resources.
type ownKey struct {
	resource.Name
	version string
}

func ownKeyOf(r *resource.Resource) ownKey { return ownKey{r.Key(), r.Version} }

// ownUse is a resource of proxies' own sets, and the number of sets that contain it. Replicas of a workload differ in
// little but their addresses, and many resources are the same for all workloads.
type ownUse struct {
	resource *resource.Resource
	sets     int
}

// countOwn updates the counts when one proxy's own set changes from before to now.
func (t *Translator) countOwn(before, now *resource.Set) {
	for _, c := range resource.Diff(before, now) {
		if c.New != nil {
			use := t.own[ownKeyOf(c.New)]
			t.own[ownKeyOf(c.New)] = ownUse{c.New, use.sets + 1}
		}
		if c.Old == nil {
			continue
		}
		if use := t.own[ownKeyOf(c.Old)]; use.sets > 1 {
			t.own[ownKeyOf(c.Old)] = ownUse{use.resource, use.sets - 1}
		} else {
			delete(t.own, ownKeyOf(c.Old))
		}
	}
}
