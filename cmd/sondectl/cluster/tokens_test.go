package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// clocked is an API server whose clock differs from this machine's. test/real/kube has a real one, with the same clock.
type clocked struct {
	ahead, life time.Duration // life is 0 for the requested validity
	made        int
}

func (c *clocked) CreateToken(_ context.Context, _ string, r *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	if len(r.Spec.Audiences) != 1 || r.Spec.Audiences[0] != mesh.AdminAudience || *r.Spec.ExpirationSeconds != 600 {
		return nil, errors.New("the request is for another token")
	}
	if c.life > 0 {
		r.Spec.ExpirationSeconds = new(int64(c.life.Seconds()))
	}
	c.made++
	r.Status.Token = fmt.Sprint("token ", c.made)
	r.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(c.ahead + time.Duration(*r.Spec.ExpirationSeconds)*time.Second))
	return r, nil
}

// advance moves the clock of a bubble.
func advance(d time.Duration) { time.Sleep(d) }

// A token is used as long as it is valid, whatever the clock of this machine shows.
func TestTokensAreRenewed(t *testing.T) {
	tests := map[string]struct {
		server clocked
		until  time.Duration // when a new token is requested
	}{
		"the same clock":                {clocked{}, 9 * time.Minute},
		"a clock behind the server's":   {clocked{ahead: time.Hour}, 9 * time.Minute},
		"a clock ahead of the server's": {clocked{ahead: -time.Hour}, 9 * time.Minute},
		"a server that gives less":      {clocked{life: 5 * time.Minute}, 4 * time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tokens := newTokens(&tc.server)
				get := func(want string) {
					t.Helper()
					if is, err := tokens.get(t.Context(), accountRead); err != nil || is != want {
						t.Errorf("get() = %q, %v, want %q", is, err, want)
					}
				}
				get("token 1")
				advance(tc.until - time.Second)
				get("token 1")
				advance(time.Second)
				get("token 2")
			})
		})
	}
}

// Each service account has its own token.
func TestTokensOfTwoAccounts(t *testing.T) {
	tokens := newTokens(&clocked{})
	for i, account := range []string{accountRead, accountChange, accountRead} {
		if is, err := tokens.get(t.Context(), account); err != nil || is != []string{"token 1", "token 2", "token 1"}[i] {
			t.Errorf("get(%s) = %q, %v", account, is, err)
		}
	}
}

// Calls that begin at the same time share one token. The race detector finds a cache without a lock.
func TestTokensOfCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		tokens := newTokens(server)
		var calls sync.WaitGroup
		for range 6 {
			calls.Go(func() {
				if is, err := tokens.get(t.Context(), accountRead); err != nil || is != "token 1" {
					t.Errorf("get() = %q, %v", is, err)
				}
			})
		}
		calls.Wait()
		if server.made != 1 {
			t.Errorf("%d tokens were requested, want one", server.made)
		}
	})
}

// slowServer needs a second for a token.
type slowServer struct{ clocked }

func (s *slowServer) CreateToken(ctx context.Context, account string, r *authenticationv1.TokenRequest, o metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	time.Sleep(time.Second)
	return s.clocked.CreateToken(ctx, account, r, o)
}
