package mtls

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
)

// Aged reports whether the connection of a call has reached its maximum age, so that the server has asked the client to
// reconnect. It needs a server with these ServerOptions.
func Aged(ctx context.Context) bool {
	info, ok := infoFromContext(ctx)
	return ok && info.conn.aged.Load()
}

// watchedConn watches gRPC's writes, to detect that the connection has reached its age: gRPC notifies only the client.
type watchedConn struct {
	net.Conn
	frames frames // only used by the goroutine that writes
	aged   *atomic.Bool
}

// Write implements net.Conn.
func (w *watchedConn) Write(b []byte) (int, error) {
	if w.frames.aged(b) { // before the client gets the frame and ends its calls
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

// frames parses the HTTP/2 frames that a server writes. The zero value is ready to use.
type frames struct {
	head [agedFrame]byte // the needed part of the current frame
	have int             // bytes of head so far
	skip int             // bytes before the next frame
}

// aged parses the next bytes, which may end within a frame, and reports whether they complete the GOAWAY of an aged
// connection.
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

// length returns the number of bytes after the header.
func (f *frames) length() int { return int(binary.BigEndian.Uint32(f.head[:4]) >> 8) }

// need returns the number of needed bytes: the header, or the complete frame if it may be the GOAWAY.
func (f *frames) need() int {
	if f.have >= frameHeader && f.head[3] == frameGoAway && f.length() == goAwayFields+len(maxAge) {
		return agedFrame
	}
	return frameHeader
}
