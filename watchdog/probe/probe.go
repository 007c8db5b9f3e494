// Package probe checks once whether a cluster's API server responds, and reads its node leases.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/partition"
)

// Probe is one probe. Each request has its own connection, so that a silently broken one does not look like an
// unreachable API server. It is not safe for concurrent use.
type Probe struct {
	config    *rest.Config
	transport *http.Transport
	client    *http.Client
	answers   *limited
	budget    *Budget
	// pageSize is the number of objects to request in the next page.
	pageSize int64
}

// New returns a Probe of the API server in config, which it does not change. The caller must call Close.
func New(config *rest.Config, budget *Budget) (*Probe, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // no client-side limit: the API server throttles
	config.WarningHandler = rest.NoWarnings{}
	secured, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("create client: %w", err)}
	}
	t := &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true, DialContext: config.Dial,
		TLSHandshakeTimeout: config.Timeout}
	answers := &limited{RoundTripper: t}
	wrapped, err := rest.HTTPWrappersForConfig(config, answers)
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("create client: %w", err)}
	}
	return &Probe{
		config: config, transport: t, client: &http.Client{Transport: wrapped, CheckRedirect: refuseRedirect},
		answers: answers, budget: budget, pageSize: maxPage,
	}, nil
}

// errRedirect rejects a redirect. No API server sends one, and following it would leak the kubeconfig's token.
var errRedirect = errors.New("redirects are not followed")

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// Close closes idle connections.
func (p *Probe) Close() { p.transport.CloseIdleConnections() }

// APIServer returns nil if the server responds with a Kubernetes version, so that it is an API server.
func (p *Probe) APIServer(ctx context.Context) error {
	const what = "get version of the API server"
	c := rest.CopyConfig(p.config)
	c.APIPath, c.NegotiatedSerializer = "/", codecs
	client, err := rest.UnversionedRESTClientForConfigAndClient(c, p.client)
	if err != nil {
		return explainAnswer(what, err)
	}
	p.answers.limit = p.budget.smallBytes
	answer, err := client.Get().AbsPath("/version").MaxRetries(0).DoRaw(ctx)
	if err != nil {
		return explainAnswer(what, err)
	}
	var v version.Info
	if err := json.Unmarshal(answer, &v); err != nil || v.GitVersion == "" {
		return explainAnswer(what, errNoVersion)
	}
	return nil
}

var errNoVersion = errors.New("no gitVersion in the response")
