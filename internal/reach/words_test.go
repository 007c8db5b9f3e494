package reach

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestWords(t *testing.T) {
	tests := map[string]struct {
		err  error
		want string
	}{
		"no status":         {errors.New("context deadline exceeded"), "context deadline exceeded"},
		"a status":          {status.Error(codes.NotFound, "mesh not found"), "mesh not found"},
		"a wrapped one":     {fmt.Errorf("join: %w", status.Error(codes.Unavailable, "no view yet")), "join: no view yet"},
		"two":               {fmt.Errorf("%w; before: %w", status.Error(codes.Aborted, "b"), status.Error(codes.Aborted, "a")), "b; before: a"},
		"a code alone":      {fmt.Errorf("renew: %w", status.Error(codes.Unavailable, "")), "renew: Unavailable"},
		"no answer":         {status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "no answer in time"},
		"no server":         {status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`), "dial tcp 127.0.0.1:1: connect: connection refused"},
		"a text alone":      {errors.New(`connection error: desc = "error reading server preface: EOF"`), "the connection broke: EOF"},
		"it went away":      {status.Error(codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR, debug data: "graceful_stop"`), "the server has closed the connection: it is shutting down"},
		"it broke":          {status.Error(codes.Unavailable, "error reading from server: read tcp 127.0.0.1:2->127.0.0.1:1: read: connection reset by peer"), "the connection broke: read tcp 127.0.0.1:2->127.0.0.1:1: read: connection reset by peer"},
		"quotes in quotes":  {status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: lookup \"x\""`), `lookup "x"`},
		"of something else": {errors.New("desc = x"), "desc = x"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Words(tc.err); got != tc.want {
				t.Errorf("Words() = %q, want %q", got, tc.want)
			}
		})
	}
}
