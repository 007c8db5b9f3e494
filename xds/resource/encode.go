package resource

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// typePrefix precedes the full name of a message in Envoy's type URLs.
const typePrefix = "type.googleapis.com/"

// versionBytes is how many bytes of the hash are used as version: only versions of the same name are compared.
const versionBytes = 8

// marshal encodes every message. It is deterministic, unlike anypb.New and proto.Marshal, which may order maps
// differently each time: equal views must yield equal bytes.
var marshal = proto.MarshalOptions{Deterministic: true}

// Any packs m, always into the same bytes. Use it instead of anypb.New for messages within messages. It panics if m
// cannot be encoded: only a string that is not UTF-8 can cause this, and no valid object contains one.
func Any(m proto.Message) *anypb.Any {
	body, err := marshal.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encode %s: %v", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return &anypb.Any{TypeUrl: typeOf(m), Value: body}
}

// Encode returns m as a resource with this name. It does not keep m. It returns an error if Sonde does not serve the
// type of m, if m has another name, or if m is invalid: Envoy would refuse such a resource together with the whole
// response.
func Encode(name string, m proto.Message) (*Resource, error) {
	i := Type(typeOf(m)).index()
	if i < 0 {
		return nil, fmt.Errorf("encode resource %q: type %s is not served", name, typeOf(m))
	}
	t := Types()[i] // a constant: all resources share its bytes
	if own := ownName(m); own != name || name == "" {
		return nil, fmt.Errorf("encode %s %q: the message has the name %q", t.Short(), name, own)
	}
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return nil, fmt.Errorf("validate %s %q: %w", t.Short(), name, err)
		}
	}
	body, err := marshal.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s %q: %w", t.Short(), name, err)
	}
	sum := sha256.Sum256(body)
	r := New(t, name, hex.EncodeToString(sum[:versionBytes]), body)
	r.Endpoints = endpointsOf(m)
	r.Inbound, r.Outbound = boundBy(m)
	return r, nil
}

// New returns a resource from a message that is already encoded and known to be valid.
func New(t Type, name, version string, body []byte) *Resource {
	entry, value := entryOf(t, name, version, body)
	return &Resource{Type: t, Name: name, Version: version, Body: &anypb.Any{TypeUrl: string(t), Value: value},
		Entry: entry}
}

// Numbers of the fields of discovery.v3's DeltaDiscoveryResponse and Resource, and of Any.
const (
	responseResources = 2

	resourceVersion = 1
	resourceBody    = 2
	resourceName    = 3

	anyTypeURL = 1
	anyValue   = 2
)

// entryOf encodes a resource as a field of a response. value is the part of entry that contains body, so that only one
// copy exists.
func entryOf(t Type, name, version string, body []byte) (entry, value []byte) {
	size := func(n int) int { return 1 + protowire.SizeBytes(n) } // the tags take one byte each
	wrapped := size(len(t)) + size(len(body))
	whole := size(len(version)) + size(wrapped) + size(len(name))
	text := func(field protowire.Number, s string) {
		entry = protowire.AppendString(protowire.AppendTag(entry, field, protowire.BytesType), s)
	}
	open := func(field protowire.Number, length int) {
		entry = protowire.AppendVarint(protowire.AppendTag(entry, field, protowire.BytesType), uint64(length))
	}
	entry = make([]byte, 0, size(whole))
	open(responseResources, whole)
	text(resourceVersion, version)
	text(resourceName, name)
	open(resourceBody, wrapped)
	text(anyTypeURL, string(t))
	open(anyValue, len(body))
	entry = append(entry, body...)
	value = entry[len(entry)-len(body):]
	return entry, value
}

func endpointsOf(m proto.Message) string {
	c, ok := m.(*clusterv3.Cluster)
	if !ok || c.GetType() != clusterv3.Cluster_EDS {
		return ""
	}
	return cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
}

// boundBy returns the address that a listener binds, by the direction of its traffic. An outbound listener that binds
// none, since other listeners hand connections over to it, has no address here.
func boundBy(m proto.Message) (inbound, outbound netip.AddrPort) {
	l, ok := m.(*listenerv3.Listener)
	if !ok {
		return inbound, outbound
	}
	socket := l.GetAddress().GetSocketAddress()
	address, err := netip.ParseAddr(socket.GetAddress())
	if err != nil { // a name or a pipe, which no endpoint can have
		return inbound, outbound
	}
	at := netip.AddrPortFrom(address.Unmap(), uint16(socket.GetPortValue()))
	switch binds := l.GetBindToPort(); {
	case l.GetTrafficDirection() != corev3.TrafficDirection_OUTBOUND:
		inbound = at
	case binds == nil || binds.GetValue():
		outbound = at
	}
	return inbound, outbound
}

func typeOf(m proto.Message) string {
	return typePrefix + string(m.ProtoReflect().Descriptor().FullName())
}

// ownName returns the field that Envoy uses as the name: cluster_name of a ClusterLoadAssignment, otherwise name.
func ownName(m proto.Message) string {
	switch m := m.(type) {
	case interface{ GetClusterName() string }:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}
