// Package wire is the protocol between the guard and its worker: messages of at most MaxMessage bytes over a Unix
// socket that preserves their boundaries. Like package guard it imports very little.
package wire

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"time"
)

const (
	// Env is the environment variable with the role of a process: Guard, Keep, or a worker's Role. It is unset in a
	// process that another program has started.
	Env = "SONDE_GUARD"
	// Guard is the value of Env in a guard.
	Guard = "guard"
	// Keep is the value of Env in a process that becomes a kept program (see Kept), followed by the PID of the guard.
	Keep = "keep "
	// FD is the file descriptor of the worker's end of the socket.
	FD = 3

	// HeaderSize is the size of the header of each message, in bytes.
	HeaderSize = 8
	// MaxPayload is the largest payload of a message, in bytes.
	MaxPayload = 16 << 10
	// MaxMessage is the size of the largest message, in bytes.
	MaxMessage = HeaderSize + MaxPayload
	// MaxID is the longest ID of a probe, in bytes.
	MaxID = 1 << 10
	// MaxPorts is the maximum number of a guard's ports.
	MaxPorts = 1 << 12
)

// Kind of a message.
type Kind byte

// Kinds of messages, and who sends them.
const (
	Request   Kind = iota + 1 // guard: bytes of a request; More is set if more follow
	Gone                      // guard: the client has disconnected, or already has its answer
	Table                     // worker: probes of the table
	Listen                    // the first worker: the next port, with its listening socket
	Ready                     // worker: ready to answer
	Begun                     // worker: about to call the hook
	Answer                    // worker: bytes of the answer
	End                       // worker: the last bytes of the answer, if any
	Kept                      // worker: the process with this PID is now the guard's child and outlives the worker
	Unlimited                 // worker: only the caller limits the time of the request
	// Hold is sent by a worker: the guard answers liveness probes that no worker answers with a warning if ID is 1, and
	// with Errored if ID is 0.
	Hold
)

// Flags of a Request, and of Listen.
const (
	More byte = 1 << iota // more bytes of the request follow
	Hook                  // the request is for a lifecycle hook: the worker sends Begun before it calls the hook
	GRPC                  // the port is for a gRPC probe
)

// Header is the beginning of each message.
type Header struct {
	Kind  Kind
	Flags byte
	// Port of the connection, counting from 0. For a Request.
	Port uint16
	// ID of the connection that the message is about.
	ID uint32
}

// Append appends the header to b.
func (h Header) Append(b []byte) []byte {
	b = append(b, byte(h.Kind), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, h.Port)
	return binary.LittleEndian.AppendUint32(b, h.ID)
}

// Parse splits a message into header and payload.
func Parse(message []byte) (h Header, payload []byte, ok bool) {
	if len(message) < HeaderSize {
		return Header{}, nil, false
	}
	h = Header{Kind: Kind(message[0]), Flags: message[1], Port: binary.LittleEndian.Uint16(message[2:]),
		ID: binary.LittleEndian.Uint32(message[4:])}
	return h, message[HeaderSize:], true
}

// Limit is what the guard needs to answer a probe or hook if no worker does.
type Limit struct {
	// ID in the header Sonde-Probe of requests, "" if they have none.
	ID string
	// Timeout is the user's timeout, in whole milliseconds. Half a second later the guard answers Errored.
	Timeout time.Duration
	// Hook is true for a lifecycle hook: it has no timeout, and is never called twice.
	Hook bool
	// Liveness is true for a liveness probe. The guard answers it with a warning while Hold is set.
	Liveness bool
}

// The response to a held liveness probe when it passes with a warning: a redirect to this host, which the kubelet does
// not follow, and a body with this beginning.
const (
	HeldLocation = "http://held.sonde.invalid/"
	HeldText     = "HELD by Sonde: "
)

// Port is a port that the guard listens on.
type Port struct {
	// Address, host:port.
	Address string
	// MaxHead is the longest request without a body that the worker accepts, in bytes.
	MaxHead int
	// GRPC means that the port is for one gRPC probe, with the timeout Timeout, in whole milliseconds.
	GRPC    bool
	Timeout time.Duration
}

const portSize = 8

// AppendPort appends the payload of Listen.
func AppendPort(b []byte, p Port) []byte {
	h := Header{Kind: Listen}
	if p.GRPC {
		h.Flags = GRPC
	}
	b = binary.LittleEndian.AppendUint32(h.Append(b), uint32(p.MaxHead))
	b = binary.LittleEndian.AppendUint32(b, milliseconds(p.Timeout))
	return append(b, p.Address...)
}

// ParsePort parses the payload of Listen.
func ParsePort(h Header, b []byte) (Port, error) {
	if len(b) < portSize {
		return Port{}, errors.New("parse port: truncated")
	}
	return Port{
		MaxHead: int(binary.LittleEndian.Uint32(b)),
		Timeout: time.Duration(binary.LittleEndian.Uint32(b[4:])) * time.Millisecond,
		GRPC:    h.Flags&GRPC != 0, Address: string(b[portSize:]),
	}, nil
}

func milliseconds(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), 1<<32-1)) }

const limitSize = 7

// Flags of a Limit.
const (
	limitHook byte = 1 << iota
	limitLiveness
)

// AppendLimit appends l to the payload of a Table.
func AppendLimit(b []byte, l Limit) []byte {
	var kind byte
	if l.Hook {
		kind |= limitHook
	}
	if l.Liveness {
		kind |= limitLiveness
	}
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint32(b, milliseconds(l.Timeout))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(l.ID)))
	return append(b, l.ID...)
}

// ParseLimit parses the first limit of a Table's payload, and returns the rest.
func ParseLimit(b []byte) (l Limit, rest []byte, err error) {
	if len(b) < limitSize {
		return Limit{}, nil, errors.New("parse table: truncated")
	}
	length := int(binary.LittleEndian.Uint16(b[5:]))
	if length > len(b)-limitSize {
		return Limit{}, nil, errors.New("parse table: truncated id")
	}
	l.Hook, l.Liveness = b[0]&limitHook != 0, b[0]&limitLiveness != 0
	l.Timeout = time.Duration(binary.LittleEndian.Uint32(b[1:])) * time.Millisecond
	l.ID = string(b[limitSize : limitSize+length])
	return l, b[limitSize+length:], nil
}

// Role is the role of a worker, a value of the variable Env.
type Role struct {
	// Worker is true in a worker.
	Worker bool
	// Starts is the number of workers started so far, including this one.
	Starts int
	// Addresses on which the guard listens, empty if it does not listen yet.
	Addresses []string
}

const workerRole = "worker"

// String returns the value of the variable.
func (r Role) String() string {
	return strings.Join(append([]string{workerRole, strconv.Itoa(r.Starts)}, r.Addresses...), " ")
}

// ParseRole parses the value of the variable.
func ParseRole(value string) Role {
	words := strings.Fields(value)
	const first = 2 // addresses follow the role and the number
	if len(words) < first || words[0] != workerRole {
		return Role{}
	}
	n, err := strconv.Atoi(words[1])
	return Role{Worker: err == nil, Starts: n, Addresses: words[first:]}
}
