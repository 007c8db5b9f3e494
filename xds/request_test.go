package xds

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// element encodes a field with a length.
func element(n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), value)
}

func metadata(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: fields}
}

// TestDecodeKeepsWhatIsRead decodes requests with all fields that Envoy sends.
func TestDecodeKeepsWhatIsRead(t *testing.T) {
	t.Parallel()
	drainTime, records := structpb.NewStringValue("10m0s"), structpb.NewStringValue("true")
	envoy := &corev3.Node{
		Id: "m/a", Cluster: "web", UserAgentName: "envoy", ClientFeatures: []string{"x"}, Extensions: []*corev3.Extension{{Name: "e"}},
		Metadata: metadata(map[string]*structpb.Value{"other": structpb.NewStringValue("x"), resource.NodeDrainTime: drainTime, resource.NodeRecords: records}),
	}
	read := &corev3.Node{Id: "m/a", Metadata: metadata(map[string]*structpb.Value{resource.NodeDrainTime: drainTime, resource.NodeRecords: records})}
	detail := &statuspb.Status{Code: 13, Message: "why", Details: []*anypb.Any{{TypeUrl: "x"}}}
	tests := map[string]struct {
		fields    fields
		sent      proto.Message
		got, want proto.Message
	}{
		"delta": {
			deltaFields,
			&discoveryv3.DeltaDiscoveryRequest{
				Node: envoy, TypeUrl: "t", ResourceNamesSubscribe: []string{"a", ""}, ResourceNamesUnsubscribe: []string{"b"}, ResponseNonce: "1",
				InitialResourceVersions: map[string]string{"c": "1"}, ErrorDetail: detail, ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{}},
			},
			&discoveryv3.DeltaDiscoveryRequest{},
			&discoveryv3.DeltaDiscoveryRequest{
				Node: read, TypeUrl: "t", ResourceNamesSubscribe: []string{"a", ""}, ResourceNamesUnsubscribe: []string{"b"}, ResponseNonce: "1",
				InitialResourceVersions: map[string]string{"c": "1"}, ErrorDetail: &statuspb.Status{Message: "why"},
			},
		},
		"state of the world": {
			sotwFields,
			&discoveryv3.DiscoveryRequest{VersionInfo: "1", Node: envoy, TypeUrl: "t", ResourceNames: []string{"a", "b"}, ResponseNonce: "1", ErrorDetail: detail},
			&discoveryv3.DiscoveryRequest{},
			&discoveryv3.DiscoveryRequest{Node: read, TypeUrl: "t", ResourceNames: []string{"a", "b"}, ResponseNonce: "1", ErrorDetail: &statuspb.Status{Message: "why"}},
		},
		"a NACK without a reason": {
			deltaFields, &discoveryv3.DeltaDiscoveryRequest{ErrorDetail: &statuspb.Status{Code: 13}}, &discoveryv3.DeltaDiscoveryRequest{},
			&discoveryv3.DeltaDiscoveryRequest{ErrorDetail: &statuspb.Status{}},
		},
		"nothing to drop": {
			sotwFields, &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResponseNonce: "1"}, &discoveryv3.DiscoveryRequest{},
			&discoveryv3.DiscoveryRequest{TypeUrl: "t", ResponseNonce: "1"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.fields.decode(marshal(t, tc.sent), tc.got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, tc.got, protocmp.Transform()); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxNameLength+1)
	tests := map[string]struct {
		fields  fields
		encoded []byte
		code    codes.Code
		text    string
	}{
		"a long name":     {sotwFields, element(3, []byte(long)), codes.ResourceExhausted, "resource_names: 1025 bytes: at most 1024 are allowed"},
		"a long removal":  {deltaFields, element(4, []byte(long)), codes.ResourceExhausted, "resource_names_unsubscribe: 1025 bytes: at most 1024"},
		"a long version":  {deltaFields, element(5, append(element(1, nil), element(2, bytes.Repeat([]byte("x"), maxVersionEntry))...)), codes.ResourceExhausted, "initial_resource_versions: 1157 bytes: at most 1152"},
		"many names":      {sotwFields, bytes.Repeat(element(3, nil), maxNames+1), codes.ResourceExhausted, "resource_names: more than 20000 names"},
		"many versions":   {deltaFields, bytes.Repeat(element(5, nil), maxNames+1), codes.ResourceExhausted, "initial_resource_versions: more than 20000 names"},
		"a long type":     {deltaFields, element(2, []byte(long)), codes.ResourceExhausted, "type_url: 1025 bytes: at most 1024"},
		"a long nonce":    {deltaFields, element(6, []byte(long)), codes.ResourceExhausted, "response_nonce: 1025 bytes: at most 1024"},
		"a long node id":  {deltaFields, element(1, element(1, []byte(long))), codes.ResourceExhausted, "node.id: 1025 bytes: at most 1024"},
		"a large node":    {sotwFields, element(2, element(3, make([]byte, maxNodeSize))), codes.ResourceExhausted, "at most 524288 are allowed"},
		"a node in parts": {sotwFields, bytes.Repeat(element(2, element(9, make([]byte, maxNodeSize/4))), 5), codes.ResourceExhausted, "node: 524304 bytes"},
		"a large NACK":    {deltaFields, element(7, element(2, make([]byte, maxErrorDetail))), codes.ResourceExhausted, "error_detail: 262148 bytes: at most 262144"},
		"a long drain time": {
			deltaFields, element(1, element(3, element(1, append(element(1, []byte(resource.NodeDrainTime)), element(2, make([]byte, 2000))...)))),
			codes.ResourceExhausted, "node.metadata[sonde.dev/drain-time]: 2025 bytes: at most 1024",
		},
		"long records": {
			sotwFields, element(2, element(3, bytes.Repeat(element(1, append(element(1, []byte(resource.NodeRecords)), element(2, make([]byte, 500))...)), 2))),
			codes.ResourceExhausted, "node.metadata[sonde.dev/plaintext-records]: 1064 bytes: at most 1024",
		},
		"a tag that ends":        {deltaFields, []byte{0x80}, codes.InvalidArgument, "decode request: unexpected EOF"},
		"a field that ends":      {deltaFields, []byte{0x0a, 5, 1}, codes.InvalidArgument, "decode request: unexpected EOF"},
		"a node that ends":       {deltaFields, element(1, []byte{0x0a, 5, 1}), codes.InvalidArgument, "decode request: unexpected EOF"},
		"a name that is no text": {deltaFields, element(3, []byte{0xff}), codes.InvalidArgument, "invalid UTF-8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.fields.decode(tc.encoded, messageOf(tc.fields))
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("decode() = %v, want %v with %q", err, tc.code, tc.text)
			}
		})
	}
}

