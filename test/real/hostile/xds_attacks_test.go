package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// adsAttacks returns the attacks of members of the mesh on their ADS streams.
func adsAttacks() []attack {
	return []attack{
		{name: "many long names", run: onStreams(subscribeTo(19_900, 1000))},
		{name: "many short names", run: onStreams(subscribeTo(19_900, 3))},
		{name: "names of types that are not served", run: onStreams(otherTypes)},
		{name: "the same names again and again", run: onStreams(repeatNames)},
		{name: "versions of what does not exist", run: onStreams(stateVersions)},
		{name: "nested metadata of the node", run: onStreams(bombNode(nestedMetadata()))},
		{name: "empty extensions of the node", run: onStreams(bombNode(emptyExtensions()))},
		{name: "empty names", run: onStreams(bombNames)},
		{name: "unknown fields", run: onStreams(bombUnknown)},
		{name: "large metadata of the node", run: onStreams(bombNode(largeMetadata()))},
		{name: "NACKs with long reasons", run: onStreams(longNACKs)},
		{name: "NACKs of nothing", run: onStreams(spuriousNACKs)},
		{name: "requests for everything", run: onStreams(askForEverything)},
		{name: "subscriptions that come and go", run: onStreams(comeAndGo)},
		{name: "streams that are opened again", run: onStreams(openAgain)},
		{name: "a reader that never reads", run: onStreams(neverRead)},
	}
}

// adsStream is a member's stream with raw requests, so that they can be invalid.
type adsStream struct {
	grpc.ClientStream
	protocol envoysim.Protocol
	node     string
	number   int
	ended    chan error // receives the stream's error once
}

// rawCodec sends bytes unchanged, and drops received data.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

// onStreams has each hostile member open two streams of each protocol on each of two connections, and reopen them
// when they end.
func onStreams(do func(context.Context, *adsStream) error) func(context.Context, *target) {
	const conns, streams = 2, 4
	return calls(hostileMembers*conns, func(ctx context.Context, x *target, n int) {
		member := n % len(x.hostile)
		conn := x.dialRaw(x.hostile[member])
		defer func() { _ = conn.Close() }()
		calls(streams, func(ctx context.Context, _ *target, m int) {
			for ctx.Err() == nil {
				s := &adsStream{protocol: envoysim.Protocols()[m%2], node: fmt.Sprint("default/hostile-", member), number: m}
				if s.open(ctx, conn, do) != nil {
					pause(ctx, 10*time.Millisecond)
				}
			}
		})(ctx, x)
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (x *target) dialRaw(identity tls.Certificate) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+x.Agents, grpc.WithTransportCredentials(credentials.NewTLS(x.tls(identity))),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})), grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		panic(err) // invalid options
	}
	return conn
}

// open opens a stream, runs a function on it, and drops received data.
func (s *adsStream) open(ctx context.Context, conn *grpc.ClientConn, do func(context.Context, *adsStream) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	if s.protocol == envoysim.SotW {
		method = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	}
	s.ClientStream, err = conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	return do(ctx, s)
}

// read reads until the stream ends.
func (s *adsStream) read() {
	s.ended = make(chan error, 1)
	go func() {
		var dropped []byte
		for {
			if err := s.RecvMsg(&dropped); err != nil {
				s.ended <- err
				return
			}
		}
	}()
}

// hold waits until the stream ends.
func (s *adsStream) hold() error { return <-s.ended }

// ask sends a request with additional encoded fields.
func (s *adsStream) ask(r envoysim.Request, more ...byte) error {
	r.Node = s.node
	return s.SendMsg(append(s.encode(r), more...))
}

func (s *adsStream) encode(r envoysim.Request) []byte {
	if s.protocol == envoysim.SotW {
		r.Names = append(r.Names, r.Add...)
		return encoded(r.SotW())
	}
	r.Add = append(r.Add, r.Names...)
	return encoded(r.Delta())
}

// longNames returns unique names of at least this many bytes. It is fast, so that the attackers' own work does not
// limit the attack.
func longNames(n, length, number int) []string {
	prefix := fmt.Sprintf("%d-%08x-", number, rand.Uint32())
	length = max(length, len(prefix)+5)
	all := bytes.Repeat([]byte("n"), n*length)
	for i := range n {
		copy(all[i*length:], prefix+strconv.Itoa(100_000 + i)[1:])
	}
	text, names := string(all), make([]string, n)
	for i := range n {
		names[i] = text[i*length : (i+1)*length]
	}
	return names
}

// subscribeTo subscribes to names of all types, in requests of the maximum size.
func subscribeTo(count, length int) func(context.Context, *adsStream) error {
	return func(_ context.Context, s *adsStream) error {
		s.read()
		all := longNames(count, length, s.number)
		for part := range slices.Chunk(all, 3<<20/(length+10)) { // in the state of the world, each request replaces the previous one
			for _, t := range resource.Types() {
				if err := s.ask(envoysim.Request{Type: t, Names: part}); err != nil {
					return err
				}
			}
		}
		return s.hold()
	}
}

// otherTypes subscribes to names of unknown types.
func otherTypes(_ context.Context, s *adsStream) error {
	s.read()
	for n := range 16 {
		if err := s.ask(envoysim.Request{Type: resource.Type(fmt.Sprint("type-", n)), Names: longNames(3900, 1000, s.number)}); err != nil {
			return err
		}
	}
	return s.hold()
}

