package resource_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

func cluster(t testing.TB, name, alt string) *resource.Resource {
	t.Helper()
	return encode(t, name, &clusterv3.Cluster{Name: name, AltStatName: alt})
}

func encode(t testing.TB, name string, m proto.Message) *resource.Resource {
	t.Helper()
	r, err := resource.Encode(name, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func name(n string) resource.Name { return resource.Name{Type: resource.Cluster, Name: n} }

func names(list []*resource.Resource) string {
	var all []string
	for _, r := range list {
		all = append(all, r.Name)
	}
	return strings.Join(all, " ")
}

func TestEncodeIsDeterministic(t *testing.T) {
	t.Parallel()
	fields := map[string]any{}
	for i := range 50 {
		fields[fmt.Sprintf("key%d", i)] = float64(i)
	}
	var want *resource.Resource
	for range 20 {
		meta, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		got := encode(t, "a", &clusterv3.Cluster{
			Name:     "a",
			Metadata: &corev3.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"x": resource.Any(meta), "y": resource.Any(meta)}},
		})
		if want == nil {
			want = got
		}
		if got.Version != want.Version || !slices.Equal(got.Body.Value, want.Body.Value) {
			t.Fatal("Encode() gave other bytes for the same message")
		}
	}
	if len(want.Version) != 16 {
		t.Errorf("Version = %q, want 16 digits", want.Version)
	}
}

func TestEncodeRoundTrip(t *testing.T) {
	t.Parallel()
	want := &endpointv3.ClusterLoadAssignment{ClusterName: "api"}
	r := encode(t, "api", want)
	got := &endpointv3.ClusterLoadAssignment{}
	if err := r.Body.UnmarshalTo(got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got) || r.Type != resource.Endpoint || r.Type.Short() != "endpoint" {
		t.Errorf("Encode() = %v, want %v", r, want)
	}
}

// TestEntry joins entries to a response, which protobuf must be able to parse.
func TestEntry(t *testing.T) {
	t.Parallel()
	var wire []byte
	want := &discoveryv3.DeltaDiscoveryResponse{}
	for _, size := range []int{1, 100, 127, 128, 20_000, 3_000_000} { // with different lengths of the length
		r := cluster(t, strings.Repeat("n", min(size, 500)), strings.Repeat("a", size))
		wire = append(wire, r.Entry...)
		want.Resources = append(want.Resources, &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: r.Body})
		if len(r.Entry) != cap(r.Entry) {
			t.Errorf("Entry of %d bytes has the capacity %d", len(r.Entry), cap(r.Entry))
		}
	}
	got := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got) {
		t.Error("the parsed entries differ from the resources")
	}
}

func TestEncodeNamesTheEndpointsOfACluster(t *testing.T) {
	t.Parallel()
	eds := &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	tests := map[string]struct {
		m    *clusterv3.Cluster
		want string
	}{
		"static":       {&clusterv3.Cluster{Name: "a"}, ""},
		"EDS":          {&clusterv3.Cluster{Name: "a", ClusterDiscoveryType: eds}, "a"},
		"service name": {&clusterv3.Cluster{Name: "a", ClusterDiscoveryType: eds, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "b"}}, "b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := encode(t, "a", tc.m).Endpoints; got != tc.want {
				t.Errorf("Endpoints = %q, want %q", got, tc.want)
			}
		})
	}
}

