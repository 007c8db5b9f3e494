// Package wire is what a guard and its worker say to each other: messages of at most MaxMessage bytes over a Unix socket
// that keeps their bounds. It stands on next to nothing, as the guard does.
package wire

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"time"
)

const (
	// Env is the variable that tells a process its part: unset in the one that is started from outside.
	Env = "SONDE_GUARD"
	// FD is the worker's end of the socket.
	FD = 3

	// HeaderSize is that of what each message begins with.
	HeaderSize = 8
	// MaxPayload is what fits into one message after its header.
	MaxPayload = 16 << 10
	// MaxMessage is the size of the longest.
	MaxMessage = HeaderSize + MaxPayload
	// MaxID is the longest id of a probe.
	MaxID = 1 << 10
)

// Kind of a message.
type Kind byte

// What is said, and by whom.
const (
	Request Kind = iota + 1 // guard: bytes of a request, with More if others follow
	Gone                    // guard: whoever asked has gone, or has an answer already
	Table                   // worker: some probes of the table
	Listen                  // worker: I can answer; with the socket, if it was opened by this worker
	Begun                   // worker: the hook is about to be called
	Answer                  // worker: bytes for whoever asked
	End                     // worker: the last bytes, if any
)

// Flags of a Request.
const (
	More byte = 1 << iota // more bytes of the request follow
	Hook                  // a lifecycle hook: the worker says Begun before it acts
)

// Header is the beginning of each message.
type Header struct {
	Kind  Kind
	Flags byte
	// ID of the connection that the message is about.
	ID uint32
}

// Append appends the header to b.
func (h Header) Append(b []byte) []byte {
	b = append(b, byte(h.Kind), h.Flags, 0, 0)
	return binary.LittleEndian.AppendUint32(b, h.ID)
}

// Parse splits a message.
func Parse(message []byte) (h Header, payload []byte, ok bool) {
	if len(message) < HeaderSize {
		return Header{}, nil, false
	}
	h = Header{Kind: Kind(message[0]), Flags: message[1], ID: binary.LittleEndian.Uint32(message[4:])}
	return h, message[HeaderSize:], true
}

// Probe is what the guard has to know of a probe or hook.
type Probe struct {
	// ID that requests carry.
	ID string
	// Timeout is the user's, in whole milliseconds.
	Timeout time.Duration
	// Hook is true for a lifecycle hook. It has no timeout.
	Hook bool
}

const probeSize = 7

// AppendProbe appends p to the payload of a Table.
func AppendProbe(b []byte, p Probe) []byte {
	var hook byte
	if p.Hook {
		hook = 1
	}
	b = append(b, hook)
	b = binary.LittleEndian.AppendUint32(b, uint32(min(p.Timeout.Milliseconds(), 1<<32-1)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.ID)))
	return append(b, p.ID...)
}

// ParseProbe takes the first probe of a Table's payload.
func ParseProbe(b []byte) (p Probe, rest []byte, err error) {
	if len(b) < probeSize {
		return Probe{}, nil, errors.New("parse table: it is cut")
	}
	length := int(binary.LittleEndian.Uint16(b[5:]))
	if length > len(b)-probeSize {
		return Probe{}, nil, errors.New("parse table: an id is cut")
	}
	p.Hook = b[0] != 0
	p.Timeout = time.Duration(binary.LittleEndian.Uint32(b[1:])) * time.Millisecond
	p.ID = string(b[probeSize : probeSize+length])
	return p, b[probeSize+length:], nil
}

// Role is the part of a process, as the variable Env tells it.
type Role struct {
	// Worker is true in a worker.
	Worker bool
	// Starts counts the workers that were started, this one included.
	Starts int
	// Address that the guard listens on, "" if it does not yet.
	Address string
}

const workerRole = "worker"

// String is the variable's value.
func (p Role) String() string {
	return workerRole + " " + strconv.Itoa(p.Starts) + " " + p.Address
}

// ParseRole reads the variable's value.
func ParseRole(value string) Role {
	rest, ok := strings.CutPrefix(value, workerRole+" ")
	if !ok {
		return Role{}
	}
	starts, address, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(starts)
	return Role{Worker: err == nil, Starts: n, Address: address}
}
