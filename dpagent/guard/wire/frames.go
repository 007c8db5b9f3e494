package wire

import "encoding/binary"

// Preface is the beginning of an HTTP/2 client's connection (RFC 9113, 3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Settings is an empty SETTINGS frame, which a server of HTTP/2 may send first.
const Settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Frames finds the end of the only stream in the bytes that one side of an HTTP/2 connection sends after the preface.
// It only parses the headers of frames.
type Frames struct {
	header  [9]byte
	have    int // bytes of the header read so far
	left    int // remaining bytes of the frame
	ends    bool
	decoded bool // the last header block is complete
}

// Types and flags of frames (RFC 9113, 6).
const (
	frameData, frameHeaders, frameContinuation = 0, 1, 9

	flagEndStream, flagEndHeaders = 1, 4
)

// Next takes the next bytes. It returns true once the frame that ends the stream has arrived.
func (f *Frames) Next(b []byte) (ended bool) {
	for {
		n := copy(f.header[f.have:], b)
		b, f.have = b[n:], f.have+n
		if f.have < len(f.header) {
			return false
		}
		if n > 0 {
			f.begin()
		}
		n = min(f.left, len(b))
		b, f.left = b[n:], f.left-n
		if f.left > 0 {
			return false
		}
		f.have = 0
		if f.ends && f.decoded {
			return true
		}
	}
}

func (f *Frames) begin() {
	f.left = int(binary.BigEndian.Uint32(f.header[:]) >> 8)
	kind, flags := f.header[3], f.header[4]
	switch kind {
	case frameHeaders:
		f.decoded = flags&flagEndHeaders != 0
		f.ends = f.ends || flags&flagEndStream != 0
	case frameContinuation:
		f.decoded = flags&flagEndHeaders != 0
	case frameData:
		f.ends = f.ends || flags&flagEndStream != 0
	}
}

// Call parses the bytes that a gRPC client sends on a connection: the preface, and frames until the end of its first
// call.
type Call struct {
	have   int // bytes of the preface read so far
	frames Frames
}

// Progress is the result of the next bytes of a Call.
type Progress struct {
	// Wrong means that the bytes are not the preface. No other field is set then.
	Wrong bool
	// Greet means that the preface is complete: the client waits for Settings.
	Greet bool
	// Ended means that the call is complete.
	Ended bool
}

// Next takes the next bytes.
func (c *Call) Next(b []byte) (p Progress) {
	if c.have < len(Preface) {
		n := min(len(b), len(Preface)-c.have)
		if string(b[:n]) != Preface[c.have:c.have+n] {
			return Progress{Wrong: true}
		}
		c.have += n
		b = b[n:]
		p.Greet = c.have == len(Preface)
	}
	p.Ended = c.have == len(Preface) && c.frames.Next(b)
	return p
}
