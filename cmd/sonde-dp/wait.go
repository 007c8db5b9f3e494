package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
)

const (
	// waitInterval is the interval between checks, and so the longest delay that they add to the start of a pod.
	waitInterval = 50 * time.Millisecond
	// answerTimeout is longer than the timeout of the agent's checks.
	answerTimeout  = 5 * time.Second
	maxAnswerBytes = 64 << 10
)

// dial is like net.Dialer.DialContext.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// newWaitCommand returns the command, which connects to the agent with dial.
func newWaitCommand(dial dial) *cobra.Command {
	var address string
	var timeout time.Duration
	var anyway, endpoints bool
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the agent is ready",
		Long: `Wait until the agent is ready: it has an identity, and its Envoy has its configuration and listens at each outbound. If
the sidecar is an ordinary container, its postStart hook runs this command, so that containers that start later have
network and probes.

Outside pods, it also waits until the applications pass their serviceProbes and other proxies have the proxy's endpoints
as ready, so that calls to the applications arrive. If an application starts after this command, set --endpoints=false.

If the agent is not ready in time, the error names the checks that fail. With --start-anyway, the command prints the
error but succeeds: if a hook fails, the kubelet kills the sidecar, and a slow hook delays the termination of the pod.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, port, err := net.SplitHostPort(address); err != nil || port == "" || port == "0" {
				return &mesh.FieldError{Field: "--admin-addr", Value: address, Allowed: "must be the host:port of an agent"}
			}
			if timeout <= 0 {
				return &mesh.FieldError{Field: "--timeout", Value: timeout.String(), Allowed: "must be more than 0"}
			}
			err := dial.wait(cmd.Context(), address, timeout, endpoints)
			if err != nil && anyway && cmd.Context().Err() == nil {
				_, err = fmt.Fprintln(cmd.ErrOrStderr(), err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&address, "admin-addr", dpagent.DefaultAdminAddress,
		"`host:port` of the agent: the value of its --admin-addr")
	cmd.Flags().BoolVar(&anyway, "start-anyway", false, "succeed after --timeout even if the agent is not ready")
	cmd.Flags().BoolVar(&endpoints, "endpoints", true, "also wait until other proxies have the endpoints of this proxy as ready")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "maximum wait")
	return cmd
}

// wait returns nil once the agent at address is ready and, with endpoints, once other proxies have its endpoints as
// ready.
func (d dial) wait(ctx context.Context, address string, timeout time.Duration, endpoints bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d}, Timeout: answerTimeout}
	again := time.NewTicker(waitInterval)
	defer again.Stop()
	var last error
	for {
		err := askReady(ctx, client, address, endpoints)
		if err == nil {
			return nil
		}
		if errors.Is(err, errNoAgent) {
			return fmt.Errorf("wait for agent at %s: %w", address, err)
		}
		if ctx.Err() == nil || last == nil { // an error caused by the end of ctx is less useful than the previous one
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("wait for agent at %s: not ready after %s: %w", address, timeout, last)
		case <-again.C:
		}
	}
}

// errNoAgent means that a program other than an agent answers, so that waiting is useless.
var errNoAgent = errors.New("answers there, but is not an agent: --admin-addr must be the value given to sonde-dp run")

// checkOfControlPlane is the name of a readiness check that only control planes have.
const checkOfControlPlane = "xds"

// askReady returns nil if the agent is ready and, with endpoints, its endpoints are. Else the error says what is not
// ready.
func askReady(ctx context.Context, client *http.Client, address string, endpoints bool) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+address+mesh.PathReady+"?verbose", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	var checks, reasons []string
	for line := range strings.Lines(string(body)) {
		sign, result, isCheck := strings.Cut(strings.TrimSuffix(line, "\n"), "]")
		name, _, _ := strings.Cut(result, " ")
		switch {
		// not a check: for example an earlier result, which is indented
		case !isCheck || !slices.Contains([]string{"[+", "[-", "[!"}, sign):
			continue
		case sign == "[-", sign == "[!" && (name == dpagent.CheckOutbounds || endpoints && name == dpagent.CheckEndpoints):
			reasons = append(reasons, result)
		}
		checks = append(checks, name)
	}
	switch {
	case checks == nil:
		return fmt.Errorf("%s is not an agent's response", response.Status)
	case !slices.Contains(checks, dpagent.CheckEnvoy):
		who := "a program with the checks " + strings.Join(checks, ", ")
		if slices.Contains(checks, checkOfControlPlane) {
			who = "a control plane"
		}
		return fmt.Errorf("%s %w", who, errNoAgent)
	case reasons != nil:
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}
