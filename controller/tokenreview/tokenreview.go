// Package tokenreview finds the pod of a projected service-account token. The API server verifies the token. In
// addition, the pod must be in the pod cache, since the API server accepts the token of a deleted pod for about ten
// seconds. The token of a pod that is not in the cache is not sent to the API server.
package tokenreview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Keys of a projected token's extra claims. Source: kubernetes pkg/serviceaccount/util.go.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	userPrefix   = "system:serviceaccount:"
)

// errInvalid is wrapped by each rejection.
var errInvalid = errors.New("invalid token")

// Pod is a pod in the pod cache.
type Pod struct {
	Namespace, Name, UID, ServiceAccount string
	// Mesh of the pod, "" if it is not in a mesh.
	Mesh string
	// Refused is why a pod of its namespace must not join that mesh, nil if it may.
	Refused error
}

// Pods is the pod cache. Its methods return at once. A pod stays in it until its object is deleted.
type Pods interface {
	// Pod returns the pod with that UID.
	Pod(uid string) (Pod, bool)
}

// Reviews is the API of TokenReviews. authenticationv1.TokenReviewInterface of client-go implements it.
type Reviews interface {
	Create(
		ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions,
	) (*authenticationv1.TokenReview, error)
}

// Options of an Authenticator.
type Options struct {
	// Reviews and Pods are required.
	Reviews Reviews
	Pods    Pods
	// Timeout of one check. Default 5s.
	Timeout time.Duration
}

// Authenticator checks tokens. It is safe for concurrent use.
type Authenticator struct {
	o Options
}

// New returns an Authenticator.
func New(o Options) (*Authenticator, error) {
	if o.Reviews == nil || o.Pods == nil {
		return nil, errors.New("tokenreview: Options.Reviews and Options.Pods are required")
	}
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return &Authenticator{o: o}, nil
}

// Authenticate implements join.Authenticator: it returns the pod of a token. The error wraps identity.ErrUnavailable if
// the API server does not answer, and identity.ErrNotKnown if the pod is not in the cache. It never contains the token.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (identity.Subject, error) {
	said, err := claimed(token)
	if err != nil {
		return identity.Subject{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if _, ok := a.o.Pods.Pod(said.uid); !ok {
		return identity.Subject{}, notSeen(said)
	}
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	user, err := Review(ctx, a.o.Reviews, token, mesh.TokenAudience)
	if errors.Is(err, identity.ErrUnavailable) {
		return identity.Subject{}, err
	}
	var c claims
	if err == nil {
		c, err = read(user)
	}
	if err != nil {
		return identity.Subject{}, fmt.Errorf("%w: %s", errInvalid, clean(err.Error(), token))
	}
	return a.find(c)
}

// claims are the claims of a token, or the API server's answer about them.
type claims struct{ namespace, serviceAccount, pod, uid string }

// private are the claims of a projected token. Source: kubernetes pkg/serviceaccount/claims.go.
type private struct {
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		Pod            object `json:"pod"`
		ServiceAccount object `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

type object struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// claimed returns the unverified claims of a token, which only the API server can verify. It rejects tokens that cannot
// belong to a joining pod, so that clients cannot cause any number of requests to the API server. The error does not
// contain the token.
func claimed(token string) (claims, error) {
	var own private
	if _, err := Claimed(token, mesh.TokenAudience, &own); err != nil {
		return claims{}, err
	}
	k := own.Kubernetes
	if k.Namespace == "" || k.ServiceAccount.Name == "" || k.Pod.Name == "" || k.Pod.UID == "" {
		return claims{}, errors.New("kubernetes.io: the token is not bound to a pod, it must be a pod's projected token")
	}
	return claims{namespace: k.Namespace, serviceAccount: k.ServiceAccount.Name, pod: k.Pod.Name, uid: k.Pod.UID}, nil
}

// read returns the pod of a reviewed user, or why the user is not a pod.
func read(user authenticationv1.UserInfo) (claims, error) {
	name, ok := strings.CutPrefix(user.Username, userPrefix)
	namespace, serviceAccount, separated := strings.Cut(name, ":")
	if !ok || !separated || namespace == "" || serviceAccount == "" {
		return claims{}, fmt.Errorf("the token is for user %q, must be for a service account", user.Username)
	}
	c := claims{namespace: namespace, serviceAccount: serviceAccount}
	for key, value := range map[string]*string{extraPodName: &c.pod, extraPodUID: &c.uid} {
		values := user.Extra[key]
		if len(values) != 1 || values[0] == "" {
			return claims{}, fmt.Errorf("%s: missing: the token is not bound to a pod, it must be a pod's projected token", key)
		}
		*value = values[0]
	}
	return c, nil
}

// find returns the pod of the claims, if the cached pod agrees with them.
func (a *Authenticator) find(c claims) (identity.Subject, error) {
	p, ok := a.o.Pods.Pod(c.uid)
	if !ok {
		return identity.Subject{}, notSeen(c)
	}
	if p.Namespace != c.namespace || p.Name != c.pod || p.ServiceAccount != c.serviceAccount {
		return identity.Subject{},
			fmt.Errorf("%w: the token is for pod %s/%s with service account %q, "+
				"but the pod with its UID is %s/%s with service account %q",
				errInvalid, c.namespace, c.pod, c.serviceAccount, p.Namespace, p.Name, p.ServiceAccount)
	}
	if p.Mesh == "" {
		return identity.Subject{}, fmt.Errorf("%w: pod %s/%s is not in a mesh", errInvalid, p.Namespace, p.Name)
	}
	if p.Refused != nil { // the pod bypassed the webhook, or its label was changed later
		return identity.Subject{}, fmt.Errorf("%w: pod %s/%s: %w", errInvalid, p.Namespace, p.Name, p.Refused)
	}
	return identity.Subject{
		Mesh: p.Mesh, Dataplane: mesh.ObjectDataplane(p.Namespace, p.Name),
		Path: mesh.ServiceAccountPath(p.Namespace, p.ServiceAccount), Instance: p.UID,
	}, nil
}

// notSeen returns an error that only repeats the token's claims, since the caller may not be the pod. If the cache is
// behind, the agent's next attempt succeeds.
func notSeen(c claims) error {
	text := fmt.Sprintf("pod %s/%s with UID %s is deleted, or still unknown", c.namespace, c.pod, c.uid)
	return fmt.Errorf("%w: %s", identity.ErrNotKnown, cut.Text(text, maxReason))
}
