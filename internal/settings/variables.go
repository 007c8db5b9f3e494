package settings

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// ofService matches the suffixes that a kubelet appends to the name of a Service, and the form of each value. All pods
// of a namespace get these variables, even for a Service whose name begins like the program's: for sonde-cp-webhook,
// SONDE_CP_WEBHOOK_PORT is tcp://10.96.0.7:443.
// Source: kubernetes pkg/kubelet/envvars/envvars.go.
var ofService = []struct{ name, value *regexp.Regexp }{
	{regexp.MustCompile(`_SERVICE_HOST$`), address},
	{regexp.MustCompile(`_SERVICE_PORT(_[A-Z0-9_]+)?$`), number},
	{regexp.MustCompile(`_PORT(_\d+_(TCP|UDP|SCTP))?$`), link},
	{regexp.MustCompile(`_PORT_\d+_(TCP|UDP|SCTP)_PROTO$`), regexp.MustCompile(`^(tcp|udp|sctp)$`)},
	{regexp.MustCompile(`_PORT_\d+_(TCP|UDP|SCTP)_PORT$`), number},
	{regexp.MustCompile(`_PORT_\d+_(TCP|UDP|SCTP)_ADDR$`), address},
}

var (
	address = regexp.MustCompile(`^[0-9a-f.:]+$`)
	number  = regexp.MustCompile(`^\d+$`)
	link    = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// ofKubernetes reports whether a variable that would set a flag belongs to a Service.
func ofKubernetes(variable, value string) bool {
	return strings.HasSuffix(variable, "_PORT") && link.MatchString(value)
}

// fromService reports whether a kubelet has set a variable. The kubelet always sets the address of the same Service,
// too.
func fromService(variable, value string) bool {
	for _, of := range ofService {
		at := of.name.FindStringIndex(variable)
		if at == nil || !of.value.MatchString(value) {
			continue
		}
		if _, err := netip.ParseAddr(os.Getenv(variable[:at[0]] + "_SERVICE_HOST")); err == nil {
			return true
		}
	}
	return false
}

// unknown returns the names of unknown variables with the prefix, each with a suggestion if possible. Their values may
// be secret.
func (s *settings) unknown() []string {
	var known, unknown []string
	for variable := range s.known {
		known = append(known, strings.TrimPrefix(variable, s.o.Prefix))
	}
	slices.Sort(known)
	for _, entry := range os.Environ() {
		variable, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(variable, s.o.Prefix)
		if !ours || s.known[variable] || fromService(variable, value) {
			continue
		}
		if near, _ := mesh.Nearest(rest, known); near != "" {
			variable += ": did you mean " + s.o.Prefix + near + "?"
		}
		unknown = append(unknown, variable)
	}
	slices.Sort(unknown)
	return unknown
}
