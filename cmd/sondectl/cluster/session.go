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
	// connectTimeout limits the time before the first call, which may need several requests to the API server and attempts
	// at several replicas.
	connectTimeout = 30 * time.Second
	// forwardTimeout limits the attempt to forward a port to one replica, to leave time for another.
	forwardTimeout = 10 * time.Second
	// maxReason limits the reason of a lost connection in bytes: container runtimes list all attempts.
	maxReason = 300
)

// Session is a forwarded connection to the admin API of one replica. Only Token may be called from several
// goroutines at once.
type Session struct {
	// Address is the local host:port that is forwarded to Pod in Namespace.
	Address, Namespace, Pod string
	// NotReady is why the replica is not Ready, so that its answers may be old; "" if it is Ready.
	NotReady string

	cluster *Cluster
	forward *forward
	tokens  *tokens
}

// Connect finds a Ready replica, otherwise one on a lost node, and forwards a port to it. The caller must call Close.
// Errors are for users, with exit codes.
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
		Address: f.address, Namespace: p.Namespace, Pod: to.pod, NotReady: to.lost, cluster: c, forward: f,
		tokens: newTokens(c.Client.CoreV1().ServiceAccounts(p.Namespace)),
	}, nil
}

// firstThatAnswers forwards a port to the first replica that accepts it.
func (c *Cluster) firstThatAnswers(
	ctx context.Context, namespace string, replicas []replica,
	to func(ctx context.Context, namespace, pod string) (*forward, error),
) (replica, *forward, error) {
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
			return replica{}, nil, err // the other replicas would give the same error
		}
		errs = append(errs, err)
	}
	return replica{}, nil, errors.Join(errs...)
}

// Roots reads the control plane's CAs, which the leader publishes. Read them for each connection, since a rotation
// replaces them.
func (s *Session) Roots(ctx context.Context) (*x509.CertPool, error) {
	name := fmt.Sprintf("ConfigMap %s in namespace %s", mesh.ServingCAConfigMap, s.Namespace)
	m, err := s.cluster.Client.CoreV1().ConfigMaps(s.Namespace).Get(ctx, mesh.ServingCAConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist: the control plane has no leader, or is too old for this sondectl", name)
	}
	if err != nil {
		return nil, s.cluster.Explain("read CAs of the control plane", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Data[mesh.ServingCAKey])) {
		return nil, fmt.Errorf("%s: data[%q]: must hold certificates, PEM", name, mesh.ServingCAKey)
	}
	return roots, nil
}

// Token returns a token for calls that need this right.
func (s *Session) Token(ctx context.Context, need adminv1.Right) (string, error) {
	account := accountOf(need)
	text, err := s.tokens.get(ctx, account)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("service account %s in namespace %s does not exist: Sonde's chart is too old for this sondectl", account, s.Namespace)
	}
	if err != nil {
		what := fmt.Sprintf("get a token of service account %s in namespace %s", account, s.Namespace)
		return "", s.cluster.Explain(what, err)
	}
	return text, nil
}

// Lost returns why the connection is lost, nil if it is not. Use it after a failed call.
func (s *Session) Lost() error {
	err := s.forward.lost(endPatience)
	if err == nil {
		return nil
	}
	return unreachable(fmt.Errorf("the connection to pod %s in namespace %s is lost: %s", s.Pod, s.Namespace, cut.Text(err.Error(), maxReason)))
}

// Ended reports whether the connection is known to be lost.
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
