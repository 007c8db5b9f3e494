package xds

import (
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// A fuzz input is a sequence of requests, each after its length. An empty request stands for a change of the desired
// resources. No input may cause a panic, or an endless sequence of responses.

var fuzzViews = []string{
	"CDS a@1 b@1 EDS a@1 b@1 LDS l@1 RDS r@1",
	"CDS a@2 EDS a@1 c@1 LDS l@2 m@1 RDS r@1",
	"CDS",
	"CDS static@1 b@1 EDS b@2 LDS m@1 RDS r@2 q@1",
}

func fuzzProxy(t *testing.T, sotw bool, data []byte, receive func(*proxy, []byte) error) {
	p := newProxy(sotw)
	views := 0
	for len(data) > 0 {
		request, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return
		}
		data = data[n:]
		if len(request) == 0 {
			p.setDesired(resource.Desired{Shared: setOf(t, fuzzViews[views%len(fuzzViews)], p.desired.Shared)})
			views++
		} else if receive(p, request) != nil {
			return // which ends the stream
		}
		p.status()
		before := p.held()
		for range 10_000 {
			r := p.next()
			if r == nil {
				break
			}
			if sotw {
				r.state()
			} else {
				if _, err := r.delta(); err != nil {
					t.Fatal(err)
				}
			}
			if len(r.subscription.inFlight) > maxInFlight {
				t.Fatal("more responses in flight than the window allows")
			}
		}
		if p.next() != nil {
			t.Fatal("endless responses")
		}
		checkCounts(t, p, before)
	}
}

// checkCounts compares the counters with the real sizes. An answer must not increase the bytes of names.
func checkCounts(t *testing.T, p *proxy, before int) {
	inFlight := 0
	for _, s := range slices.Concat(p.subscriptions[:], p.unserved) {
		for _, r := range s.inFlight {
			inFlight += r.keptBytes()
		}
		for _, name := range s.names.all() {
			before -= len(name) + nameOverhead
		}
	}
	if inFlight != p.inFlightBytes {
		t.Fatalf("%d bytes in flight are counted as %d", inFlight, p.inFlightBytes)
	}
	if before < 0 {
		t.Fatalf("%d bytes of names are not counted", -before)
	}
}

func fuzzInput(f *testing.F, messages ...proto.Message) []byte {
	f.Helper()
	var data []byte
	for _, m := range messages {
		var body []byte
		if m != nil {
			var err error
			if body, err = proto.Marshal(m); err != nil {
				f.Fatal(err)
			}
		}
		data = protowire.AppendBytes(data, body)
	}
	return data
}

func FuzzDeltaRequests(f *testing.F) {
	first := func(kind string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
		return ask("m/a", kind, names...)
	}
	versions := first("CDS")
	versions.InitialResourceVersions = map[string]string{"a": "1", "z": "9", "": ""}
	answer := func(kind, nonce, nack string) *discoveryv3.DeltaDiscoveryRequest {
		return ack(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: string(shortTypes[kind]), Nonce: nonce}, nack)
	}
	f.Add(fuzzInput(f, nil, first("CDS"), first("EDS", "a", "b", "x"), answer("CDS", "1", ""), first("LDS"), first("RDS", "r"), nil, nil))
	f.Add(fuzzInput(f, versions, nil, first("LDS", "*", "l"), answer("CDS", "1", "Error adding/updating cluster(s) a: why"), nil))
	f.Add(fuzzInput(f, nil, first("EDS", "a", "b"), answer("EDS", "1", "no"), answer("EDS", "2", "no"), nil, answer("EDS", "99", "")))
	f.Add(fuzzInput(f, nil, first("CDS", "*"), &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: string(resource.Cluster), ResourceNamesUnsubscribe: []string{"*", "a"}, ResponseNonce: "1",
	}, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzProxy(t, false, data, func(p *proxy, body []byte) error {
			r := &discoveryv3.DeltaDiscoveryRequest{}
			if err := deltaFields.decode(body, r); err != nil {
				return err
			}
			_, err := p.receiveDelta(r)
			return err
		})
	})
}

