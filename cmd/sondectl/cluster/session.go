package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

const (
	// connectTimeout limits all that comes before the first call: the API server may have to be asked several times, and a replica may be lost.
	connectTimeout = 30 * time.Second
	// forwardTimeout limits the forward to one replica, so that another one can be tried.
	forwardTimeout = 10 * time.Second
	// maxReason is how much is shown of why a connection is lost, in bytes: container runtimes name all that they have tried.
	maxReason = 300
)

// Session is a way to the admin API of one replica. It is for one goroutine, as a command makes one call after the other.
type Session struct {
	// Address is a local port, host:port, which is forwarded to Pod in Namespace.
	Address, Namespace, Pod string
	// NotReady is why the replica is not Ready, "" if it is: what it says may be old.
	NotReady string

	cluster *Cluster
	forward *forward
	tokens  *tokens
}

// Connect finds a replica that is Ready, or else one whose node the API server has lost, and forwards a port to it. Close has to be called. Errors are for
// users, with exit codes.
func (c *Cluster) Connect(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	p, err := c.Find(ctx)
	if err != nil {
		return nil, err
	}
	replicas, err := p.answering(c.lostNodes(ctx, p))
	if err != nil {
		return nil, err
	}
	to, f, err := c.firstThatAnswers(ctx, p.Namespace, replicas, c.forward)
	if err != nil {
		return nil, err
	}
	return &Session{
		Address: f.address, Namespace: p.Namespace, Pod: to.pod, NotReady: to.lost, cluster: c, forward: f, tokens: newTokens(c.Client.CoreV1().ServiceAccounts(p.Namespace)),
	}, nil
}

// firstThatAnswers forwards a port to the first replica to which that can be done.
func (c *Cluster) firstThatAnswers(ctx context.Context, namespace string, replicas []replica, to func(ctx context.Context, namespace, pod string) (*forward, error)) (replica, *forward, error) {
	var errs []error
	for _, r := range replicas {
		one, cancel := context.WithTimeout(ctx, forwardTimeout)
		f, err := to(one, namespace, r.pod)
		slow := one.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return r, f, nil
		}
		doing := fmt.Sprintf("forward a port to pod %s in namespace %s", r.pod, namespace)
		if err = c.Explain(doing, err); slow {
			err = unreachable(fmt.Errorf("%s: no connection within %s", doing, forwardTimeout))
		}
		if r.lost != "" {
			err = fmt.Errorf("%w (%s)", err, r.lost)
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || ctx.Err() != nil {
			return replica{}, nil, err // the others would say the same
		}
		errs = append(errs, err)
	}
	return replica{}, nil, errors.Join(errs...)
}

// Roots reads the CAs of the control plane, which the leader has published. They are for one connection: a rotation replaces them.
func (s *Session) Roots(ctx context.Context) (*x509.CertPool, error) {
	name := fmt.Sprintf("ConfigMap %s in namespace %s", mesh.ServingCAConfigMap, s.Namespace)
	m, err := s.cluster.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, mesh.ServingCAConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist: the leading replica of the control plane writes it, and one without it is too old for this sondectl", name)
	}
	if err != nil {
		return nil, s.cluster.Explain("read the CAs of the control plane", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Data[mesh.ServingCAKey])) {
		return nil, fmt.Errorf("%s: data[%q]: must hold certificates, PEM", name, mesh.ServingCAKey)
	}
	return roots, nil
}

// Token returns a token for calls that need the right.
func (s *Session) Token(ctx context.Context, need adminv1.Right) (string, error) {
	account := accountOf(need)
	text, err := s.tokens.get(ctx, account)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no service account %s in namespace %s: the chart of Sonde makes it, and one without it is too old for this sondectl", account, s.Namespace)
	}
	if err != nil {
		return "", s.cluster.Explain(fmt.Sprintf("get a token of service account %s in namespace %s", account, s.Namespace), err)
	}
	return text, nil
}

// Lost returns why no more calls get through, nil if they do as far as is known. It is for use after a call that has failed.
func (s *Session) Lost() error {
	err := s.forward.lost(endPatience)
	if err == nil {
		return nil
	}
	return unreachable(fmt.Errorf("the connection to pod %s in namespace %s is lost: %s", s.Pod, s.Namespace, cut.Text(err.Error(), maxReason)))
}

// Ended reports whether it is known that no more calls get through.
func (s *Session) Ended() bool {
	select {
	case <-s.forward.ended:
		return true
	default:
		return false
	}
}

// Close ends the session.
func (s *Session) Close() { s.forward.close() }
