// Package probe reads, once, whether the API server of a cluster answers, and what the leases of its nodes say.
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

// Probe is one probe. It has connections of its own, which do not outlive a request: one that broke unnoticed must not be taken for an API server
// that is away. Its methods are called one at a time.
type Probe struct {
	config    *rest.Config
	transport *http.Transport
	client    *http.Client
	answers   *limited
	budget    *Budget
	// pageSize is how many objects the next answer has.
	pageSize int64
}

// New returns a Probe of the API server of config, which is not changed. Close ends it.
func New(config *rest.Config, budget *Budget) (*Probe, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server says when it gets too many
	config.WarningHandler = rest.NoWarnings{}
	secured, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("make client: %w", err)}
	}
	t := &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true, DialContext: config.Dial, TLSHandshakeTimeout: config.Timeout}
	answers := &limited{RoundTripper: t}
	wrapped, err := rest.HTTPWrappersForConfig(config, answers)
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("make client: %w", err)}
	}
	return &Probe{
		config: config, transport: t, client: &http.Client{Transport: wrapped, CheckRedirect: refuseRedirect}, answers: answers, budget: budget, pageSize: maxPage,
	}, nil
}

// errRedirect is a redirect, which no API server answers with: followed, it would take the token of the kubeconfig to where the answer says.
var errRedirect = errors.New("redirects are not followed")

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// Close ends what a probe has left.
func (p *Probe) Close() { p.transport.CloseIdleConnections() }

// APIServer returns nil if the API server answers with its version, as anything else that answers does not.
func (p *Probe) APIServer(ctx context.Context) error {
	const what = "ask the API server for its version"
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

var errNoVersion = errors.New("no gitVersion in the answer")
