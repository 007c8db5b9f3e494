package status

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Reading is the result of one reading of the control plane. Each error explains why the part in its name is missing.
type Reading struct {
	*Facts
	HealthErr, ObjectsErr, RestartsErr error
	// Next is how long it takes until the next one is due, 0 if the caller decides that.
	Next time.Duration
}

// ReadAll reads everything that the caller may read. With ask it finds agents that hang, which takes up to AskTakes.
func ReadAll(ctx context.Context, api adminv1.AdminServiceClient, ask bool) *Reading {
	return (&Facts{Now: time.Now()}).read(ctx, api, scope{ask: ask, probeSets: true})
}

func (f *Facts) read(ctx context.Context, api adminv1.AdminServiceClient, s scope) *Reading {
	r := &Reading{Facts: f}
	var group errgroup.Group
	group.Go(func() error { r.HealthErr = f.ReadHealth(ctx, api); return nil })
	group.Go(func() error { r.ObjectsErr = f.readObjects(ctx, api, s); return nil })
	group.Go(func() error { r.RestartsErr = f.ReadRestarts(ctx, api); return nil })
	_ = group.Wait()
	r.explain()
	return r
}

// explain adds to the facts what could not be read.
func (r *Reading) explain() {
	if IsDenied(r.HealthErr) {
		r.Denied("health checks", r.HealthErr)
	}
	if IsDenied(r.RestartsErr) {
		r.Denied("restarts", r.RestartsErr)
	}
	if r.ObjectsErr != nil {
		r.WaitsFor(r.ObjectsErr)
	}
}

// Err returns why the facts are of no use: something could not be read though the caller may read it, or the objects
// could not, and no health check explains why.
func (r *Reading) Err() error {
	if err := Undenied(r.HealthErr); err != nil || r.Unready != nil {
		return err
	}
	return cmp.Or(r.ObjectsErr, Undenied(r.RestartsErr))
}

// Readiness is the error of the objects, unless a health check explains it.
func (r *Reading) Readiness() error {
	if r.Unready != nil {
		return nil //nolint:nilerr // the report has it
	}
	return r.ObjectsErr
}

// IsDenied reports whether an error says that the caller lacks a right.
func IsDenied(err error) bool { return status.Code(err) == codes.PermissionDenied }

// Undenied returns an error unless it says that the caller lacks a right.
func Undenied(err error) error {
	if IsDenied(err) {
		return nil
	}
	return err
}
