package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// SPIFFE IDs of the workloads.
const (
	identityA = "spiffe://default.sonde.internal/workload/a"
	identityB = "spiffe://default.sonde.internal/workload/b"
)

// peers returns the caller and the called identity from the header with which Envoy passes a call over
// mTLS.
func peers(answer harness.Answer) (caller, called string) {
	for part := range strings.SplitSeq(answer.Headers.Get("X-Forwarded-Client-Cert"), ";") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "URI":
			caller = value
		case "By":
			called = value
		}
	}
	return caller, called
}

func (s *scene) call(ctx context.Context) ([]string, error) {
	caller := harness.NewHTTPCaller(s.url("b"), false, false)
	defer caller.Close()
	instances := map[string]int{}
	for range 30 {
		answer, err := caller.Ask(ctx)
		if err != nil {
			return nil, err
		}
		if from, by := peers(answer); from != identityA || by != identityB {
			return nil, fmt.Errorf("%s sees a call from %q to %q, want %s to %s", answer.Instance, from, by, identityA, identityB)
		}
		instances[answer.Instance]++
	}
	seen := []string{
		"30 successful calls, to " + counts(instances),
		"mTLS; B sees its peer  " + identityA,
		"            and answers as   " + identityB,
	}
	if len(instances) != len(s.b) {
		return seen, errors.New("not every replica was called")
	}
	return seen, nil
}

func counts(instances map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(instances)) {
		if instances[name] > 0 {
			all = append(all, fmt.Sprintf("%s (%d)", name, instances[name]))
		}
	}
	return strings.Join(all, ", ")
}

func (s *scene) withoutCertificate(ctx context.Context) ([]string, error) {
	at := s.b[0].Inbound
	plain := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer plain.Close()
	_, err := plain.Ask(ctx)
	why, err := refusal(err)
	if err != nil {
		return nil, fmt.Errorf("plain text: %w", err)
	}
	seen := []string{"plain text is refused: " + why}
	why, err = refusal(handshake(ctx, at))
	if err != nil {
		return seen, fmt.Errorf("TLS without a certificate: %w", err)
	}
	return append(seen, "TLS without a certificate is refused: "+why), nil
}

// handshake opens a TLS connection without a certificate and waits for a byte: with TLS 1.3, a client learns only then
// that it was rejected.
func handshake(ctx context.Context, at string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// the identity of the server does not matter, since it must reject the connection
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"sonde", "http/1.1"}}}
	conn, err := dialer.DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// refusal returns how a connection was rejected. If it was not, it returns an error.
func refusal(err error) (string, error) {
	remote, isRemote := errors.AsType[*net.OpError](err)
	_, isAnswer := errors.AsType[*harness.StatusError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil || isAnswer:
		return "", errors.New("the request was answered")
	case isNet && timeout.Timeout():
		return "", errors.New("neither a response nor a refusal")
	case isRemote && remote.Op == "remote error": // a TLS alert
		return remote.Err.Error(), nil
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection is closed", nil
	}
	return "", err
}

func (s *scene) withoutSidecar(ctx context.Context) ([]string, error) {
	caller := harness.NewHTTPCaller(s.url("c"), false, false)
	defer caller.Close()
	answer, err := caller.Ask(ctx)
	if err != nil {
		return nil, err
	}
	if from, _ := peers(answer); from != "" || answer.Instance != "c-1" {
		return nil, fmt.Errorf("%s responds, and sees %q as its caller", answer.Instance, from)
	}
	return []string{answer.Instance + " responds in plain text, in the same STRICT mesh"}, nil
}

