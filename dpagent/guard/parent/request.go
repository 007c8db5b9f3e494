package parent

import (
	"bytes"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// probeHeader is mesh.ProbeHeader, whose package needs more memory than all the rest here.
const probeHeader = "Sonde-Probe"

// headEnds says whether a request's head is whole. The first seen bytes had been looked at before.
func headEnds(b []byte, seen int) bool {
	b = b[max(0, seen-3):]
	return bytes.Contains(b, []byte("\r\n\r\n")) || bytes.Contains(b, []byte("\n\n"))
}

// probeID finds what a request says in the header that names its probe.
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
