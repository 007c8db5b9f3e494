package cluster

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Service accounts of the chart.
const (
	accountRead   = "sondectl"
	accountChange = "sondectl-admin"
)

const (
	// tokenValidity is the minimum that API servers accept. sondectl requests a new token renewBefore the old one expires.
	tokenValidity = 10 * time.Minute
	renewBefore   = time.Minute
)

// accountOf returns the service account for calls that need this right: sondectl for reads, sondectl-admin for changes.
func accountOf(need adminv1.Right) string {
	if need.Changes() {
		return accountChange
	}
	return accountRead
}

// accounts is the part of corev1.ServiceAccountInterface that sondectl uses.
type accounts interface {
	CreateToken(
		ctx context.Context, account string, r *authenticationv1.TokenRequest, o metav1.CreateOptions,
	) (*authenticationv1.TokenRequest, error)
}

// tokens caches tokens of service accounts until shortly before they expire. Several goroutines may use it.
type tokens struct {
	accounts accounts
	// one guards known; its holder may be requesting a token.
	one   chan struct{}
	known map[string]token // by service account
}

func newTokens(a accounts) *tokens { return &tokens{a, make(chan struct{}, 1), map[string]token{}} }

// token is a token with the time of its request and its validity from then.
type token struct {
	text  string
	asked time.Time
	life  time.Duration
}

// usable reports whether a token stays valid for a call. It measures the elapsed time, since this machine's clock may
// be wrong: by the monotonic clock, and by the wall clock, which includes sleep.
func (t token) usable() bool {
	passed := max(time.Since(t.asked), time.Now().Round(0).Sub(t.asked.Round(0)))
	return passed < t.life-renewBefore
}

// get returns a service account's token for the admin API.
func (t *tokens) get(ctx context.Context, account string) (string, error) {
	select {
	case t.one <- struct{}{}:
		defer func() { <-t.one }()
	case <-ctx.Done():
		return "", ctx.Err() //nolint:wrapcheck // the caller explains it
	}
	if known, ok := t.known[account]; ok && known.usable() {
		return known.text, nil
	}
	asked := time.Now()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{mesh.AdminAudience}, ExpirationSeconds: new(int64(tokenValidity.Seconds())),
	}}
	made, err := t.accounts.CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", err //nolint:wrapcheck // the caller explains it
	}
	life := tokenValidity
	if seconds := made.Spec.ExpirationSeconds; seconds != nil { // an API server may grant a shorter validity
		life = time.Duration(*seconds) * time.Second
	}
	t.known[account] = token{made.Status.Token, asked, life}
	return made.Status.Token, nil
}
