package mtls

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
)

// Aged reports whether the connection of a call has reached its age, so that the server has asked the client to open another one. It is for a
// server with these ServerOptions.
func Aged(ctx context.Context) bool {
	info, ok := infoFromContext(ctx)
	return ok && info.conn.aged.Load()
}

// watchedConn is what gRPC writes to. It finds out that the connection has reached its age: gRPC tells the client alone.
type watchedConn struct {
	net.Conn
	frames frames // for the goroutine that writes
	aged   *atomic.Bool
}

// Write implements net.Conn.
func (w *watchedConn) Write(b []byte) (int, error) {
	if w.frames.aged(b) { // before the client knows, which may end its calls at once
		w.aged.Store(true)
	}
	return w.Conn.Write(b)
}

// maxAge is the debug data of gRPC's GOAWAY on a connection that has reached its age.
// Source: google.golang.org/grpc/internal/transport, http2Server.keepalive.
const maxAge = "max_age"

// Parts of a frame. Source: RFC 9113, sections 4.1 and 6.8.
const (
	frameHeader  = 9
	frameGoAway  = 7
	goAwayFields = 8 // before the debug data
	agedFrame    = frameHeader + goAwayFields + len(maxAge)
)

// frames follows the HTTP/2 frames that a server writes. The zero value is before the first.
type frames struct {
	head [agedFrame]byte // what is needed of the frame that has begun
	have int             // bytes of head that are there
	skip int             // bytes before the next frame
}

// aged takes the next bytes, whatever they end in, and returns whether they complete the GOAWAY of a connection that has reached its age.
func (f *frames) aged(b []byte) bool {
	found := false
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			f.skip, b = f.skip-n, b[n:]
			continue
		}
		n := copy(f.head[f.have:f.need()], b)
		f.have, b = f.have+n, b[n:]
		if f.have < f.need() {
			continue
		}
		found = found || f.have == agedFrame && string(f.head[frameHeader+goAwayFields:]) == maxAge
		f.skip, f.have = f.length()-(f.have-frameHeader), 0
	}
	return found
}

// length returns how many bytes follow the header.
func (f *frames) length() int { return int(binary.BigEndian.Uint32(f.head[:4]) >> 8) }

// need returns how many bytes of the frame are needed: as far as its header is known, that, and all of a frame that may be the one.
func (f *frames) need() int {
	if f.have >= frameHeader && f.head[3] == frameGoAway && f.length() == goAwayFields+len(maxAge) {
		return agedFrame
	}
	return frameHeader
}
