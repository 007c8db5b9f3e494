package cluster

import (
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

// Explain explains an error of the API server for users. Its message about a missing right names the user, the verb and
// the resource.
func (c *Cluster) Explain(doing string, err error) error {
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server at %s rejects the credentials of %s: they may have expired, log in again", doing, c.Config.Host, c.credentials())
	case errors.As(err, &answer):
		return fmt.Errorf("%s: %w", doing, err)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // hide the URL
	}
	return unreachable(fmt.Errorf("%s: no response from the API server at %s: %w", doing, c.Config.Host, err))
}

// credentials names the source of the user's credentials.
func (c *Cluster) credentials() string {
	if c.context == "" {
		return "this pod"
	}
	return fmt.Sprintf("context %q of the kubeconfig", c.context)
}

func unreachable(err error) error { return &exit.Error{Code: exit.Unreachable, Err: err} }
