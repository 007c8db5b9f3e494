package probe

import "net/http"

const (
	// maxAnswer limits a response in bytes. largeAnswers limits the number that are read and decoded at a time, over all
	// clusters.
	maxAnswer    = 8 << 20
	largeAnswers = 3
	// smallAnswer limits, in bytes, a response while all slots for large ones are used. It fits the metadata of any single
	// node, for which the API server allows 256 KiB of annotations.
	smallAnswer = 512 << 10
	// maxNodes limits the nodes, or leases, of a cluster: several times what Kubernetes supports.
	maxNodes = 20_000
)

// Budget bounds the memory of responses from all watched clusters together. Use NewBudget.
type Budget struct {
	large chan struct{} // one slot per large response
	// largeBytes and smallBytes limit a response.
	largeBytes, smallBytes int64
}

// NewBudget returns an unused Budget.
func NewBudget() *Budget {
	return &Budget{large: make(chan struct{}, largeAnswers), largeBytes: maxAnswer, smallBytes: smallAnswer}
}

// take returns the current limit of a response in bytes, and a function to call once the response is decoded. It does
// not wait: a cluster with endless responses only makes other clusters use smaller pages.
func (b *Budget) take() (limit int64, release func()) {
	select {
	case b.large <- struct{}{}:
		return b.largeBytes, func() { <-b.large }
	default:
		return b.smallBytes, func() {}
	}
}

// limited limits the size of responses. It serves one request at a time.
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