// TestEncodeNamesTheAddressOfAListener checks the address by the direction of the traffic: a listener that does not
// bind has none.
func TestEncodeNamesTheAddressOfAListener(t *testing.T) {
	t.Parallel()
	listener := func(direction corev3.TrafficDirection, binds *wrapperspb.BoolValue) *listenerv3.Listener {
		return &listenerv3.Listener{Name: "l", TrafficDirection: direction, BindToPort: binds, Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}},
		}}}
	}
	at := netip.MustParseAddrPort("127.0.0.1:80")
	for name, tc := range map[string]struct {
		listener          *listenerv3.Listener
		inbound, outbound netip.AddrPort
	}{
		"inbound":           {listener(corev3.TrafficDirection_INBOUND, nil), at, netip.AddrPort{}},
		"outbound":          {listener(corev3.TrafficDirection_OUTBOUND, nil), netip.AddrPort{}, at},
		"outbound, unbound": {listener(corev3.TrafficDirection_OUTBOUND, wrapperspb.Bool(false)), netip.AddrPort{}, netip.AddrPort{}},
	} {
		if r := encode(t, "l", tc.listener); r.Inbound != tc.inbound || r.Outbound != tc.outbound {
			t.Errorf("%s: addresses are %s and %s, want %s and %s", name, r.Inbound, r.Outbound, tc.inbound, tc.outbound)
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		name string
		m    proto.Message
		want string
	}{
		"other type":     {"x", &corev3.Node{Id: "x"}, "is not served"},
		"other name":     {"x", &clusterv3.Cluster{Name: "y"}, `has the name "y"`},
		"no name":        {"", &clusterv3.Cluster{}, "has the name"},
		"field rules":    {"x", &listenerv3.Listener{Name: "x", Address: badPort()}, "PortValue"},
		"nested rules":   {"x", &endpointv3.ClusterLoadAssignment{ClusterName: "x", Policy: badPolicy()}, "OverprovisioningFactor"},
		"not UTF-8":      {"x", &clusterv3.Cluster{Name: "x", AltStatName: "\xff"}, "UTF-8"},
		"not UTF-8 name": {"\xff", &clusterv3.Cluster{Name: "\xff"}, "UTF-8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := resource.Encode(tc.name, tc.m); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Encode() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestAnyPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("Any() of a broken string did not panic")
		}
	}()
	resource.Any(&clusterv3.Cluster{Name: "\xff"})
}

func TestSet(t *testing.T) {
	t.Parallel()
	a, b, c := cluster(t, "a", ""), cluster(t, "b", ""), cluster(t, "c", "")
	a2 := cluster(t, "a", "changed")
	cla := encode(t, "a", &endpointv3.ClusterLoadAssignment{ClusterName: "a"})
	abc := resource.NewSet(c, a, b, cla)

	tests := map[string]struct {
		set      *resource.Set
		clusters string
		length   int
		a        *resource.Resource
	}{
		"nil":                    {nil, "", 0, nil},
		"empty":                  {resource.NewSet(), "", 0, nil},
		"sorted":                 {abc, "a b c", 4, a},
		"the later one counts":   {resource.NewSet(a, a2), "a", 1, a2},
		"put a change":           {abc.With([]*resource.Resource{a2}, nil), "a b c", 4, a2},
		"remove":                 {abc.With(nil, []resource.Name{name("b")}), "a c", 3, a},
		"put wins over removal":  {abc.With([]*resource.Resource{a2}, []resource.Name{name("a")}), "a b c", 4, a2},
		"put into nil":           {(*resource.Set)(nil).With([]*resource.Resource{a}, nil), "a", 1, a},
		"remove all of a type":   {abc.With(nil, []resource.Name{name("a"), name("b"), name("c")}), "", 1, nil},
		"removed twice":          {abc.With(nil, []resource.Name{name("b"), name("b")}), "a c", 3, a},
		"put before and between": {resource.NewSet(b).With([]*resource.Resource{c, a}, nil), "a b c", 3, a},
	}
	for what, tc := range tests {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if got := names(tc.set.Of(resource.Cluster)); got != tc.clusters {
				t.Errorf("Of() = %q, want %q", got, tc.clusters)
			}
			length := 0
			for _, typ := range resource.Types() {
				length += len(tc.set.Of(typ))
			}
			if length != tc.length {
				t.Errorf("%d resources, want %d", length, tc.length)
			}
			if got := tc.set.Get(name("a")); got != tc.a {
				t.Errorf("Get() = %v, want %v", got, tc.a)
			}
		})
	}
}

