package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/internal/run"
)

// Pauses between requests to an API server that does not answer: first a second, then twice as long each time, up to
// longestPause.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Second
	// reachTimeout of each request.
	reachTimeout = 10 * time.Second
)

// reach waits until the API server answers. The caller handles the answer itself, such as a forbidden request.
func (c *cluster) reach(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := c.ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the API server: %w", ctx.Err())
		}
		c.cp.waiting.Store(&err)
		c.cp.o.Logger.WarnContext(ctx, "API server does not answer, retrying", "err", err, "pause", pause)
		_ = run.Sleep(ctx, pause) // ask fails after ctx has ended
	}
}

// ask returns why the API server does not answer a request for Secrets, nil if it answers.
func (c *cluster) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	_, err := c.client.CoreV1().Secrets(c.cp.o.Kubernetes.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if answered(err) {
		return nil
	}
	return fmt.Errorf("no answer of the API server: %w", err)
}

// answered reports whether an error, or nil, comes from a working API server.
func answered(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return err == nil
	}
	code := status.Status().Code
	return code != http.StatusTooManyRequests && code < http.StatusInternalServerError
}
