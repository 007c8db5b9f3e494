package xds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// metadataOf returns the settings in a node's metadata that affect its resources.
func (s *Server) metadataOf(node *corev3.Node) resource.Metadata {
	value, ok := node.GetMetadata().GetFields()[resource.NodeRecords]
	switch {
	case !ok || value.GetStringValue() == "false":
		return resource.Metadata{}
	case value.GetStringValue() == "true":
		return resource.Metadata{Records: true}
	}
	s.o.Logger.Warn("invalid plaintext-records metadata of node, records are disabled",
		append(s.o.Describe(shorten(node.GetId())), "key", resource.NodeRecords,
			"value", shorten(value.String()), "allowed", "true or false")...)
	return resource.Metadata{}
}

// endDiffering ends the other streams of a node with different metadata, since nothing is published for them any
// longer.
func (s *Server) endDiffering(id string, n *node, st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range n.streams {
		if other.says != st.says {
			other.end(status.Errorf(codes.Aborted, "node %q has opened a stream with other metadata", id))
		}
	}
}
