package xds

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// rawRequest is an undecoded request. A few encoded bytes can take much memory once decoded: empty strings and messages
// take two encoded bytes, nested values of a Struct four.
type rawRequest struct{ buffer mem.Buffer }

// receiveRequest receives the next request of a stream into m. It decodes only the fields that the server reads, after
// it has checked their size. The error is a gRPC status, or io.EOF.
func receiveRequest(stream grpc.ServerStream, f fields, m proto.Message) error {
	var raw rawRequest
	if err := stream.RecvMsg(&raw); err != nil {
		return err //nolint:wrapcheck // a status, or io.EOF
	}
	defer raw.buffer.Free()
	return f.decode(raw.buffer.ReadOnlyData(), m)
}

// fields are the numbers of the fields of a request that the server reads.
type fields struct {
	node, typeURL, nonce, errorDetail protowire.Number
	lists                             map[protowire.Number]list
}

// list is a repeated field: its name, and the limit of an element in bytes.
type list struct {
	name     string
	eachSize int
}

var (
	deltaFields = fields{node: 1, typeURL: 2, nonce: 6, errorDetail: 7, lists: map[protowire.Number]list{
		3: {"resource_names_subscribe", maxNameLength}, 4: {"resource_names_unsubscribe", maxNameLength},
		5: {"initial_resource_versions", maxVersionEntry},
	}}
	sotwFields = fields{node: 2, typeURL: 4, nonce: 5, errorDetail: 6,
		lists: map[protowire.Number]list{3: {"resource_names", maxNameLength}}}
)

// Numbers of the fields that the server reads of a Node (envoy.config.core.v3), of a Struct and its entries
// (google.protobuf), and of a Status (google.rpc).
const (
	nodeID        protowire.Number = 1
	nodeMetadata  protowire.Number = 3
	structEntries protowire.Number = 1
	entryKey      protowire.Number = 1
	statusMessage protowire.Number = 2
)

// decode decodes a request without the fields that the server does not read. The error is a gRPC status.
func (f fields) decode(encoded []byte, m proto.Message) error {
	reduced, err := f.reduce(encoded)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(reduced, m); err != nil {
		return status.Errorf(codes.InvalidArgument, "decode request: %v", err)
	}
	return nil
}

// reduce returns a request without the fields that the server does not read, or encoded itself if there are no such
// fields. It uses no more memory than encoded, however large the decoded request would be.
func (f fields) reduce(encoded []byte) ([]byte, error) {
	var node nodeReducer
	sizes, counts := map[protowire.Number]int{}, map[protowire.Number]int{}
	return reduce(encoded, func(n protowire.Number, value []byte) (keep, error) {
		sizes[n] += len(value)
		counts[n]++
		switch n {
		case f.node:
			return keep{within: node.field}, exceeds("node", sizes[n], maxNodeSize)
		case f.errorDetail:
			return keep{within: onlyMessage}, exceeds("error_detail", sizes[n], maxErrorDetail)
		case f.typeURL:
			return keep{whole: true}, exceeds("type_url", sizes[n], maxNameLength)
		case f.nonce:
			return keep{whole: true}, exceeds("response_nonce", sizes[n], maxNameLength)
		}
		l, ok := f.lists[n]
		if !ok {
			return keep{}, nil
		}
		if counts[n] > maxNames {
			return keep{}, status.Errorf(codes.ResourceExhausted, "%s: more than %d names: at most %d are allowed",
				l.name, maxNames, maxNames)
		}
		return keep{whole: true}, exceeds(l.name, len(value), l.eachSize)
	})
}

func exceeds(field string, size, allowed int) error {
	if size <= allowed {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "%s: %d bytes: at most %d are allowed", field, size, allowed)
}

// nodeKeys are the metadata entries of a node that the server reads.
var nodeKeys = [...]string{resource.NodeDrainTime, resource.NodeRecords}

// nodeReducer drops the fields of a node that the server does not read. It counts the bytes of the ID, and of the
// entries of each key in nodeKeys.
type nodeReducer struct {
	id      int
	entries [len(nodeKeys)]int
}

func (r *nodeReducer) field(n protowire.Number, value []byte) (keep, error) {
	switch n {
	case nodeID:
		r.id += len(value)
		return keep{whole: true}, exceeds("node.id", r.id, maxNameLength)
	case nodeMetadata:
		return keep{within: r.metadata}, nil
	}
	return keep{}, nil
}

func (r *nodeReducer) metadata(n protowire.Number, value []byte) (keep, error) {
	if n != structEntries {
		return keep{}, nil
	}
	key := keyOf(value)
	if key < 0 {
		return keep{}, nil
	}
	r.entries[key] += len(value)
	return keep{whole: true}, exceeds("node.metadata["+nodeKeys[key]+"]", r.entries[key], maxNameLength)
}

// keyOf returns the index of a metadata entry in nodeKeys, or -1.
func keyOf(entry []byte) int {
	key := -1
	_, _ = reduce(entry, func(n protowire.Number, value []byte) (keep, error) {
		if n == entryKey {
			key = slices.IndexFunc(nodeKeys[:], func(k string) bool { return k == string(value) })
		}
		return keep{}, nil
	})
	return key
}

func onlyMessage(n protowire.Number, _ []byte) (keep, error) {
	return keep{whole: n == statusMessage}, nil
}

// keep selects what to keep of a field: all of it, a message reduced by within, or nothing.
type keep struct {
	whole  bool
	within func(protowire.Number, []byte) (keep, error)
}

// reduce returns a message without the parts for which of returns an empty keep. of is called for fields that have a
// length; other fields are dropped.
func reduce(message []byte, of func(protowire.Number, []byte) (keep, error)) ([]byte, error) {
	var reduced []byte
	at, copied := 0, false // nothing is copied until something is left out
	for at < len(message) {
		number, kind, n := protowire.ConsumeTag(message[at:])
		if n < 0 {
			return nil, malformed(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[at+n:])
		if size < 0 {
			return nil, malformed(size)
		}
		field := message[at : at+n+size]
		part, err := reduceField(field, n, number, kind, of)
		if err != nil {
			return nil, err
		}
		if len(part) < len(field) && !copied {
			reduced, copied = append(make([]byte, 0, len(message)-len(field)+len(part)), message[:at]...), true
		}
		if copied {
			reduced = append(reduced, part...)
		}
		at += len(field)
	}
	if copied {
		return reduced, nil
	}
	return message, nil
}

// reduceField returns the kept part of a field, whose tag has tag bytes.
func reduceField(
	field []byte, tag int, number protowire.Number, kind protowire.Type, of func(protowire.Number, []byte) (keep, error),
) ([]byte, error) {
	if kind != protowire.BytesType {
		return nil, nil
	}
	value, _ := protowire.ConsumeBytes(field[tag:])
	k, err := of(number, value)
	if err != nil || k.whole {
		return field, err
	}
	if k.within == nil {
		return nil, nil
	}
	inner, err := reduce(value, k.within)
	if err != nil || len(inner) == len(value) {
		return field, err
	}
	return protowire.AppendBytes(append([]byte(nil), field[:tag]...), inner), nil
}

func malformed(n int) error {
	return status.Errorf(codes.InvalidArgument, "decode request: %v", protowire.ParseError(n))
}
