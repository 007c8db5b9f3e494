package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// minCertValidity is the shortest validity of a proxy's certificate.
const minCertValidity = 10 * time.Second

// Limits of names. A DNS name, and with it the DNS SAN of a proxy, has at most 253 characters.
const (
	maxLabel = 63
	maxName  = 253
)

// Values of FieldError.Allowed.
const (
	allowedLabel     = "must be a DNS label: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
	allowedSubdomain = "must be a DNS subdomain: at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"
	allowedSegment   = "must be 1 to 253 letters, digits, '.', '_' and '-', but not '.' or '..': it is part of a SPIFFE ID"
	allowedTagKey    = "must be a tag name of letters, digits, '.', '_', '-', ':' and '/'"
	allowedTagValue  = "must be a tag value of one or more letters, digits, '.', '_', '-' and ':'"
	allowedIP        = "must be an IP address"
	allowedEndpoint  = "must be an IP address that others can connect to: not unspecified, not multicast"
	allowedWorkload  = "must be an IP address that the proxy can connect to: not unspecified, not multicast"
	allowedAddrPort  = "must be a virtual address ip:port such as 240.0.0.1:80 or [fd00::1]:80, not unspecified, not multicast"
	unresolved       = ". A name is not resolved: write the address that it stands for"
	missing          = "is missing: "
	empty            = "is empty: "
)

// Limits on the errors of an object, so that a completely wrong one takes no more memory than a right one.
const (
	maxItems      = 10_000 // of a list
	maxViolations = 100
	maxText       = 1024 // of a value, and of the allowed values, in bytes
)

// violations collects the violations of an object.
type violations []error

// report adds a violation, unless there are too many already.
func (v *violations) report(f *FieldError) {
	switch n := len(*v); {
	case n < maxViolations:
		// they may quote everything that a user has written
		f.Value, f.Allowed, f.Field = Shorten(f.Value, maxText), Shorten(f.Allowed, maxText), Shorten(f.Field, maxText)
		*v = append(*v, f)
	case n == maxViolations:
		*v = append(*v, errors.New("there are more errors"))
	}
}

func (v *violations) add(field, value, allowed string) {
	if value == "" {
		allowed = missing + allowed
	}
	v.report(&FieldError{Field: field, Value: value, Allowed: allowed})
}

func (v *violations) check(ok bool, field, value, allowed string) {
	if !ok {
		v.add(field, value, allowed)
	}
}

// number reports a number.
func (v *violations) number(field string, n int64, allowed string) {
	v.bare(field, strconv.FormatInt(n, 10), allowed)
}

// bare reports a value other than a text.
func (v *violations) bare(field, value, allowed string) {
	v.report(&FieldError{Field: field, Value: value, Bare: true, Allowed: allowed})
}

// port checks a port without a default: a 0 was omitted, since readers of documents reject it.
func (v *violations) port(field string, port uint32) {
	switch {
	case port == 0:
		v.add(field, "", AllowedPort)
	case port > maxPort:
		v.number(field, int64(port), AllowedPort)
	}
}

// fits reports whether a list has no more items than are checked.
func (v *violations) fits(field string, items int) bool {
	v.check(items <= maxItems, field, strconv.Itoa(items)+" items", fmt.Sprintf("must have at most %d items", maxItems))
	return items <= maxItems
}

// Validate implements Object.
func (m *Mesh) Validate() error {
	var v violations
	v.check(isDNSLabel(m.Name), "name", m.Name, allowedLabel)
	if m.Spec.MTLS != nil {
		m.Spec.MTLS.validate(&v)
	}
	return errors.Join(v...)
}

