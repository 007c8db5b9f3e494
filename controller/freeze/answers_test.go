package freeze

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// others answers as a test has set it.
type others struct {
	done    *adminv1.FreezeZoneResponse
	missing []string
	err     error
}

func (o others) OrderFreeze(context.Context, *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, []string, error) {
	return o.done, o.missing, o.err
}

func TestFreezeZone(t *testing.T) {
	ten := &adminv1.FreezeZoneResponse{KeptPercent: 10}
	tests := map[string]struct {
		zone   string
		leads  bool
		others others
		kept   uint32
		code   codes.Code
		text   string
	}{
		"of the leader":           {zone: "a", leads: true, kept: 100},
		"the leader refuses":      {zone: "c", leads: true, code: codes.NotFound, text: "must be one with nodes"},
		"of another replica":      {zone: "a", others: others{done: ten, missing: []string{"c"}}, kept: 10},
		"another replica refuses": {zone: "a", others: others{err: status.Error(codes.NotFound, "no such zone")}, code: codes.NotFound, text: "no such zone"},
		"silent replicas":         {zone: "a", others: others{missing: []string{"b", "c"}}, code: codes.Unavailable, text: "these did not answer: b, c"},
		"no replica leads":        {zone: "a", code: codes.Unavailable, text: "no replica leads now"},
		"no zone":                 {code: codes.InvalidArgument, text: "zone: must not be empty"},
		"a long zone":             {zone: strings.Repeat("x", 64), code: codes.InvalidArgument, text: "zone: 64 bytes: must have at most 63"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newWorld().replica(t, false).Freeze
				var log strings.Builder
				f.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				if tc.leads {
					l := f.begin(7)
					l.look(t.Context(), time.Now())
				}
				done, err := (&Answers{Freeze: f, Others: tc.others}).FreezeZone(t.Context(), &adminv1.FreezeZoneRequest{Zone: tc.zone})
				if status.Code(err) != tc.code || err != nil && !strings.Contains(err.Error(), tc.text) || done.GetKeptPercent() != tc.kept {
					t.Errorf("FreezeZone() = %v, %v, want %d, %s %s", done, err, tc.kept, tc.code, tc.text)
				}
				logged := strings.Contains(log.String(), `msg="zone ordered to freeze or thaw" peer="" caller="" zone=a thaw=false keptPercent=`)
				if logged != (err == nil) {
					t.Errorf("the log has %q after %v", &log, err)
				}
			})
		})
	}
}
