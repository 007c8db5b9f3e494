package webhook

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// connects finds commands that only wait until a connection is accepted.
var connects = regexp.MustCompile(`\b(?:nc|ncat|netcat)\b[^|;&\n]*\s-[a-zA-Z]*z` +
	`|\bwait-for-it\b|\bwait-for(?:\.sh)?\s+[^\s/]+:\d+|\bdockerize\b[^;&\n]*\btcp://|/dev/tcp/`)

// maxCommand limits the shown part of a command, in bytes.
const maxCommand = 60

// warnConnects warns of init containers that wait for a connection to another pod, since Envoy accepts each connection.
// With an ordinary sidecar, init containers end before Envoy starts.
func (in *injection) warnConnects() {
	if in.form != Native {
		return
	}
	for i := range in.pod.Spec.InitContainers {
		c := &in.pod.Spec.InitContainers[i]
		found := connects.FindString(strings.Join(slices.Concat(c.Command, c.Args), " "))
		if found == "" || isOurs(c.Name) || podspec.IsNativeSidecar(c) {
			continue
		}
		in.warn("containers[%s].command: %q: this init container does not wait, since Envoy accepts each connection before it connects to the server: "+
			"wait for a response, as pg_isready or an HTTP request does", c.Name, mesh.Shorten(found, maxCommand))
	}
}
