package guard

import (
	"bytes"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// probeHeader is mesh.ProbeHeader. Package mesh would take more memory than the rest of the guard.
const probeHeader = "Sonde-Probe"

// headEnds reports whether the head of a request is complete. The first seen bytes were checked before.
func headEnds(b []byte, seen int) bool {
	b = b[max(0, seen-3):]
	return bytes.Contains(b, []byte("\r\n\r\n")) || bytes.Contains(b, []byte("\n\n"))
}

// probeID returns the value of the header Sonde-Probe, nil if not found.
func probeID(head []byte) []byte {
	for line := range bytes.Lines(head) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if ok && len(value) <= wire.MaxID && bytes.EqualFold(name, []byte(probeHeader)) {
			return bytes.TrimSpace(value)
		}
	}
	return nil
}