func (s *scene) terminate(ctx context.Context) ([]string, error) {
	leaving := s.b[2]
	load := s.load(ctx)
	defer load.Stop()
	if r := settle(ctx, load, 500*time.Millisecond); r.Instances[leaving.Name] == 0 {
		return nil, fmt.Errorf("%s is not called", leaving.Name)
	}
	started := time.Now()
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, drainTime+10*time.Second)
		defer cancel()
		ended <- leaving.Agent.Terminate(ctx)
	}()
	gone := s.waitEndpoints(ctx, s.b[:2]...)
	after := time.Since(started)
	s.board.Progress("waiting for the drain to end")
	if err := errors.Join(gone, <-ended); err != nil {
		return nil, err
	}
	seen := []string{
		fmt.Sprintf("the Envoy of A removed its endpoint after %d ms", after.Milliseconds()),
		fmt.Sprintf("its agent and Envoy ended after %.1f s", time.Since(started).Seconds()),
	}
	r := settle(ctx, load, 300*time.Millisecond)
	total := load.Stop()
	seen = append(seen, total.String()+", now by "+counts(r.Instances))
	switch {
	case after > 2*time.Second:
		return seen, errors.New("the endpoint was not removed at once")
	case r.Instances[leaving.Name] > 0:
		return seen, fmt.Errorf("%s is still called", leaving.Name)
	}
	return seen, none(total)
}

func (s *scene) kill(ctx context.Context) ([]string, error) {
	dead := s.b[1]
	// A request in flight to an application that dies may fail: its outcome is unknown, so Envoy does not retry
	// it.
	err := errors.Join(dead.KillAll(ctx), s.waitDisconnected(ctx, dead))
	if err != nil {
		return nil, err
	}
	load := s.load(ctx)
	defer load.Stop()
	started := time.Now()
	s.board.Progress("waiting for outlier detection")
	err = harness.Poll(ctx, "the Envoy of A to eject "+dead.Name, func(ctx context.Context) error {
		endpoints, err := s.a.Endpoints(ctx, "b")
		if err == nil && !endpoints[dead.Inbound].Ejected {
			err = errors.New("not ejected")
		}
		return err
	})
	after, meanwhile := time.Since(started), load.Report()
	if err != nil {
		return nil, err
	}
	seen := []string{
		fmt.Sprintf("outlier detection ejected it %d ms after the first call", after.Milliseconds()),
		fmt.Sprintf("until then: %s (retried on other replicas)", meanwhile),
	}
	r := settle(ctx, load, time.Second)
	seen = append(seen, fmt.Sprintf("since then: %s, by %s", r, counts(r.Instances)))
	return seen, none(load.Stop())
}

func (s *scene) brokenFile(ctx context.Context) ([]string, error) {
	load := s.load(ctx)
	defer load.Stop()
	const file = "b-1.yaml"
	if err := s.machine.Put(file, "type: Dataplane\nname: b-1\nnetworking: [broken\n"); err != nil {
		return nil, err
	}
	var problem string
	err := harness.Poll(ctx, "sondectl get to report "+file, func(ctx context.Context) error {
		stdout, stderr, err := s.machine.CtlBoth(ctx, "get", "dataplanes")
		if err != nil {
			return err
		}
		if !strings.Contains(stdout, "b-1 ") {
			return fmt.Errorf("b-1 is lost: %s", stdout)
		}
		if problem = strings.TrimSpace(stderr); !strings.Contains(problem, file) {
			return fmt.Errorf("it prints %q", problem)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	seen := []string{"reported: " + strings.ReplaceAll(problem, s.machine.StoreDir()+"/", "")}
	r := settle(ctx, load, 300*time.Millisecond)
	seen = append(seen, "b-1 keeps its last valid configuration: "+r.String())
	if err := s.waitEndpoints(ctx, s.b[:2]...); err != nil {
		return seen, err
	}
	if err := s.b[0].Declare(); err != nil {
		return seen, err
	}
	err = harness.Poll(ctx, "sondectl get to report nothing", func(ctx context.Context) error {
		_, stderr, err := s.machine.CtlBoth(ctx, "get", "dataplanes")
		if err == nil && stderr != "" {
			err = fmt.Errorf("it prints %q", stderr)
		}
		return err
	})
	return append(seen, "repaired: sondectl reports no problem"), errors.Join(err, none(load.Stop()))
}