// repeatNames subscribes to the same names of each type, and never ACKs a response.
func repeatNames(ctx context.Context, s *adsStream) error {
	s.read()
	for ctx.Err() == nil {
		for _, t := range resource.Types() {
			if err := s.ask(envoysim.Request{Type: t, Names: longNames(3900, 900, 0)}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// stateVersions claims to have resources that do not exist.
func stateVersions(_ context.Context, s *adsStream) error {
	s.read()
	for _, t := range resource.Types() {
		versions := map[string]string{}
		for _, name := range longNames(3000, 500, s.number) {
			versions[name] = strings.Repeat("v", 600)
		}
		if err := s.ask(envoysim.Request{Type: t, Versions: versions}); err != nil {
			return err
		}
	}
	return s.hold()
}

const bombSize = 3 << 20

// field encodes a field with a length.
func field(n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), value)
}

func repeated(field []byte, size int) []byte {
	return []byte(strings.Repeat(string(field), size/len(field)))
}

// nestedMetadata repeats values in lists in values, as deep as decoders allow.
func nestedMetadata() []byte {
	value := field(6, nil)
	for range 2000 {
		value = field(6, field(1, value))
	}
	var list []byte
	for len(list) < bombSize {
		list = append(list, field(1, value)...)
		list = append(list, repeated(field(1, nil), len(value))...)
	}
	return field(3, field(1, append(field(1, []byte("k")), field(2, field(6, list))...)))
}

func emptyExtensions() []byte { return repeated(append(field(9, nil), field(10, nil)...), bombSize) }

func largeMetadata() []byte {
	return encoded(&corev3.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"k": structpb.NewStringValue(strings.Repeat("m", bombSize)),
	}}})
}

// bombNode sends a node that is small on the wire and large when decoded.
func bombNode(node []byte) func(context.Context, *adsStream) error {
	return func(ctx context.Context, s *adsStream) error {
		s.read()
		for ctx.Err() == nil {
			number := protowire.Number(1)
			if s.protocol == envoysim.SotW {
				number = 2
			}
			if err := s.ask(envoysim.Request{Type: resource.Cluster}, field(number, node)...); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
}

func bombNames(ctx context.Context, s *adsStream) error {
	s.read()
	for ctx.Err() == nil {
		if err := s.ask(envoysim.Request{Type: resource.Endpoint}, repeated(field(3, nil), bombSize)...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func bombUnknown(ctx context.Context, s *adsStream) error {
	s.read()
	locators := append(repeated(field(7, nil), bombSize/3), repeated(field(8, nil), bombSize/3)...)
	for ctx.Err() == nil {
		if err := s.ask(envoysim.Request{Type: resource.Endpoint}, append(locators, repeated(field(1000, nil), bombSize/3)...)...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// longNACKs sends NACKs with the longest allowed reasons.
func longNACKs(ctx context.Context, s *adsStream) error {
	s.read()
	reason := "Error adding/updating cluster(s) web: why, " + strings.Repeat("\x01\\", 100<<10)
	details := make([]*anypb.Any, 20_000)
	for i := range details {
		details[i] = &anypb.Any{}
	}
	for n := 0; ctx.Err() == nil; n++ {
		r := envoysim.Request{Type: resource.Types()[n%2*2], Nonce: strconv.Itoa(n/2 + 1), Refusal: reason, Names: []string{"*"}}
		number := protowire.Number(7)
		if s.protocol == envoysim.SotW {
			number = 6
		}
		var more []byte
		if n%2 == 1 {
			more = field(number, encoded(&status.Status{Details: details}))
		}
		if err := s.ask(r, more...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func spuriousNACKs(ctx context.Context, s *adsStream) error {
	s.read()
	for n := 0; ctx.Err() == nil; n++ {
		if err := s.ask(envoysim.Request{Type: resource.Types()[n%4], Nonce: "none", Refusal: "no"}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// askForEverything repeatedly subscribes to all clusters and listeners, and ACKs the responses.
func askForEverything(ctx context.Context, s *adsStream) error {
	s.read()
	for n := 0; ctx.Err() == nil; n++ {
		r := envoysim.Request{Type: resource.Types()[n%2*2], Names: []string{"*"}}
		if n%4 < 2 {
			r.Nonce = strconv.Itoa(n / 4)
		}
		if err := s.ask(r); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func comeAndGo(ctx context.Context, s *adsStream) error {
	s.read()
	names := longNames(1000, 60, s.number)
	for ctx.Err() == nil {
		for _, r := range []envoysim.Request{{Names: names}, {Remove: names}} {
			r.Type = resource.Endpoint
			if err := s.ask(r); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func openAgain(_ context.Context, s *adsStream) error {
	if err := s.ask(envoysim.Request{Type: resource.Cluster}); err != nil {
		return err
	}
	var first []byte
	return s.RecvMsg(&first) // then cancel
}

// neverRead requests large responses, and does not read them.
func neverRead(ctx context.Context, s *adsStream) error {
	for ctx.Err() == nil {
		for _, t := range resource.Types() {
			if err := s.ask(envoysim.Request{Type: t, Names: longNames(3000, 900, s.number)}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func encoded(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // impossible: the test's own messages
	}
	return data
}
