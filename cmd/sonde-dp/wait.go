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
	// waitInterval is the longest delay that waiting adds to the start of a pod.
	waitInterval = 50 * time.Millisecond
	// answerTimeout is longer than the timeout of the agent's checks.
	answerTimeout  = 5 * time.Second
	maxAnswerBytes = 64 << 10
)

// dial connects as net.Dialer.DialContext does.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// newWaitCommand returns the command. It asks the agent by dial.
func newWaitCommand(dial dial) *cobra.Command {
	var address string
	var timeout time.Duration
	var anyway, endpoints bool
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the agent beside this program is ready",
		Long: `Wait until the agent is ready: it has an identity, and its Envoy has its configuration and listens at each outbound. In a pod whose sidecar
is an ordinary container this is its postStart hook, so that containers that start after it have network and probes.

Outside of pods it also waits until its applications pass their serviceProbes and other proxies know that the endpoints of this one
are ready, so that a call which begins then arrives. Where an application starts after this command, --endpoints=false is needed.

If the agent is not ready in time, the error says what it waits for. With --start-anyway it is only a message: a hook that fails
would have the kubelet kill the sidecar, and one that takes long keeps it from ending the pod.`,
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
	cmd.Flags().StringVar(&address, "admin-addr", dpagent.DefaultAdminAddress, "`host:port` of the agent, as its own --admin-addr says")
	cmd.Flags().BoolVar(&anyway, "start-anyway", false, "succeed after --timeout too")
	cmd.Flags().BoolVar(&endpoints, "endpoints", true, "wait until other proxies know that the endpoints of this one are ready, too")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "longest wait")
	return cmd
}

// wait returns nil once the agent at address is ready, with endpoints once other proxies know of these, too.
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
			return fmt.Errorf("wait for the agent at %s: %w", address, err)
		}
		if ctx.Err() == nil || last == nil { // once ctx has ended, the error before says more
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("wait for the agent at %s: not ready after %s: %w", address, timeout, last)
		case <-again.C:
		}
	}
}

// errNoAgent means that another program answers, which will not become an agent.
var errNoAgent = errors.New("answers there, and no agent: --admin-addr must be that of sonde-dp run")

// checkOfControlPlane is a check of readiness that control planes alone have.
const checkOfControlPlane = "xds"

// askReady asks the agent, and returns why it is not ready, or with endpoints why these are not, nil if they are.
func askReady(ctx context.Context, client *http.Client, address string, endpoints bool) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+mesh.PathReady+"?verbose", http.NoBody)
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
		case !isCheck || !slices.Contains([]string{"[+", "[-", "[!"}, sign): // such as an earlier result, which is indented
			continue
		case sign == "[-", sign == "[!" && (name == dpagent.CheckOutbounds || endpoints && name == dpagent.CheckEndpoints):
			reasons = append(reasons, result)
		}
		checks = append(checks, name)
	}
	switch {
	case checks == nil:
		return fmt.Errorf("it answers %s, as no agent does", response.Status)
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
