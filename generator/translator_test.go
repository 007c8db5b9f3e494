package generator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestApplySendsWhatChanged(t *testing.T) {
	web := dataplane("web-1", "10.0.0.9", "web", calls("api", "db"))
	tests := map[string]struct {
		objects []mesh.Object
		step    func(b *bench)
		put     []string // resources of web-1
		remove  []string
		encoded []string // everything encoded, if that is more than put
	}{
		"an endpoint turns unready": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), dataplane("api-2", "10.0.0.2", "api")},
			step:    func(b *bench) { b.set(dataplane("api-1", "10.0.0.1", "api", unready)) },
			put:     []string{"endpoint api"},
		},
		"an unready endpoint goes": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready), dataplane("api-2", "10.0.0.2", "api")},
			step:    func(b *bench) { b.delete(dataplane("api-1", "", "")) },
			encoded: []string{"api"},
		},
		"a called service comes, with HTTP": {
			step: func(b *bench) { b.set(dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolHTTP))) },
			put:  []string{"cluster api", "endpoint api", "listener outbound:240.0.0.1:80", "route api"},
			encoded: []string{ // its own listeners and clusters are encoded for comparison
				"api", "api", "api", "inbound:10.0.0.9:80", "inbound:80", "outbound:240.0.0.1:80", "outbound:240.0.0.2:80", "readiness",
			},
		},
		"a called service turns to TCP": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolHTTP))},
			step:    func(b *bench) { b.set(dataplane("api-1", "10.0.0.1", "api")) },
			put:     []string{"cluster api", "listener outbound:240.0.0.1:80"},
			remove:  []string{"route api"},
			encoded: []string{"api", "inbound:10.0.0.9:80", "inbound:80", "outbound:240.0.0.1:80", "outbound:240.0.0.2:80", "readiness"},
		},
		"a second workload": {
			objects: []mesh.Object{meshWith(mesh.ModeStrict), dataplane("api-1", "10.0.0.1", "api")},
			step:    func(b *bench) { b.set(dataplane("api-2", "10.0.0.2", "api", workload("canary"))) },
			put:     []string{"cluster api", "endpoint api"},
		},
		"mTLS comes on": {
			objects: []mesh.Object{meshWith("")},
			step:    func(b *bench) { b.set(meshWith(mesh.ModeStrict)) },
			put:     []string{"cluster api", "cluster db", "listener inbound:10.0.0.9:80"},
			encoded: []string{
				"api", "db", "inbound:10.0.0.9:80", "inbound:80", "outbound:240.0.0.1:80", "outbound:240.0.0.2:80", "readiness",
			},
		},
		"an outbound goes": {
			step:    func(b *bench) { b.set(dataplane("web-1", "10.0.0.9", "web", calls("api"))) },
			remove:  []string{"cluster db", "endpoint db", "listener outbound:240.0.0.2:80"},
			encoded: []string{"inbound:10.0.0.9:80", "inbound:80", "outbound:240.0.0.1:80", "readiness"},
		},
		"a service that no attached proxy sees": {
			step:    func(b *bench) { b.set(dataplane("x-1", "10.0.0.3", "x"), service("y", "", "240.0.0.9:80")) },
			encoded: []string{},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(tc.objects, web)...)
			b.apply()
			before := b.translator.Attach("default/web-1", resource.Metadata{})
			tc.step(b)
			changed := b.apply()
			if tc.encoded == nil {
				for _, n := range tc.put {
					tc.encoded = append(tc.encoded, n[strings.Index(n, " ")+1:])
				}
			}
			slices.Sort(b.encoded)
			if diff := cmp.Diff(tc.encoded, b.encoded, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
			now, ok := changed["default/web-1"]
			if len(tc.put)+len(tc.remove) == 0 {
				if len(changed) > 0 {
					t.Errorf("Apply() = %v, want nothing", changed)
				}
				return
			}
			if !ok || len(changed) != 1 {
				t.Fatalf("Apply() = %v, want only web-1", changed)
			}
			put, remove := difference(before, now)
			if diff := cmp.Diff(tc.put, put); diff != "" {
				t.Errorf("put (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.remove, remove); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
		})
	}
}

