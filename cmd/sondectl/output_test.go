package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func TestUntil(t *testing.T) {
	tests := map[string]struct {
		left time.Duration
		want string
	}{
		"days":               {90*24*time.Hour + time.Hour, "90d"},
		"nearly two days":    {48 * time.Hour, "2d"},
		"hours":              {47 * time.Hour, "47h"},
		"a token of a day":   {24 * time.Hour, "24h"},
		"a day and a half":   {36*time.Hour + 29*time.Minute, "36h"},
		"nearly two hours":   {2 * time.Hour, "2h"},
		"minutes":            {119 * time.Minute, "119m"},
		"a token of an hour": {time.Hour, "60m"},
		"seconds":            {100 * time.Second, "100s"},
		"less than a second": {400 * time.Millisecond, "0s"},
		"past":               {-time.Second, "expired"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := describe.Until(timestamppb.New(time.Now().Add(tc.left - time.Millisecond))); got != tc.want {
				t.Errorf("until(%s) = %q, want %q", tc.left, got, tc.want)
			}
		})
	}
	if got := describe.Until(nil); got != "" {
		t.Errorf("until(nil) = %q", got)
	}
}

func TestExplain(t *testing.T) {
	tests := map[string]struct {
		dial, handshake, err error
		code                 int
		want                 string
	}{
		"no server":         {errors.New("connection refused"), nil, status.Error(codes.Unavailable, "x"), exit.Unreachable, "no control plane at HOST:1: connection refused"},
		"impostor":          {nil, &tls.CertificateVerificationError{Err: errors.New("unknown authority")}, status.Error(codes.Unavailable, "x"), exit.Failed, "is not the one that --ca-cert-file names: unknown authority"},
		"not ready":         {nil, nil, status.Error(codes.Unavailable, "no view yet"), exit.Unreachable, "is not available: no view yet"},
		"hangs":             {nil, nil, status.Error(codes.DeadlineExceeded, "x"), exit.Unreachable, "the control plane at HOST:1 did not answer in time"},
		"refuses":           {nil, nil, status.Error(codes.NotFound, "mesh not found"), exit.Failed, "mesh not found"},
		"an answer is odd":  {nil, nil, errors.New("decode Mesh"), exit.Failed, "decode Mesh"},
		"wrong use of flag": {nil, nil, settings.Usagef("bad"), exit.Usage, "bad"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			watch := &reach.Watch{Service: reach.Admin, Address: "HOST:1"}
			watch.Dialed(tc.dial)
			watch.Handshaken(tc.handshake)
			err := explainError(watch, tc.err)
			if got := exit.Code(err); got != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("explain() = %v (exit code %d), want %q (%d)", err, got, tc.want, tc.code)
			}
		})
	}
}

// failing is a standard output with a closed reader.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestAnOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	var stderr bytes.Buffer
	code := (&cli{}).run(context.Background(), []string{"--help"}, strings.NewReader(""), failing{}, &stderr)
	if code != exit.Failed || !strings.HasPrefix(stderr.String(), "sondectl: write output: ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}

func TestAStepOfALaterControlPlane(t *testing.T) {
	got := rotated{title: "mesh default", steps: meshSteps}.text(&adminv1.Rotation{Step: 17})
	if want := "mesh default: unknown step: 17\n"; got != want {
		t.Errorf("text() = %q, want %q", got, want)
	}
}
