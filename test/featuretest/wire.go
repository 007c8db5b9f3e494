package featuretest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

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

// Response is a response in either protocol.
type Response struct {
	Type  resource.Type
	Nonce string
	// Put are its resources. In the state of the world a version is the hash of the body, like Sonde's versions.
	Put []Item
	// Gone are the removed_resources of delta.
	Gone []string
	// Version is the version_info of the state of the world.
	Version string
}

// Item is one resource of a response.
type Item struct {
	Name, Version string
	Body          *anypb.Any
}

// Names returns the names of Put, sorted.
func (r *Response) Names() []string {
	var names []string
	for _, i := range r.Put {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

// Request is a request in either protocol.
type Request struct {
	Type resource.Type
	// Node is left out if empty.
	Node string
	// Add and Remove change the subscriptions of delta. For the state of the world, a Client makes Names of them.
	Add, Remove []string
	// Names are the whole subscription in the state of the world.
	Names []string
	// Versions are the initial_resource_versions of delta.
	Versions map[string]string
	Nonce    string
	// Version is the version_info of the state of the world.
	Version string
	// Refusal makes it a NACK.
	Refusal string
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
	return &corev3.Node{Id: r.Node}
}

// Wire is a stream in either protocol. It sends requests and receives responses, and does nothing by itself.
type Wire interface {
	Send(r *Request) error
	Recv() (*Response, error)
}

// OpenWire opens a stream, which ends with ctx or with conn.
func OpenWire(ctx context.Context, p Protocol, conn grpc.ClientConnInterface) (Wire, error) {
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if p == SotW {
		stream, err := ads.StreamAggregatedResources(ctx)
		return sotwWire{stream}, err
	}
	stream, err := ads.DeltaAggregatedResources(ctx)
	return deltaWire{stream}, err
}

type deltaWire struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func (w deltaWire) Send(r *Request) error {
	return w.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: r.node(), TypeUrl: string(r.Type), ResourceNamesSubscribe: r.Add, ResourceNamesUnsubscribe: r.Remove,
		InitialResourceVersions: r.Versions, ResponseNonce: r.Nonce, ErrorDetail: r.detail(),
	})
}

func (w deltaWire) Recv() (*Response, error) {
	m, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	r := &Response{Type: resource.Type(m.GetTypeUrl()), Nonce: m.GetNonce(), Gone: m.GetRemovedResources()}
	for _, one := range m.GetResources() {
		r.Put = append(r.Put, Item{Name: one.GetName(), Version: one.GetVersion(), Body: one.GetResource()})
	}
	return r, nil
}

type sotwWire struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

func (w sotwWire) Send(r *Request) error {
	return w.stream.Send(&discoveryv3.DiscoveryRequest{
		Node: r.node(), TypeUrl: string(r.Type), ResourceNames: r.Names,
		VersionInfo: r.Version, ResponseNonce: r.Nonce, ErrorDetail: r.detail(),
	})
}

func (w sotwWire) Recv() (*Response, error) {
	m, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	r := &Response{Type: resource.Type(m.GetTypeUrl()), Nonce: m.GetNonce(), Version: m.GetVersionInfo()}
	for _, body := range m.GetResources() {
		sum := sha256.Sum256(body.GetValue())
		name, err := nameOf(body)
		if err != nil {
			return nil, err
		}
		r.Put = append(r.Put, Item{Name: name, Version: hex.EncodeToString(sum[:8]), Body: body})
	}
	return r, nil
}

// nameOf returns the name within a resource: the state of the world has no other.
func nameOf(body *anypb.Any) (string, error) {
	m, err := body.UnmarshalNew()
	if err != nil {
		return "", err
	}
	if cla, ok := m.(interface{ GetClusterName() string }); ok {
		return cla.GetClusterName(), nil
	}
	return m.(interface{ GetName() string }).GetName(), nil
}
