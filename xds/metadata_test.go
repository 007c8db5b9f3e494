package xds

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestRecordsOfANode(t *testing.T) {
	t.Parallel()
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	tests := map[string]struct {
		value        *structpb.Value
		want, logged bool
	}{
		"not said":        {},
		"true":            {value: text("true"), want: true},
		"false":           {value: text("false")},
		"empty":           {value: text(""), logged: true},
		"another word":    {value: text("yes"), logged: true},
		"in upper case":   {value: text("True"), logged: true},
		"a bool":          {value: structpb.NewBoolValue(true), logged: true},
		"a number":        {value: structpb.NewNumberValue(1), logged: true},
		"null":            {value: structpb.NewNullValue(), logged: true},
		"a list of texts": {value: structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{text("true")}}), logged: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &logtest.Buffer{}
			s := NewServer(Options{Logger: slog.New(slog.NewTextHandler(log, nil))}, nil, nil)
			node := nodeOf("m/a")
			if tc.value != nil {
				node.Metadata = metadata(map[string]*structpb.Value{resource.NodeRecords: tc.value})
			}
			expect(t, s.metadataOf(node).Records, tc.want)
			expect(t, strings.Contains(log.String(), "invalid plaintext-records metadata of node"), tc.logged)
		})
	}
}

// recording is ask for an Envoy whose bootstrap declares that its agent reads records.
func recording(node, typ string) *discoveryv3.DeltaDiscoveryRequest {
	r := ask(node, typ)
	r.Node.Metadata = metadata(map[string]*structpb.Value{resource.NodeRecords: structpb.NewStringValue("true")})
	return r
}

// The newest stream of a node counts: resources made for other metadata do not reach it, and streams with other
// metadata end.
func TestMetadataOfTheNewestStreamCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "CDS a@1")
		before := f.delta().listen()
		before.send(ask("m/a", "CDS"))
		before.send(ack(before.next(), ""))
		stale := f.source.desired["m/a"]

		now := f.delta().listen()
		now.send(recording("m/a", "CDS"))
		now.send(ack(now.next(), ""))
		before.endsWith(codes.Aborted, `node "m/a" has opened a stream with other metadata`)
		expect(t, f.server.Status()[0].Says, resource.Metadata{Records: true})

		stale.Shared = setOf(t, "CDS a@2", nil) // made before the newest stream opened, published later
		f.server.Publish(map[string]resource.Desired{"m/a": stale})
		now.quiet()
		f.want("m/a", "CDS a@3")
		expect(t, said(now.next()), "CDS a@3")

		again := f.delta().listen()
		again.send(recording("m/a", "CDS"))
		again.next()
		now.quiet() // equal metadata: both streams stay open
	})
}