// messageOf returns an empty request with these fields.
func messageOf(f fields) proto.Message {
	if f.node == deltaFields.node {
		return &discoveryv3.DeltaDiscoveryRequest{}
	}
	return &discoveryv3.DiscoveryRequest{}
}

// decodeBombs are small when encoded, and large when fully decoded. Each repeats an element n times.
func decodeBombs(f fields, n int) map[string][]byte {
	nested := element(6, nil)
	for range n / 50 {
		nested = element(6, element(1, nested))
	}
	values := append(nested, bytes.Repeat(element(1, nil), n)...)
	return map[string][]byte{
		"nested metadata":     element(f.node, element(3, element(1, append(element(1, []byte("k")), element(2, element(6, values))...)))),
		"empty metadata":      element(f.node, element(3, bytes.Repeat(element(1, nil), n))),
		"empty extensions":    element(f.node, bytes.Repeat(element(9, nil), n)),
		"empty features":      element(f.node, bytes.Repeat(element(10, nil), n)),
		"details of a NACK":   element(f.errorDetail, bytes.Repeat(element(3, nil), n)),
		"empty locators":      bytes.Repeat(element(8, element(2, nil)), n),
		"unknown fields":      bytes.Repeat(element(1000, nil), n),
		"nested groups":       append(bytes.Repeat([]byte{0xa3, 0x06}, n/12), bytes.Repeat([]byte{0xa4, 0x06}, n/12)...),
		"the most names":      bytes.Repeat(element(3, nil), min(n, maxNames)),
		"dynamic parameters":  element(f.node, bytes.Repeat(element(12, nil), n)),
		"listening addresses": element(f.node, bytes.Repeat(element(11, element(1, nil)), n)),
	}
}

// decodeLimit is the maximum memory that decoding a request may allocate: its size again, and a string for each name.
func decodeLimit(encoded []byte) int { return 2*len(encoded) + maxNames*80 + 64<<10 }

// allocated returns how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// TestDecodeBombs is not parallel, since it measures the allocations of the process.
func TestDecodeBombs(t *testing.T) { //nolint:paralleltest // see above
	for protocol, f := range map[string]fields{"delta": deltaFields, "sotw": sotwFields} {
		for name, bomb := range decodeBombs(f, 100_000) {
			t.Run(name+", "+protocol, func(t *testing.T) {
				m := messageOf(f)
				if got, limit := allocated(func() { _ = f.decode(bomb, m) }), decodeLimit(bomb); got > limit {
					t.Errorf("%d bytes are decoded into %d, want at most %d", len(bomb), got, limit)
				}
			})
		}
	}
}