func TestWithKeepsWhatIsEqual(t *testing.T) {
	t.Parallel()
	a, b := cluster(t, "a", ""), cluster(t, "b", "")
	s := resource.NewSet(a, b)
	if got := s.With([]*resource.Resource{cluster(t, "a", "")}, []resource.Name{name("unknown")}); got != s {
		t.Error("With() of nothing new returned another set")
	}
	if got := (*resource.Set)(nil).With(nil, []resource.Name{name("a")}); got != nil {
		t.Error("With() of nothing on nil returned a set")
	}
	next := s.With([]*resource.Resource{cluster(t, "a", ""), cluster(t, "b", "x")}, nil)
	if next.Get(name("a")) != a {
		t.Error("With() replaced an equal resource")
	}
	if s.Get(name("b")) != b {
		t.Error("With() changed the set it was called on")
	}
}

// TestDiff compares the known delta, the compared one and a naive one over random sets.
func TestDiff(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	resources := map[string][]*resource.Resource{}
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		for _, alt := range []string{"1", "2", "3"} {
			resources[n] = append(resources[n], cluster(t, n, alt))
		}
		resources[n] = append(resources[n], encode(t, n, &endpointv3.ClusterLoadAssignment{ClusterName: n}))
	}
	all := slices.Sorted(func(yield func(string) bool) {
		for n := range resources {
			if !yield(n) {
				return
			}
		}
	})
	history := []*resource.Set{nil, resource.NewSet()}
	for range 500 {
		last := history[len(history)-1]
		var put []*resource.Resource
		var remove []resource.Name
		for range random.IntN(4) {
			put = append(put, resources[all[random.IntN(6)]][random.IntN(4)])
		}
		for range random.IntN(4) {
			remove = append(remove, resources[all[random.IntN(6)]][random.IntN(4)].Key())
		}
		next := last.With(put, remove)
		history = append(history, next)
		for _, from := range []*resource.Set{last, history[random.IntN(len(history))]} {
			for _, c := range resource.Diff(from, next) {
				if want := from.Get(c.Key()); c.Old != want {
					t.Fatalf("Old of %v is %v, want %v", c.Key(), c.Old, want)
				}
			}
			if diff := cmp.Diff(naive(from, next), keys(resource.Diff(from, next))); diff != "" {
				t.Fatalf("Diff() (-want +got):\n%s", diff)
			}
		}
	}
}

func TestDiffOfSuccessorIsKept(t *testing.T) {
	t.Parallel()
	s := resource.NewSet(cluster(t, "a", ""))
	next := s.With([]*resource.Resource{cluster(t, "a", "x")}, nil)
	if first := resource.Diff(s, next); &first[0] != &resource.Diff(s, next)[0] {
		t.Error("Diff() of a successor was computed again")
	}
}

// keys formats a delta: name@version for put resources, -name for removed ones.
func keys(d resource.Delta) []string {
	var all []string
	for _, c := range d {
		if c.New != nil {
			all = append(all, c.New.Type.Short()+" "+c.New.Name+"@"+c.New.Version)
		} else {
			all = append(all, "-"+c.Old.Type.Short()+" "+c.Old.Name)
		}
	}
	slices.Sort(all)
	return all
}

func naive(from, to *resource.Set) []string {
	var all []string
	for _, t := range resource.Types() {
		for _, r := range to.Of(t) {
			if old := from.Get(r.Key()); old == nil || old.Version != r.Version {
				all = append(all, r.Type.Short()+" "+r.Name+"@"+r.Version)
			}
		}
		for _, r := range from.Of(t) {
			if to.Get(r.Key()) == nil {
				all = append(all, "-"+r.Type.Short()+" "+r.Name)
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestDesired(t *testing.T) {
	t.Parallel()
	a, b := cluster(t, "a", ""), cluster(t, "b", "")
	d := resource.Desired{Shared: resource.NewSet(a), Own: resource.NewSet(b)}
	if d.Get(name("a")) != a || d.Get(name("b")) != b || d.Get(name("c")) != nil {
		t.Error("Get() of Desired does not find the resources of both sets")
	}
	if !d.Known() || (resource.Desired{}).Known() {
		t.Error("Known() is wrong")
	}
}

func badPort() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 99999},
	}}}
}

func badPolicy() *endpointv3.ClusterLoadAssignment_Policy {
	return &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(0)}
}
