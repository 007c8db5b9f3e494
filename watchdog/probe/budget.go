package probe

import "net/http"

const (
	// maxAnswer is how many bytes an answer may have, and largeAnswers how many of them are read and decoded at a time, for all clusters together.
	maxAnswer    = 8 << 20
	largeAnswers = 3
	// smallAnswer is how many bytes an answer may have that is read beside those: more than the metadata of any one node, for which the API server takes 256 KiB
	// of annotations.
	smallAnswer = 512 << 10
	// maxNodes is how many nodes, or leases, a cluster may have: several times what Kubernetes supports.
	maxNodes = 20_000
)

// Budget bounds the memory that the answers of all watched clusters take together. Its zero value cannot be used.
type Budget struct {
	large chan struct{} // has those of largeBytes
	// largeBytes and smallBytes are what an answer may have.
	largeBytes, smallBytes int64
}

// NewBudget returns a Budget that is not used yet.
func NewBudget() *Budget {
	return &Budget{large: make(chan struct{}, largeAnswers), largeBytes: maxAnswer, smallBytes: smallAnswer}
}

// take returns how many bytes an answer may have now, and what to call once it is decoded. It does not wait, so that a cluster that never ends its
// answers costs the others larger pages, and not their probes.
func (b *Budget) take() (limit int64, release func()) {
	select {
	case b.large <- struct{}{}:
		return b.largeBytes, func() { <-b.large }
	default:
		return b.smallBytes, func() {}
	}
}

// limited limits the size of answers. It serves one request at a time.
type limited struct {
	http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, l.limit)
	}
	return answer, err
}
