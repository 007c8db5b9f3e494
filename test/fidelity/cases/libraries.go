package cases

// librariesOf are the cases in which kubelets of some versions have another verdict because of the versions of their
// libraries, not because of their own code. The agent has one version of each library, and its verdict is the case's
// Want.
var librariesOf = map[string]struct {
	// until and since are minor versions, 0 if unset.
	until, since int
	want         Verdicts
}{
	// SETTINGS that no client may accept (RFC 9113, 6.5.2): golang.org/x/net 0.49 does not check them.
	"HTTP/2 frames too small": {until: 36, want: Verdicts{Success}},
	// gRPC 1.72 checks the HTTP status of a gRPC answer. Later versions do not.
	"gRPC HTTP status 404, and gRPC": {until: 35, want: Verdicts{Failure}},
	"gRPC HTTP status 503, and gRPC": {until: 35, want: Verdicts{Failure}},
	"gRPC HTTP status 099, and gRPC": {until: 35, want: Verdicts{Failure}},
	"gRPC HTTP status abc, and gRPC": {until: 35, want: Verdicts{Failure}},
	"gRPC HTTP status 103 before":    {until: 35, want: Verdicts{Failure}},
	"gRPC a long header":             {until: 35, want: Verdicts{Failure}},
	// golang.org/x/net 0.62 with Go 1.27 reads frames of 1 MiB. Earlier versions read 16 KiB.
	"HTTP/2 body in too large a frame": {since: 38, want: Verdicts{Success}},
}

// ByLibraries reports whether a kubelet of a minor version has another verdict than the agent because of its libraries.
func (c *Case) ByLibraries(minor int) bool {
	l, ok := librariesOf[c.Name]
	return ok && (minor <= l.until || l.since > 0 && minor >= l.since)
}