func (t *MTLS) validate(v *violations) {
	if !v.fits("mtls.backends", len(t.Backends)) {
		return
	}
	names := make([]string, 0, len(t.Backends))
	for i := range t.Backends {
		names = append(names, t.Backends[i].Name)
	}
	if t.EnabledBackend != "" && !slices.Contains(names, t.EnabledBackend) {
		v.add("mtls.enabledBackend", t.EnabledBackend, "must be the name of one of mtls.backends: "+list(names))
	}
	first := map[string]int{}
	for i := range t.Backends {
		b, path := &t.Backends[i], fmt.Sprintf("mtls.backends[%d]", i)
		if at, used := first[b.Name]; used {
			v.add(path+".name", b.Name, fmt.Sprintf("must be unique: mtls.backends[%d] has it too", at))
		} else {
			first[b.Name] = i
		}
		b.validate(v, path)
	}
}

func (b *Backend) validate(v *violations, path string) {
	v.check(b.Name != "", path+".name", "", "must name the backend")
	v.check(b.Type == BackendBuiltin, path+".type", b.Type, "must be "+BackendBuiltin+
		": the control plane makes and keeps the certificate authority itself")
	v.check(b.Mode == ModeStrict || b.Mode == ModePermissive, path+".mode", string(b.Mode),
		meant("must be STRICT or PERMISSIVE", b.Mode, ModeStrict, ModePermissive))
	cert, ca := b.CertValidity(), b.CAValidity()
	v.check(cert >= minCertValidity, path+".dpCert.rotation.expiration", Duration(cert).String(),
		"must be at least "+minCertValidity.String())
	v.check(ca > cert, path+".conf.caCert.expiration", Duration(ca).String(),
		"must be longer than dpCert.rotation.expiration, "+Duration(cert).String())
}

// Validate implements Object.
func (s *Service) Validate() error {
	var v violations
	v.check(isDNSLabel(s.Mesh), "mesh", s.Mesh, allowedLabel)
	v.check(isSegment(s.Name), "name", s.Name, allowedSegment)
	if s.Spec.Protocol != "" {
		v.protocol("protocol", s.Spec.Protocol)
	}
	if n := len(s.Spec.Addresses); s.Spec.Headless && n > 0 {
		v.bare("headless", "true", fmt.Sprintf("must be false for a service with addresses: it has %d", n))
	}
	s.Spec.validatePolicies(&v)
	first := map[netip.AddrPort]string{}
	for i, text := range s.Spec.Addresses {
		field := fmt.Sprintf("addresses[%d]", i)
		at, err := netip.ParseAddrPort(text)
		if err != nil || at.Port() == 0 || !isEndpoint(at.Addr()) {
			v.add(field, text, allowedAddrPort)
			continue
		}
		v.unique(first, field, text, at)
	}
	clear(first)
	for i, e := range s.Spec.Endpoints {
		path := fmt.Sprintf("endpoints[%d]", i)
		addr, ok := v.endpoint(path+".address", e.Address)
		v.port(path+".port", e.Port)
		if e.Dataplane != "" {
			v.check(isDNSSubdomain(e.Dataplane), path+".dataplane", e.Dataplane, allowedSubdomain)
		}
		if ok {
			v.unique(first, path, JoinHostPort(e.Address, e.Port), netip.AddrPortFrom(addr, uint16(e.Port)))
		}
	}
	return errors.Join(v...)
}

// validatePolicies checks how callers choose endpoints. Callers of a headless service address endpoints directly.
func (s *ServiceSpec) validatePolicies(v *violations) {
	affinity, policy := s.SessionAffinity, s.InternalTrafficPolicy
	switch {
	case affinity == "" || affinity == AffinityNone:
	case affinity != AffinityClientIP:
		v.add("sessionAffinity", string(affinity), meant("must be None or ClientIP", affinity, AffinityNone,
			AffinityClientIP))
	case s.Headless:
		v.add("sessionAffinity", string(affinity), "must be None for a headless service")
	}
	switch {
	case policy == "" || policy == TrafficCluster:
	case policy != TrafficLocal:
		v.add("internalTrafficPolicy", string(policy), meant("must be Cluster or Local", policy, TrafficCluster,
			TrafficLocal))
	case s.Headless:
		v.add("internalTrafficPolicy", string(policy), "must be Cluster for a headless service")
	}
}

