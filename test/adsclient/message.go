package adsclient

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of DeltaDiscoveryRequest, of Node and Status in it, and of a map entry.
const (
	requestNode        = 1
	requestType        = 2
	requestSubscribe   = 3
	requestUnsubscribe = 4
	requestVersions    = 5
	requestNonce       = 6
	requestDetail      = 7
	nodeID             = 1
	statusCode         = 1
	statusMessage      = 2
	entryKey           = 1
	entryValue         = 2
)

// Field numbers of DeltaDiscoveryResponse, and of Resource and Any in it.
const (
	responseResource = 2
	responseType     = 4
	responseNonce    = 5
	responseRemoved  = 6
	resourceVersion  = 1
	resourceBody     = 2
	resourceName     = 3
	anyValue         = 2
)

// request is a DeltaDiscoveryRequest.
type request struct {
	node, kind             string
	subscribe, unsubscribe []string
	versions               map[string]string
	nonce                  []byte
	refusal                string
}

func (r *request) encode(b []byte) []byte {
	text := func(field protowire.Number, s string) {
		b = protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	if r.node != "" {
		node := protowire.AppendString(protowire.AppendTag(nil, nodeID, protowire.BytesType), r.node)
		b = protowire.AppendBytes(protowire.AppendTag(b, requestNode, protowire.BytesType), node)
	}
	text(requestType, r.kind)
	for _, name := range r.subscribe {
		text(requestSubscribe, name)
	}
	for _, name := range r.unsubscribe {
		text(requestUnsubscribe, name)
	}
	for name, version := range r.versions {
		size := protowire.SizeTag(entryKey) + protowire.SizeBytes(len(name)) + protowire.SizeTag(entryValue) +
			protowire.SizeBytes(len(version))
		b = protowire.AppendVarint(protowire.AppendTag(b, requestVersions, protowire.BytesType), uint64(size))
		text(entryKey, name)
		text(entryValue, version)
	}
	if len(r.nonce) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, requestNonce, protowire.BytesType), r.nonce)
	}
	if r.refusal != "" {
		detail := protowire.AppendVarint(protowire.AppendTag(nil, statusCode, protowire.VarintType),
			uint64(codes.InvalidArgument))
		detail = protowire.AppendString(protowire.AppendTag(detail, statusMessage, protowire.BytesType), r.refusal)
		b = protowire.AppendBytes(protowire.AppendTag(b, requestDetail, protowire.BytesType), detail)
	}
	return b
}

// response is a DeltaDiscoveryResponse whose resources are not decoded. Its fields point into the message.
type response struct {
	message     []byte
	kind, nonce []byte
}

var errWire = errors.New("decode response: not protobuf")

// fields calls yield for each length-delimited field in b.
func fields(b []byte, yield func(field protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errWire
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return errWire
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errWire
		}
		if err := yield(field, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func readResponse(message []byte) (response, error) {
	r := response{message: message}
	err := fields(message, func(field protowire.Number, value []byte) error {
		switch field {
		case responseType:
			r.kind = value
		case responseNonce:
			r.nonce = value
		}
		return nil
	})
	if err == nil && len(r.nonce) == 0 {
		err = fmt.Errorf("decode response of type %q: no nonce", r.kind)
	}
	return r, err
}

// each calls put for each resource, and remove for each name that is removed.
func (r *response) each(put func(name, version, body []byte) error, remove func(name []byte) error) error {
	return fields(r.message, func(field protowire.Number, value []byte) error {
		switch field {
		case responseRemoved:
			return remove(value)
		case responseResource:
			name, version, body, err := readResource(value)
			if err != nil {
				return err
			}
			return put(name, version, body)
		}
		return nil
	})
}

// readResource returns the name and version of a Resource, and its body without the Any.
func readResource(b []byte) (name, version, body []byte, err error) {
	err = fields(b, func(field protowire.Number, value []byte) error {
		switch field {
		case resourceName:
			name = value
		case resourceVersion:
			version = value
		case resourceBody:
			return fields(value, func(field protowire.Number, value []byte) error {
				if field == anyValue {
					body = value
				}
				return nil
			})
		}
		return nil
	})
	return name, version, body, err
}