func FuzzSotwRequests(f *testing.F) {
	request := func(kind, nonce, nack string, names ...string) *discoveryv3.DiscoveryRequest {
		r := &discoveryv3.DiscoveryRequest{TypeUrl: string(shortTypes[kind]), ResponseNonce: nonce, ResourceNames: names}
		if nack != "" {
			r.ErrorDetail = &statuspb.Status{Message: nack}
		}
		return r
	}
	f.Add(fuzzInput(f, nil, request("CDS", "", ""), request("EDS", "", "", "a", "x"), request("CDS", "1", ""), request("LDS", "", ""), nil, nil))
	f.Add(fuzzInput(f, nil, request("LDS", "", "", "*", "l"), nil, request("LDS", "1", "Error adding/updating listener(s) l: no"), request("LDS", "1", "")))
	f.Add(fuzzInput(f, request("EDS", "", "", "a", "b"), nil, request("EDS", "1", "no", "a", "b"), request("EDS", "9", "", "c"), nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzProxy(t, true, data, func(p *proxy, body []byte) error {
			r := &discoveryv3.DiscoveryRequest{}
			if err := sotwFields.decode(body, r); err != nil {
				return err
			}
			_, err := p.receiveSotw(r)
			return err
		})
	})
}

// FuzzDecode decodes a request in both protocols. In the fields that the server reads, the result must equal
// protobuf's, or the request must be rejected for its size. Decoding must not exceed its memory limit.
func FuzzDecode(f *testing.F) {
	for _, of := range []fields{deltaFields, sotwFields} {
		for _, key := range nodeKeys {
			f.Add(element(of.node, append(element(1, []byte("m/a")), element(3, element(1, append(element(1, []byte(key)), element(2, element(3, []byte("1s")))...)))...)))
		}
		f.Add(slices.Concat(element(of.typeURL, []byte("t")), element(3, []byte("a")), element(3, nil), element(of.nonce, []byte("1")), element(of.errorDetail, element(2, []byte("why")))))
		f.Add(slices.Concat(element(of.node, nil), element(5, append(element(1, []byte("a")), element(2, []byte("1"))...)), element(4, []byte("b"))))
		for _, bomb := range decodeBombs(of, 100) {
			f.Add(bomb)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, of := range []fields{deltaFields, sotwFields} {
			got, whole := messageOf(of), messageOf(of)
			var err error
			if used := allocated(func() { err = of.decode(data, got) }); used > decodeLimit(data) {
				t.Fatalf("%d bytes are decoded into %d", len(data), used)
			}
			wholeErr := proto.Unmarshal(data, whole)
			if err != nil {
				if wholeErr == nil && status.Code(err) != codes.ResourceExhausted {
					t.Fatalf("decode() = %v, but protobuf decodes it", err)
				}
				continue
			}
			if diff := cmp.Diff(read(whole), read(got), cmpopts.EquateEmpty()); wholeErr == nil && diff != "" {
				t.Fatalf("decoded (-want +got):\n%s", diff)
			}
		}
	})
}

// read returns the fields that the server reads of a request.
func read(m proto.Message) []any {
	type common interface {
		request
		GetResponseNonce() string
		GetErrorDetail() *statuspb.Status
	}
	c := m.(common)
	node := c.GetNode()
	all := []any{c.GetTypeUrl(), c.GetResponseNonce(), c.GetErrorDetail() != nil, c.GetErrorDetail().GetMessage(), node.GetId()}
	for _, key := range nodeKeys {
		value, ok := node.GetMetadata().GetFields()[key]
		all = append(all, ok, value.GetStringValue())
	}
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		all = append(all, len(r.GetResourceNamesSubscribe()), len(r.GetResourceNamesUnsubscribe()), r.GetInitialResourceVersions())
		for _, name := range slices.Concat(r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()) {
			all = append(all, name)
		}
	case *discoveryv3.DiscoveryRequest:
		for _, name := range r.GetResourceNames() {
			all = append(all, name)
		}
	}
	return all
}