// unique records which field has an address, and adds a violation if another field has it already.
func (v *violations) unique(first map[netip.AddrPort]string, field, value string, at netip.AddrPort) {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if other, used := first[at]; used {
		v.add(field, value, "must be unique: "+other+" has the same address and port")
		return
	}
	first[at] = field
}

func (v *violations) protocol(field string, p Protocol) {
	if slices.Contains(Protocols(), p) {
		return
	}
	allowed := meant(allowedProtocol(), p, Protocols()...)
	if lower := Protocol(strings.ToLower(string(p))); slices.Contains(kumaProtocols, lower) {
		allowed += ": write tcp, Sonde forwards " + string(lower) + " as bytes"
	}
	v.add(field, string(p), allowed)
}

// kumaProtocols are further protocols that Kuma accepts.
var kumaProtocols = []Protocol{"kafka", "mysql", "tls", "raw_buffer"}

// tags checks the names and values of tags.
func (v *violations) tags(path string, tags Tags) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		field, value := tagField(path, key), tags[key]
		v.check(isOf(key, "._-:/"), field, cmp.Or(key, `""`), allowedTagKey)
		if value == "" {
			v.report(&FieldError{Field: field, Allowed: empty + allowedTag(key)})
			continue
		}
		switch key {
		case TagService, LabelWorkload:
			v.check(isSegment(value), field, value, allowedSegment)
		case TagProtocol:
			v.protocol(field, Protocol(value))
		default:
			v.check(isOf(value, "._-:"), field, value, allowedTagValue)
		}
	}
}

func allowedTag(key string) string {
	switch key {
	case TagService, LabelWorkload:
		return allowedSegment
	case TagProtocol:
		return allowedProtocol()
	}
	return allowedTagValue
}

func allowedProtocol() string { return "must be one of " + list(Protocols()) }

func tagField(path, key string) string {
	return path + "[" + strconv.Quote(Shorten(key, maxText)) + "]"
}

// endpoint checks an address to which others connect.
func (v *violations) endpoint(field, text string) (netip.Addr, bool) {
	return v.address(field, text, allowedEndpoint)
}

// address checks an address that a client connects to. Kuma allows names for some of them.
func (v *violations) address(field, text, allowed string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err == nil && isEndpoint(addr):
		return addr.Unmap(), true
	case err != nil && isHostName(text):
		allowed += unresolved
	}
	v.add(field, text, allowed)
	return netip.Addr{}, false
}

// isHostName reports whether a text looks like a name for a resolver, rather than a mistyped address.
func isHostName(text string) bool {
	return isSegment(text) && strings.ContainsFunc(text, unicode.IsLetter)
}

// isEndpoint reports whether others can connect to an address. A zone is only valid on one machine.
func isEndpoint(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == ""
}

// JoinHostPort joins an IP address and a port.
func JoinHostPort(address string, port uint32) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + strconv.FormatUint(uint64(port), 10)
}

func list[S ~string](of []S) string {
	if len(of) == 0 {
		return "(none)"
	}
	words := make([]string, 0, len(of))
	for _, w := range of {
		words = append(words, string(w))
	}
	return strings.Join(words, ", ")
}

// isOf reports whether s is not empty, and has only ASCII letters, digits and characters of extra.
func isOf(s, extra string) bool {
	for i := range len(s) {
		c := s[i]
		if !isLowerAlnum(c) && (c < 'A' || c > 'Z') && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return s != ""
}

func isSegment(s string) bool {
	return len(s) <= maxName && isOf(s, "._-") && s != "." && s != ".."
}

func isDNSLabel(s string) bool { return len(s) <= maxLabel && isDNSPart(s) }

// isDNSSubdomain follows Kubernetes: a part may be longer than a DNS label, as in names of pods.
func isDNSSubdomain(s string) bool {
	if len(s) > maxName {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if !isDNSPart(part) {
			return false
		}
	}
	return true
}

func isDNSPart(s string) bool {
	for i := range len(s) {
		if !isLowerAlnum(s[i]) && s[i] != '-' {
			return false
		}
	}
	return s != "" && s[0] != '-' && s[len(s)-1] != '-'
}

func isLowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
