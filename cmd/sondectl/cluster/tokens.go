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
	// tokenValidity is the least that API servers take. A new token is made renewBefore its end.
	tokenValidity = 10 * time.Minute
	renewBefore   = time.Minute
)

// accountOf returns the service account for calls that need the right: sondectl, or sondectl-admin for those that change something.
func accountOf(need adminv1.Right) string {
	if need.Changes() {
		return accountChange
	}
	return accountRead
}

// accounts is the API of a namespace's service accounts. corev1.ServiceAccountInterface of client-go implements it.
type accounts interface {
	CreateToken(ctx context.Context, account string, r *authenticationv1.TokenRequest, o metav1.CreateOptions) (*authenticationv1.TokenRequest, error)
}

// tokens are those of service accounts, kept until shortly before they expire.
type tokens struct {
	accounts accounts
	known    map[string]token // by service account
}

func newTokens(a accounts) *tokens { return &tokens{a, map[string]token{}} }

// token is one that was asked for at a time, and is good for a while from then.
type token struct {
	text  string
	asked time.Time
	life  time.Duration
}

// usable reports whether a token lasts for a call. It asks no clock for the time, only for what has passed, since that of this machine may be wrong: the
// monotonic one, and the wall clock for the time in which the machine was asleep.
func (t token) usable() bool {
	passed := max(time.Since(t.asked), time.Now().Round(0).Sub(t.asked.Round(0)))
	return passed < t.life-renewBefore
}

// get returns a token of a service account for the admin API.
func (t *tokens) get(ctx context.Context, account string) (string, error) {
	if known, ok := t.known[account]; ok && known.usable() {
		return known.text, nil
	}
	asked := time.Now()
	made, err := t.accounts.CreateToken(ctx, account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{mesh.AdminAudience}, ExpirationSeconds: new(int64(tokenValidity.Seconds())),
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", err //nolint:wrapcheck // the caller explains it
	}
	life := tokenValidity
	if seconds := made.Spec.ExpirationSeconds; seconds != nil { // an API server may give less than was asked for
		life = time.Duration(*seconds) * time.Second
	}
	t.known[account] = token{made.Status.Token, asked, life}
	return made.Status.Token, nil
}
