// Package tokenreview finds out which pod a projected service-account token identifies. The API server checks the token, and the
// cache of pods decides: a token still passes for about ten seconds after its pod was deleted, and one that names no pod of the cache is not
// sent.
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

// errInvalid begins each refusal.
var errInvalid = errors.New("invalid token")

// Pod is what the cache of pods knows of a pod.
type Pod struct {
	Namespace, Name, UID, ServiceAccount string
	// Mesh of the pod, "" if it is in none.
	Mesh string
	// Refused is why a pod of its namespace must not join that mesh, nil if it may.
	Refused error
}

// Pods is the cache of pods. Its methods return at once. A pod is in it until its object is gone.
type Pods interface {
	// Pod returns the pod with that UID.
	Pod(uid string) (Pod, bool)
}

// Reviews is the API of TokenReviews. authenticationv1.TokenReviewInterface of client-go implements it.
type Reviews interface {
	Create(ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// Options of an Authenticator.
type Options struct {
	// Reviews and Pods are required.
	Reviews Reviews
	Pods    Pods
	// Timeout of one check. Default 5s.
	Timeout time.Duration
}

// Authenticator checks tokens. It may be used from any goroutine.
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

// Authenticate implements join.Authenticator: it returns the pod that a token identifies. The error wraps identity.ErrUnavailable if
// the API server does not answer, and identity.ErrNotKnown if the pod is in no cache. It never contains the token.
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

// claims is what a token says, or the API server says of it.
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

// claimed returns what a token says of itself, which only the API server can check. A token that cannot be of a pod that joins is no reason to
// ask it: any client that can connect could send any number of these. The error does not contain the token.
func claimed(token string) (claims, error) {
	var own private
	if _, err := Claimed(token, mesh.TokenAudience, &own); err != nil {
		return claims{}, err
	}
	k := own.Kubernetes
	if k.Namespace == "" || k.ServiceAccount.Name == "" || k.Pod.Name == "" || k.Pod.UID == "" {
		return claims{}, errors.New("kubernetes.io: the token is bound to no pod, it must be a projected one of a pod")
	}
	return claims{namespace: k.Namespace, serviceAccount: k.ServiceAccount.Name, pod: k.Pod.Name, uid: k.Pod.UID}, nil
}

// read returns which pod a user of a review is, and as an error why it is none.
func read(user authenticationv1.UserInfo) (claims, error) {
	name, ok := strings.CutPrefix(user.Username, userPrefix)
	namespace, serviceAccount, separated := strings.Cut(name, ":")
	if !ok || !separated || namespace == "" || serviceAccount == "" {
		return claims{}, fmt.Errorf("it is for user %q, must be for a service account", user.Username)
	}
	c := claims{namespace: namespace, serviceAccount: serviceAccount}
	for key, value := range map[string]*string{extraPodName: &c.pod, extraPodUID: &c.uid} {
		values := user.Extra[key]
		if len(values) != 1 || values[0] == "" {
			return claims{}, fmt.Errorf("%s: missing: the token is bound to no pod, it must be a projected one of a pod", key)
		}
		*value = values[0]
	}
	return c, nil
}

// find returns the pod that the claims name, if it is the one that the cache has.
func (a *Authenticator) find(c claims) (identity.Subject, error) {
	p, ok := a.o.Pods.Pod(c.uid)
	if !ok {
		return identity.Subject{}, notSeen(c)
	}
	if p.Namespace != c.namespace || p.Name != c.pod || p.ServiceAccount != c.serviceAccount {
		return identity.Subject{}, fmt.Errorf("%w: it is for pod %s/%s with service account %q, the pod with its UID is %s/%s with service account %q",
			errInvalid, c.namespace, c.pod, c.serviceAccount, p.Namespace, p.Name, p.ServiceAccount)
	}
	if p.Mesh == "" {
		return identity.Subject{}, fmt.Errorf("%w: pod %s/%s is in no mesh", errInvalid, p.Namespace, p.Name)
	}
	if p.Refused != nil { // the webhook has not seen the pod, or its label was changed since
		return identity.Subject{}, fmt.Errorf("%w: pod %s/%s: %w", errInvalid, p.Namespace, p.Name, p.Refused)
	}
	return identity.Subject{
		Mesh: p.Mesh, Dataplane: mesh.ObjectDataplane(p.Namespace, p.Name), Path: mesh.ServiceAccountPath(p.Namespace, p.ServiceAccount), Instance: p.UID,
	}, nil
}

// notSeen says nothing but what the token says: the caller may not be its pod. The cache may be behind: then the agent's next try succeeds.
func notSeen(c claims) error {
	text := fmt.Sprintf("pod %s/%s with UID %s is deleted, or not seen yet", c.namespace, c.pod, c.uid)
	return fmt.Errorf("%w: %s", identity.ErrNotKnown, cut.Text(text, maxReason))
}