// A mesh that forbids passthrough closes the passthrough connections of its redirected proxies, and changes nothing
// else.
func TestPassthroughOfAMesh(t *testing.T) {
	closed := meshWith("")
	closed.Spec.Networking = closedOutbound()
	b := newBench(t, meshWith(""), dataplane("web-1", "10.0.0.9", "web", transparent), service("api", mesh.ProtocolHTTP, "240.0.0.1:80"))
	b.apply()
	before := b.translator.Attach("default/web-1", resource.Metadata{})
	b.set(closed)
	put, remove := difference(before, b.apply()["default/web-1"])
	if diff := cmp.Diff([]string{"listener outbound:capture", "listener outbound:capture6"}, put); diff != "" {
		t.Errorf("put (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"cluster outbound:passthrough"}, remove); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

// difference returns resource.Diff of both sets.
func difference(before, now resource.Desired) (put, remove []string) {
	for _, d := range []resource.Delta{resource.Diff(before.Shared, now.Shared), resource.Diff(before.Node, now.Node), resource.Diff(before.Own, now.Own)} {
		for _, c := range d {
			if what := c.Key().Type.Short() + " " + c.Key().Name; c.New != nil {
				put = append(put, what)
			} else {
				remove = append(remove, what)
			}
		}
	}
	slices.Sort(put)
	slices.Sort(remove)
	return put, remove
}

func TestOneEndpointOfAThousandEncodesOneResource(t *testing.T) {
	b := newBench(t, meshWith(mesh.ModeStrict))
	for i := range 1000 {
		name := fmt.Sprintf("s%03d", i)
		b.set(service(name, mesh.ProtocolHTTP, fmt.Sprintf("240.0.%d.%d:80", i/250, i%250)))
		b.set(dataplane(name+"-1", fmt.Sprintf("10.0.%d.%d", i/250, i%250), name, transparent))
	}
	b.apply()
	shared := map[*resource.Set]bool{}
	for i := range 1000 {
		shared[b.translator.Attach(fmt.Sprintf("default/s%03d-1", i), resource.Metadata{}).Shared] = true
	}
	if len(shared) != 1 {
		t.Errorf("%d shared sets for proxies that see the same services", len(shared))
	}
	b.set(dataplane("s500-1", "10.0.2.0", "s500", transparent, unready))
	changed := b.apply()
	if diff := cmp.Diff([]string{"s500"}, b.encoded); diff != "" {
		t.Errorf("encoded (-want +got):\n%s", diff)
	}
	if len(changed) != 1000 {
		t.Errorf("%d proxies changed, want all", len(changed))
	}

	b.set(service("one-more", mesh.ProtocolTCP, "240.1.0.1:80"))
	changed = b.apply()
	if diff := cmp.Diff([]string{"one-more", "outbound:240.1.0.1:80", "one-more"}, b.encoded); diff != "" {
		t.Errorf("encoded for a new service (-want +got):\n%s", diff)
	}
	if len(changed) != 1000 {
		t.Errorf("%d proxies changed for a new service, want all", len(changed))
	}
	for i := range 1000 {
		b.translator.Detach(fmt.Sprintf("default/s%03d-1", i))
	}
	checkEmpty(t, b.translator)
}

func checkEmpty(t *testing.T, tr *Translator) {
	t.Helper()
	if len(tr.attached)+len(tr.shared)+len(tr.services)+len(tr.own) > 0 {
		t.Errorf("kept without a stream: %d proxies, %d shared sets, %d services, %d resources of own sets",
			len(tr.attached), len(tr.shared), len(tr.services), len(tr.own))
	}
}

func TestAttachBeforeTheDataplane(t *testing.T) {
	b := newBench(t)
	if got := b.translator.Attach("default/web-1", resource.Metadata{}); got.Known() {
		t.Errorf("Attach() before the first view = %v", names(got))
	}
	b.apply()
	if got := b.translator.Attach("default/web-1", resource.Metadata{}); got.Known() { // a second stream
		t.Errorf("Attach() before the Dataplane = %v", names(got))
	}
	if got, ok := b.translator.Resources("default/web-1"); ok {
		t.Errorf("Resources() before the Dataplane = %v", names(got))
	}
	b.set(dataplane("web-1", "10.0.0.9", "web"))
	changed := b.apply()
	want := []string{"cluster inbound:80", "listener inbound:10.0.0.9:80", "listener readiness"}
	if diff := cmp.Diff(want, names(changed["default/web-1"])); diff != "" {
		t.Error(diff)
	}
	if d := changed["default/web-1"]; d.Shared == nil || d.Own == nil {
		t.Error("a set of a known proxy is nil")
	}
	b.translator.Detach("default/web-1")
	b.set(dataplane("web-1", "10.0.0.8", "web"))
	if changed := b.apply(); len(changed) != 1 {
		t.Error("the first of two Detach calls ended both")
	}
	b.translator.Detach("default/web-1")
	b.translator.Detach("default/web-1") // an additional Detach has no effect
	b.set(dataplane("web-1", "10.0.0.7", "web"))
	if changed := b.apply(); len(changed) != 0 {
		t.Error("a detached proxy is still updated")
	}
	checkEmpty(t, b.translator)
}

func TestProxyWithoutDataplaneKeepsWhatItHas(t *testing.T) {
	web := func(address string) *mesh.Dataplane { return dataplane("web-1", address, "web", calls("api")) }
	b := newBench(t, meshWith(mesh.ModeStrict), dataplane("api-1", "10.0.0.1", "api"), web("10.0.0.9"))
	b.apply()
	had := b.translator.Attach("default/web-1", resource.Metadata{})
	for i, step := range []func(){
		func() { b.delete(web("")) },
		func() { b.delete(dataplane("api-1", "", "")) },
		func() { b.set(&mesh.Mesh{Name: "other"}); b.delete(meshWith("")) },
	} {
		step()
		if changed := b.apply(); len(changed) > 0 {
			t.Errorf("step %d: Apply() = %v", i, changed)
		}
	}
	if now := b.translator.Attach("default/web-1", resource.Metadata{}); now != had {
		t.Error("a second stream gets different resources")
	}
	b.translator.Detach("default/web-1")
	if now, ok := b.translator.Resources("default/web-1"); !ok || now != had {
		t.Error("Resources() returns different resources")
	}
	if len(b.translator.shared)+len(b.translator.services) > 0 {
		t.Error("its resources are still updated")
	}
	b.set(meshWith(mesh.ModeStrict), dataplane("api-1", "10.0.0.1", "api"), web("10.0.0.8"))
	put, remove := difference(had, b.apply()["default/web-1"])
	if diff := cmp.Diff([]string{"listener inbound:10.0.0.8:80"}, put); diff != "" {
		t.Errorf("put when it is back: %s", diff)
	}
	if diff := cmp.Diff([]string{"listener inbound:10.0.0.9:80"}, remove); diff != "" {
		t.Errorf("removed when it is back: %s", diff)
	}
}

// The own set depends on the newest stream, and changes are translated for its metadata.
func TestNewestStreamSaysWhetherThereAreRecords(t *testing.T) {
	web := func(address string) *mesh.Dataplane { return dataplane("web-1", address, "web") }
	records, none := resource.Metadata{Records: true}, resource.Metadata{}
	cluster := resource.Name{Type: resource.Cluster, Name: nameAgentRecords}
	b := newBench(t, meshWith(mesh.ModePermissive), web("10.0.0.9"))
	b.apply()
	if d, _ := b.translator.Resources("default/web-1"); d.Get(cluster) != nil || d.For != none {
		t.Error("a proxy that is not attached has records")
	}
	before := b.translator.Attach("default/web-1", none)
	now := b.translator.Attach("default/web-1", records)
	put, remove := difference(before, now)
	if diff := cmp.Diff([]string{"cluster agent:records", "listener inbound:10.0.0.9:80"}, put); diff != "" || len(remove) > 0 || now.For != records {
		t.Errorf("put for %+v: %s; removed: %q", now.For, diff, remove)
	}
	if again := b.translator.Attach("default/web-1", records); again != now {
		t.Error("a stream with the same metadata gets different resources")
	}
	if d, _ := b.translator.Resources("default/web-1"); d != now {
		t.Error("Resources() returns different resources")
	}
	b.set(web("10.0.0.8"))
	if d := b.apply()["default/web-1"]; d.Get(cluster) == nil || d.For != records {
		t.Error("a change removes the records")
	}
	if d := b.translator.Attach("default/web-1", none); d.Get(cluster) != nil || d.For != none {
		t.Error("a stream without records gets records")
	}
	for range 4 {
		b.translator.Detach("default/web-1")
	}
	checkEmpty(t, b.translator)
}

func TestResourcesOfADetachedProxy(t *testing.T) {
	b := newBench(t, dataplane("web-1", "10.0.0.9", "web", calls("api")))
	b.apply()
	got, ok := b.translator.Resources("default/web-1")
	want := []string{
		"cluster api", "cluster inbound:80", "endpoint api", "listener inbound:10.0.0.9:80", "listener outbound:240.0.0.1:80", "listener readiness",
	}
	if diff := cmp.Diff(want, names(got)); diff != "" || !ok {
		t.Errorf("Resources() = %v: %s", ok, diff)
	}
	checkEmpty(t, b.translator)
}

func TestSetsShareWhatDidNotChange(t *testing.T) {
	b := newBench(t, meshWith(mesh.ModeStrict), service("api", mesh.ProtocolHTTP, "240.0.0.1:80"),
		dataplane("web-1", "10.0.0.9", "web", transparent), dataplane("web-2", "10.0.0.8", "web", transparent, calls("db")))
	b.apply()
	before := b.translator.Attach("default/web-1", resource.Metadata{})
	b.set(meshWith(mesh.ModePermissive)) // the cluster changes; route and listener are encoded again, with equal results
	now := b.apply()["default/web-1"]
	other := b.translator.Attach("default/web-2", resource.Metadata{})
	for _, typ := range []resource.Type{resource.Route, resource.Endpoint} {
		name := resource.Name{Type: typ, Name: "api"}
		if r := before.Shared.Get(name); r == nil || r != now.Shared.Get(name) || r != other.Shared.Get(name) {
			t.Errorf("%s of api is %p, then %p, and %p in another set", typ.Short(), r, now.Shared.Get(name), other.Shared.Get(name))
		}
	}
}

func TestReplicasShareAllButTheirAddress(t *testing.T) {
	for _, protocol := range []mesh.Protocol{mesh.ProtocolTCP, mesh.ProtocolHTTP} {
		t.Run(string(protocol), func(t *testing.T) {
			b := newBench(t, meshWith(mesh.ModePermissive), dataplane("web-1", "10.0.0.1", "web", speaks(protocol), transparent),
				dataplane("web-2", "10.0.0.2", "web", speaks(protocol), transparent))
			b.apply()
			first, second := b.translator.Attach("default/web-1", resource.Metadata{}).Own, b.translator.Attach("default/web-2", resource.Metadata{}).Own
			var differ []string
			for _, typ := range resource.Types() {
				for _, r := range first.Of(typ) {
					if second.Get(r.Key()) != r {
						differ = append(differ, typ.Short()+" "+r.Name)
					}
				}
			}
			if diff := cmp.Diff([]string{"cluster inbound:80"}, differ); diff != "" {
				t.Errorf("resources that are not shared (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVirtualAddressesThatCollide(t *testing.T) {
	b := newBench(t, service("a", "", "240.0.0.1:80", "240.0.0.3:80"), service("b", "", "240.0.0.1:80"),
		dataplane("shared", "10.0.0.1", "", workload("w"), transparent),
		dataplane("own", "10.0.0.2", "", workload("w"), transparent, calls("c")))
	b.apply()
	b.translator.Attach("default/shared", resource.Metadata{})
	b.translator.Attach("default/own", resource.Metadata{})
	owner := func(proxy, listener string) string {
		d, _ := b.translator.Resources("default/" + proxy)
		name := resource.Name{Type: resource.Listener, Name: "outbound:" + listener}
		if d.Shared.Get(name) != nil && d.Own.Get(name) != nil {
			t.Errorf("%s of %s is in both sets", listener, proxy)
		}
		if r := d.Get(name); r != nil {
			for _, s := range []string{"a", "b", "c"} {
				if strings.Contains(string(r.Body.Value), "outbound_"+s) {
					return s
				}
			}
		}
		return ""
	}
	expect := func(proxy, listener, want string) {
		t.Helper()
		if got := owner(proxy, listener); got != want {
			t.Errorf("%s of %s leads to %q, want %q", listener, proxy, got, want)
		}
	}
	expect("shared", "240.0.0.1:80", "a")
	expect("own", "240.0.0.1:80", "c")
	expect("own", "240.0.0.3:80", "a")
	b.set(service("a", "", "240.0.0.3:80"))
	b.apply()
	expect("shared", "240.0.0.1:80", "b")
	expect("own", "240.0.0.1:80", "c")
	b.set(dataplane("own", "10.0.0.2", "", workload("w"), transparent))
	b.apply()
	expect("own", "240.0.0.1:80", "b")
}

func TestOneResourceThatCannotBeEncoded(t *testing.T) {
	b := newBench(t, dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolHTTP)), dataplane("web-1", "10.0.0.9", "web", calls("api", "db")))
	b.apply()
	b.refused = "outbound:240.0.0.1"
	before := b.translator.Attach("default/web-1", resource.Metadata{})
	if got := strings.Join(b.reported, "; "); got != "translate proxy default/web-1: encode outbound:240.0.0.1:80: refused" {
		t.Errorf("reported: %s", got)
	}
	want := []string{
		"cluster api", "cluster db", "cluster inbound:80", "endpoint api", "endpoint db", "listener inbound:10.0.0.9:80",
		"listener outbound:240.0.0.2:80", "listener readiness", "route api",
	}
	if diff := cmp.Diff(want, names(before)); diff != "" {
		t.Errorf("Attach() (-want +got):\n%s", diff)
	}

	b.refused = "api" // its new cluster and route are refused, and the last good ones stay
	b.set(dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolHTTP2)), dataplane("db-1", "10.0.0.2", "db"))
	now := b.apply()["default/web-1"]
	put, remove := difference(before, now)
	if diff := cmp.Diff([]string{"endpoint db", "listener outbound:240.0.0.1:80"}, put); diff != "" {
		t.Errorf("put (-want +got):\n%s", diff)
	}
	if len(remove) > 0 {
		t.Errorf("removed: %v", remove)
	}
	if b.last == nil || strings.Count(b.last.Error(), "translate service default/api: encode api: refused") != 2 {
		t.Errorf("Apply() error = %v, want one each for cluster and route", b.last)
	}

	b.refused = ""
	b.set(dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolGRPC)))
	put, _ = difference(now, b.apply()["default/web-1"])
	if !slices.Contains(put, "cluster api") {
		t.Errorf("put %v, want the cluster again", put)
	}
}
