package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask sends a client's text, and returns the response and the result of Serve.
func ask(t *testing.T, text string, handle func(context.Context, Request) error) (answer string, err error) {
	t.Helper()
	client, server := net.Pipe()
	ended := make(chan error)
	go func() { ended <- Serve(t.Context(), server, handle) }()
	go func() { _, _ = client.Write([]byte(text)) }() // fails once the server has closed the connection
	var a Answer
	if read(client, &a) == nil {
		answer = "answer: " + a.Error
	}
	return answer, errors.Join(<-ended, client.Close())
}

func TestServe(t *testing.T) {
	refuse := func(context.Context, Request) error { return errors.New("no") }
	tests := map[string]struct {
		text   string
		handle func(context.Context, Request) error
		answer string
		err    string
	}{
		"a pod": {`{"verb":"ADD","pod":"web"}` + "\n", func(_ context.Context, r Request) error {
			if r.Verb != Add || r.Pod != "web" {
				return fmt.Errorf("got %+v", r)
			}
			return nil
		}, "answer: ", ""},
		"a reason":       {"{}\n", refuse, "answer: no", ""},
		"a long reason":  {"{}\n", func(context.Context, Request) error { return errors.New(strings.Repeat("<", maxBytes)) }, "answer: " + strings.Repeat("<", maxReason) + "...", ""},
		"no JSON":        {"x\n", refuse, "", "read request: invalid character"},
		"an unknown key": {`{"command":"rm"}` + "\n", refuse, "", "unknown field"},
		"too long":       {strings.Repeat(" ", maxBytes+1024) + "\n", refuse, "", "more than 16384 bytes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer, err := ask(t, tc.text, tc.handle)
			if answer != tc.answer || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q, %v, want %q, %q", answer, err, tc.answer, tc.err)
			}
		})
	}
}

// A client that sends nothing does not keep its place.
func TestSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer func() { _ = client.Close() }()
		began := time.Now()
		if err := Serve(t.Context(), server, nil); err == nil || time.Since(began) != Timeout {
			t.Errorf("Serve() = %v after %s, want after %s", err, time.Since(began), Timeout)
		}
	})
}

func TestNoDaemon(t *testing.T) {
	if _, err := Ask(t.Context(), t.TempDir()+"/none.sock", Request{}); !errors.Is(err, ErrAway) {
		t.Errorf("Ask() = %v", err)
	}
}
