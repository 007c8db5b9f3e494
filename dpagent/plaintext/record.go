package plaintext

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// record is one record of an access log, about a connection or request.
type record struct {
	source netip.Addr
	port   uint32
	// goesOn means that the record is periodic, for an ongoing connection.
	goesOn     bool
	connection uint64
	// received is the number of bytes received on the connection.
	received uint64
	kubelet  bool // the request has a kubelet's user agent
}

// batch is a message of an access log.
type batch struct {
	log     string
	records []record
}

// Field numbers of OpenTelemetry's messages (opentelemetry/proto/collector/logs/v1/logs_service.proto and its imports).
// Generated types would take some hundred KiB of each agent, and memory for each record.
const (
	requestResourceLogs   = 1
	resourceLogsResource  = 1
	resourceLogsScopeLogs = 2
	resourceAttributes    = 1
	scopeLogsRecords      = 2
	recordAttributes      = 6
	attributeKey          = 1
	attributeValue        = 2
	valueText             = 1
)

// each calls take for each bytes field of a message.
func each(message []byte, take func(number protowire.Number, data []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		data, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := take(number, data); err != nil {
			return err
		}
	}
	return nil
}

// only returns a function to pass to each, which calls take only for the fields with one number.
func only(number protowire.Number, take func(data []byte) error) func(protowire.Number, []byte) error {
	return func(n protowire.Number, data []byte) error {
		if n != number {
			return nil
		}
		return take(data)
	}
}

// decode reads an ExportLogsServiceRequest of one access log. It keeps no reference to data.
func (b *batch) decode(data []byte) error {
	return each(data, only(requestResourceLogs, func(data []byte) error {
		return each(data, func(number protowire.Number, data []byte) error {
			switch number {
			case resourceLogsResource:
				return each(data, only(resourceAttributes, func(data []byte) error {
					return keyValue(data, func(key, value []byte) error {
						if string(key) == mesh.RecordsLog {
							b.log = string(value)
						}
						return nil
					})
				}))
			case resourceLogsScopeLogs:
				return each(data, only(scopeLogsRecords, b.record))
			}
			return nil
		})
	}))
}

func (b *batch) record(data []byte) error {
	var r record
	if err := each(data, only(recordAttributes, func(data []byte) error { return keyValue(data, r.set) })); err != nil {
		return err
	}
	if !r.source.IsValid() {
		return errors.New("a record has no source")
	}
	b.records = append(b.records, r)
	return nil
}

// keyValue calls take for a KeyValue whose value is a string.
func keyValue(data []byte, take func(key, value []byte) error) error {
	var key, value []byte
	err := each(data, func(number protowire.Number, data []byte) error {
		switch number {
		case attributeKey:
			key = data
		case attributeValue:
			return each(data, only(valueText, func(data []byte) error {
				value = data
				return nil
			}))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return take(key, value)
}

// set sets the field of an attribute. Envoy writes "-" for unknown values.
func (r *record) set(key, value []byte) (err error) {
	number := func(bits int) (n uint64) {
		if string(value) != "-" {
			n, err = strconv.ParseUint(string(value), 10, bits)
		}
		return n
	}
	switch string(key) {
	case mesh.RecordType:
		r.goesOn = string(value) == "TcpPeriodic" || string(value) == "DownstreamPeriodic"
	case mesh.RecordSource:
		r.source, err = netip.ParseAddr(string(value))
		r.source = r.source.Unmap().WithZone("")
	case mesh.RecordPort:
		r.port = uint32(number(16))
	case mesh.RecordReceived:
		r.received = number(64)
	case mesh.RecordConnection:
		r.connection = number(64)
	case mesh.RecordAgent:
		r.kubelet = string(value) == mesh.KubeletAgent
	}
	if err != nil {
		return fmt.Errorf("%s of a record: %.100q: %w", key, value, err)
	}
	return nil
}
