package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// answers is a database that responds or not.
type answers struct {
	status int
	err    error
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Status: http.StatusText(a.status), Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// Findings always fail. An unreachable database is reported, and fails if it is required.
func TestCheck(t *testing.T) {
	found := errors.New("exit status 3")
	for name, tc := range map[string]struct {
		database  answers
		required  bool
		found     error
		out, want string // part of the output and of the error; "" for no error
		ran       []string
	}{
		"nothing found":              {database: answers{status: 200}, ran: []string{"a", "b"}},
		"found in one":               {database: answers{status: 200}, found: found, want: "govulncheck of a: exit status 3", ran: []string{"a", "b"}},
		"no network":                 {database: answers{err: errors.New("no such host")}, out: "NOTHING WAS CHECKED"},
		"refused by a proxy":         {database: answers{status: 403}, out: "Forbidden"},
		"no network, but it must be": {database: answers{err: errors.New("no such host")}, required: true, want: "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			var ran []string
			err := check(context.Background(), reach(tc.database, "https://db.example"), tc.required, []string{"a", "b"}, &out, func(module string) error {
				ran = append(ran, module)
				if module == "a" {
					return tc.found
				}
				return nil
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if !strings.Contains(out.String(), tc.out) || !slices.Equal(ran, tc.ran) {
				t.Errorf("printed %q, ran %v, want %q, %v", &out, ran, tc.out, tc.ran)
			}
		})
	}
}
