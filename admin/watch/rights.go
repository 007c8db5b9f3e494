package watch

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// checkEvery is the average time between two checks of the rights of a viewer. It varies by a quarter, so that
	// viewers that connect at once are not checked at once again and again.
	checkEvery = 48 * time.Second
	// keptChecks is how often in a row a check may fail for a temporary reason. So a withdrawn right ends after a minute
	// at most, and after three if the API server does not answer.
	keptChecks = 2
)

// Rights returns who calls, and which rights the caller lacks. The error is a gRPC status, such as for an invalid
// token.
type Rights func(ctx context.Context, needs []adminv1.Right) (Caller, error)

// Caller is the result of Rights.
type Caller struct {
	Name string
	// Shared means that several people are this caller, so that their addresses are counted apart.
	Shared bool
	// Errs has a gRPC status for each right that the caller lacks, or that could not be checked.
	Errs map[adminv1.Right]error
}

// check checks the rights to sections, of which some may be unknown. With an error, a gRPC status, the sections that
// could not be checked are denied as before.
func check(ctx context.Context, sections []section, before map[section]*status.Status, rights Rights) (
	c Caller, denied map[section]*status.Status, err error,
) {
	var needs []adminv1.Right
	for _, s := range sections {
		if need, known := adminv1.RightOfSection(s); known && !slices.Contains(needs, need) {
			needs = append(needs, need)
		}
	}
	if c, err = rights(ctx, needs); err != nil {
		return c, before, err
	}
	denied = map[section]*status.Status{}
	for _, s := range sections {
		need, known := adminv1.RightOfSection(s)
		switch refused := c.Errs[need]; {
		case !known:
			denied[s] = status.Newf(codes.Unimplemented, "section %s: this release does not have it", s)
		case status.Code(refused) == codes.PermissionDenied:
			denied[s] = status.Convert(refused)
		case refused != nil:
			err = refused
			if before[s] != nil {
				denied[s] = before[s]
			}
		}
	}
	return c, denied, err
}

// recheck checks the rights again and again, until ctx ends or they are not certain for too long, and returns why.
func (c *call) recheck(ctx context.Context, rights Rights) error {
	denied, failed := c.view.denied, 0
	for run.Sleep(ctx, checkEvery*3/4+rand.N(checkEvery/2)) == nil { //nolint:gosec // jitter, not a secret
		var err error
		_, denied, err = check(ctx, c.view.sections, denied, rights)
		switch {
		case err == nil:
			failed = 0
		case failed < keptChecks && temporary(err):
			failed++
		default:
			return err
		}
		select {
		case c.checks <- denied:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// temporary reports whether a check could not be made, rather than had a result.
func temporary(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}
