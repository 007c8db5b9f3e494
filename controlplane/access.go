package controlplane

import (
	"fmt"

	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/controller/access"
)

// accessPerSecond is how many requests per second about callers of the admin API may be sent to the API server, and accessBurst how many at once. Those
// about agents are counted apart, so that neither keeps the other waiting.
const (
	accessPerSecond = 40
	accessBurst     = 80
)

// access returns what knows who may call the admin API, and what, by their tokens of service accounts.
func (c *cluster) access() (admin.Access, error) {
	config := rest.CopyConfig(c.config)
	config.QPS, config.Burst = accessPerSecond, accessBurst
	tokens, err := authenticationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for TokenReviews: %w", err)
	}
	rights, err := authorizationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for SubjectAccessReviews: %w", err)
	}
	return access.New(access.Options{Tokens: tokens.TokenReviews(), Rights: rights.SubjectAccessReviews()})
}
