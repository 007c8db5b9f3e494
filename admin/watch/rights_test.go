package watch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// A check that is not possible now does not end a call, but an answer does not hold for long without one.
func TestChecksThatFail(t *testing.T) {
	for name, tc := range map[string]struct {
		errs        []codes.Code // of the second check, and so on; the last one of all later ones
		ended       codes.Code   // OK if the call goes on
		least, most time.Duration
	}{
		"API server away for two checks": {[]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.OK}, codes.OK, 0, 0},
		"and again":                      {[]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.OK, codes.Unavailable, codes.OK}, codes.OK, 0, 0},
		"API server away":                {[]codes.Code{codes.Unavailable}, codes.Unavailable, 108 * time.Second, 3 * time.Minute},
		"expired meanwhile":              {[]codes.Code{codes.Unavailable, codes.Unauthenticated}, codes.Unauthenticated, 72 * time.Second, 2 * time.Minute},
		"withdrawn":                      {[]codes.Code{codes.PermissionDenied}, codes.PermissionDenied, 36 * time.Second, time.Minute + readEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var checks atomic.Int64
				p := start(t, &plane{rights: func(adminv1.Right) (string, error) {
					n := int(checks.Add(1)) - 2
					if n < 0 {
						return "operator", nil
					}
					return "operator", status.Error(tc.errs[min(n, len(tc.errs)-1)], "no")
				}})
				c := p.call(t, healths)
				go c.follow()
				if tc.ended == codes.OK {
					time.Sleep(10 * time.Minute)
					c.end()
					if <-c.ended; status.Code(c.err) != codes.Canceled {
						t.Errorf("it ends with %v", c.err)
					}
					return
				}
				<-c.ended
				if took := time.Since(began); status.Code(c.err) != tc.ended || took < tc.least || took > tc.most {
					t.Errorf("it ends after %s with %v", took, c.err)
				}
			})
		})
	}
}

// A right that was denied stays so while it cannot be checked, whatever the others are.
func TestDeniedWhileUnchecked(t *testing.T) {
	away, no := status.Error(codes.Unavailable, "away"), status.Error(codes.PermissionDenied, "no")
	errs := map[string]error{"proxies": no, "restarts": nil, "health": nil}
	rights := func(_ context.Context, needs []adminv1.Right) (Caller, error) {
		who := Caller{Errs: map[adminv1.Right]error{}}
		for _, need := range needs {
			who.Errs[need] = errs[need.Resource]
		}
		return who, nil
	}
	all := []section{proxies, restarts, healths}
	_, before, err := check(t.Context(), all, nil, rights)
	if err != nil || len(before) != 1 {
		t.Fatalf("denied: %v, %v", before, err)
	}
	errs = map[string]error{"proxies": away, "restarts": away, "health": no}
	_, now, err := check(t.Context(), all, before, rights)
	if status.Code(err) != codes.Unavailable || len(now) != 2 || now[proxies] == nil || now[healths] == nil {
		t.Errorf("denied: %v, %v", now, err)
	}
}
