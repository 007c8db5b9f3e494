package wire_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// frame returns a frame on stream 1.
func frame(kind, flags byte, payload string) string {
	return string([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 1}) + payload
}

// Kinds and flags of frames.
const (
	data, headers, priority, settings, ping, continuation = 0, 1, 2, 4, 6, 9

	endStream, endHeaders = 1, 4
)

func TestCall(t *testing.T) {
	const begin = wire.Preface + wire.Settings
	ack := frame(settings, 1, "")
	tests := map[string]struct {
		text        string
		wrong, ends bool
	}{
		"nothing":                {"", false, false},
		"half the preface":       {wire.Preface[:10], false, false},
		"the preface":            {begin, false, false},
		"the kubelet's":          {begin + ack + frame(headers, endHeaders, "h") + frame(data, endStream, "\x00\x00\x00\x00\x00"), false, true},
		"bytes behind it":        {begin + frame(headers, endHeaders|endStream, "h") + "more", false, true},
		"no message":             {begin + frame(headers, endHeaders, "h"), false, false},
		"half a message":         {begin + frame(headers, endHeaders, "h") + frame(data, endStream, "12345")[:12], false, false},
		"an empty frame":         {begin + frame(headers, endHeaders, "h") + frame(data, endStream, ""), false, true},
		"headers that go on":     {begin + frame(headers, endStream, "h"), false, false},
		"and end":                {begin + frame(headers, endStream, "h") + frame(continuation, 0, "h") + frame(continuation, endHeaders, "h"), false, true},
		"trailers":               {begin + frame(headers, endHeaders, "h") + frame(data, 0, "d") + frame(headers, endHeaders|endStream, "t"), false, true},
		"flags of other frames":  {begin + frame(ping, endStream|endHeaders, "12345678") + frame(priority, endStream|endHeaders, "12345"), false, false},
		"HTTP/1":                 {"GET / HTTP/1.1\r\n\r\n", true, false},
		"another preface":        {"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", true, false},
		"a frame of 16 MiB":      {begin + "\xff\xff\xff\x00\x01\x00\x00\x00\x01" + strings.Repeat("x", 1<<10), false, false},
		"a message before all":   {begin + frame(data, endStream, ""), false, false},
		"TLS":                    {"\x16\x03\x01", true, false},
		"as many frames as fit":  {begin + strings.Repeat(frame(settings, 0, ""), 1000), false, false},
		"SETTINGS between those": {begin + frame(headers, endHeaders, "h") + ack + frame(data, endStream, ""), false, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(tc.text)+1; size *= 3 { // the text in pieces of any size
				wrong, greets, ends := follow(tc.text, size)
				if wrong != tc.wrong || ends != tc.ends || greets > 1 || (greets == 1) != (len(tc.text) >= len(wire.Preface) && !tc.wrong) {
					t.Errorf("in pieces of %d bytes: wrong %t, ends %t, greeted %d times, want %t, %t", size, wrong, ends, greets, tc.wrong, tc.ends)
				}
			}
		})
	}
}

// follow passes a text to a Call in pieces.
func follow(text string, size int) (wrong bool, greets int, ends bool) {
	var c wire.Call
	for len(text) > 0 {
		n := min(size, len(text))
		p := c.Next([]byte(text[:n]))
		text = text[n:]
		if p.Greet {
			greets++
		}
		if p.Wrong || p.Ended {
			return p.Wrong, greets, p.Ended
		}
	}
	return false, greets, false
}

// FuzzCall passes arbitrary bytes to a Call, as any client may send them: how they are split must not matter.
func FuzzCall(f *testing.F) {
	const begin = wire.Preface + wire.Settings
	for _, text := range []string{
		begin + frame(headers, endHeaders, "h") + frame(data, endStream, "\x00\x00\x00\x00\x00"), begin + frame(headers, endStream, "h") + frame(continuation, endHeaders, ""),
		begin + strings.Repeat(frame(ping, 0, "12345678"), 10), "GET / HTTP/1.1\r\n\r\n", wire.Preface, begin + "\xff\xff\xff\x00\x01\x00\x00\x00\x01",
	} {
		f.Add(text, 7)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		wrong, greets, ends := follow(text, len(text))
		wrongInPieces, greetsInPieces, endsInPieces := follow(text, 1+max(size, -size-1)%len(wire.Preface))
		if wrong != wrongInPieces || ends != endsInPieces || !wrong && greets != greetsInPieces {
			t.Errorf("%q: wrong %t, greeted %d times, ends %t; in pieces %t, %d, %t", text, wrong, greets, ends, wrongInPieces, greetsInPieces, endsInPieces)
		}
	})
}
