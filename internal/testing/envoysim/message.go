package envoysim

import (
	"context"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Protocol is one of ADS's two protocols.
type Protocol string

// The protocols.
const (
	Delta Protocol = "delta"
	SotW  Protocol = "sotw"
)

// Protocols lists both protocols, for table tests.
func Protocols() []Protocol { return []Protocol{Delta, SotW} }

// Request is a request in either protocol.
type Request struct {
	Type resource.Type
	// Node is only sent if not empty.
	Node string
	// Records is sent together with Node, see Options.
	Records bool
	// Add and Remove change the subscriptions in the delta protocol.
	Add, Remove []string
	// Names are the whole subscription in the state of the world.
	Names []string
	// Versions are the initial_resource_versions of delta.
	Versions map[string]string
	Nonce    string
	// Version is the version_info of the state of the world.
	Version string
	// Refusal makes the request a NACK.
	Refusal string
}

// Delta encodes the request for delta.
func (r *Request) Delta() *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: r.node(), TypeUrl: string(r.Type), ResourceNamesSubscribe: r.Add, ResourceNamesUnsubscribe: r.Remove,
		InitialResourceVersions: r.Versions, ResponseNonce: r.Nonce, ErrorDetail: r.detail(),
	}
}

// SotW encodes the request for the state of the world.
func (r *Request) SotW() *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{
		Node: r.node(), TypeUrl: string(r.Type), ResourceNames: r.Names,
		VersionInfo: r.Version, ResponseNonce: r.Nonce, ErrorDetail: r.detail(),
	}
}

func (r *Request) detail() *statuspb.Status {
	if r.Refusal == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.Internal), Message: r.Refusal}
}

func (r *Request) node() *corev3.Node {
	if r.Node == "" {
		return nil
	}
	node := &corev3.Node{Id: r.Node}
	if r.Records {
		node.Metadata = &structpb.Struct{
			Fields: map[string]*structpb.Value{resource.NodeRecords: structpb.NewStringValue("true")}}
	}
	return node
}

// Response is a response in either protocol.
type Response struct {
	Type  resource.Type
	Nonce string
	// Put are the resources of the response.
	Put []*Resource
	// Gone are the removed_resources of delta.
	Gone []string
	// Version is the version_info of the state of the world.
	Version string
}

// Names returns the names of Put, sorted.
func (r *Response) Names() []string {
	var names []string
	for _, p := range r.Put {
		names = append(names, p.Key.Name)
	}
	slices.Sort(names)
	return names
}

// Delta decodes a delta response. Names and versions must match the resources.
func (d *Decoder) Delta(m *discoveryv3.DeltaDiscoveryResponse) (*Response, error) {
	r := &Response{Type: resource.Type(m.GetTypeUrl()), Nonce: m.GetNonce(), Gone: slices.Clone(m.GetRemovedResources())}
	for _, one := range m.GetResources() {
		p, err := d.Decode(one.GetResource(), one.GetName(), one.GetVersion())
		if err != nil {
			return nil, err
		}
		r.Put = append(r.Put, p)
	}
	return r, nil
}

// SotW decodes a state-of-the-world response.
func (d *Decoder) SotW(m *discoveryv3.DiscoveryResponse) (*Response, error) {
	r := &Response{Type: resource.Type(m.GetTypeUrl()), Nonce: m.GetNonce(), Version: m.GetVersionInfo()}
	for _, body := range m.GetResources() {
		p, err := d.Decode(body, "", "")
		if err != nil {
			return nil, err
		}
		r.Put = append(r.Put, p)
	}
	return r, nil
}

// Wire is a stream in either protocol. It only sends the given requests and receives responses.
type Wire interface {
	Send(r *Request) error
	Recv() (*Response, error)
}

// OpenWire opens a stream, which ends with ctx or with conn.
func OpenWire(ctx context.Context, p Protocol, conn grpc.ClientConnInterface) (Wire, error) {
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if p == SotW {
		stream, err := ads.StreamAggregatedResources(ctx)
		return sotwWire{stream, &Decoder{}}, err
	}
	stream, err := ads.DeltaAggregatedResources(ctx)
	return deltaWire{stream, &Decoder{}}, err
}

type deltaWire struct {
	stream  discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	decoder *Decoder
}

func (w deltaWire) Send(r *Request) error { return w.stream.Send(r.Delta()) }

func (w deltaWire) Recv() (*Response, error) {
	m, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	return w.decoder.Delta(m)
}

type sotwWire struct {
	stream  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	decoder *Decoder
}

func (w sotwWire) Send(r *Request) error { return w.stream.Send(r.SotW()) }

func (w sotwWire) Recv() (*Response, error) {
	m, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	return w.decoder.SotW(m)
}
