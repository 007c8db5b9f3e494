package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// TestStatusWatch has readings that differ, then fail, and then succeed again.
func TestStatusWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const well, ill = "ok: 1 mesh", "not ok: 1 error"
		away := &exit.Error{Code: exit.Unreachable, Err: errors.New("no control plane at\n127.0.0.1:5681")}
		readings := []struct {
			summary string
			err     error
		}{{well, nil}, {well, nil}, {ill, nil}, {"", away}, {"", away}, {ill, nil}, {"", errors.New("not allowed")}}
		var stdout, stderr bytes.Buffer
		w := &statusWatcher{out: &stdout, short: true, read: func(context.Context) (*status.Report, error) {
			now := readings[0]
			readings = readings[1:]
			return &status.Report{Summary: now.summary, At: time.Now().UTC()}, now.err
		}}
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetErr(&stderr)
		if err := w.watch(cmd); err == nil || err.Error() != "not allowed" {
			t.Errorf("it ends with %v", err)
		}
		const wantOut = "2000-01-01T00:00:00Z\nok: 1 mesh\n\n2000-01-01T00:00:04Z\nnot ok: 1 error\n\n2000-01-01T00:00:10Z\nnot ok: 1 error\n\n"
		if diff := gocmp.Diff(wantOut, stdout.String()); diff != "" {
			t.Errorf("stdout (-want +got):\n%s", diff)
		}
		const wantErr = "sondectl: blind since 2000-01-01T00:00:04Z: no control plane at 127.0.0.1:5681; asking again every 2s\nsondectl: the control plane answers again\n"
		if diff := gocmp.Diff(wantErr, stderr.String()); diff != "" {
			t.Errorf("stderr (-want +got):\n%s", diff)
		}
	})
}

// TestStatusWatchFollows has a control plane that sends reports, is away, has too many viewers, and is of an earlier
// release for a while.
func TestStatusWatchFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := func(summary string) *status.Report { return &status.Report{Summary: summary, At: time.Now().UTC()} }
		away := &exit.Error{Code: exit.Unreachable, Err: errors.New("no control plane")}
		var stdout, stderr bytes.Buffer
		var reads, follows []time.Time
		w := &statusWatcher{out: &stdout, short: true}
		w.read = func(context.Context) (*status.Report, error) {
			if reads = append(reads, time.Now()); len(reads) == 1 {
				time.Sleep(5 * time.Second) // no reason for a pause before follow
			}
			return report("ok: 1 mesh"), nil
		}
		w.follow = func(_ context.Context, take func(*status.Report) error) error {
			switch follows = append(follows, time.Now()); len(follows) {
			case 1:
				time.Sleep(time.Second)
				return cmp.Or(take(report("ok: 1 mesh")), take(report("not ok: 1 error")), take(report("not ok: 1 error")))
			case 2:
				time.Sleep(5 * time.Minute)
				return cmp.Or(take(report("not ok: 1 error")), error(away))
			case 3:
				return grpcstatus.Error(codes.ResourceExhausted, "too many")
			case 4:
				return grpcstatus.Error(codes.Unimplemented, "unknown method Watch")
			}
			return errors.New("not allowed")
		}
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetErr(&stderr)
		if err := w.watch(cmd); err == nil || err.Error() != "not allowed" || len(follows) != 5 {
			t.Fatalf("after %d calls it ends with %v", len(follows), err)
		}
		wantOut := "2000-01-01T00:00:05Z\nok: 1 mesh\n\n2000-01-01T00:00:08Z\nnot ok: 1 error\n\n" + reads[1].UTC().Format(time.RFC3339) + "\nok: 1 mesh\n\n"
		if diff := gocmp.Diff(wantOut, stdout.String()); diff != "" {
			t.Errorf("stdout (-want +got):\n%s", diff)
		}
		const wantErr = "sondectl: blind since 2000-01-01T00:05:10Z: no control plane; asking again every 2s\nsondectl: the control plane answers again\n"
		if diff := gocmp.Diff(wantErr, stderr.String()); diff != "" {
			t.Errorf("stderr (-want +got):\n%s", diff)
		}
		if pause := follows[3].Sub(follows[2]); pause < refusedPause*3/4 || pause > refusedPause*5/4 {
			t.Errorf("it is refused, and tries again after %s", pause)
		}
		if polled := follows[4].Sub(follows[3]); polled != followAgain || len(reads) < 100 {
			t.Errorf("it polls %d times within %s", len(reads), polled)
		}
	})
}

func TestStatusWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, signal := context.WithCancel(t.Context())
		cmd := &cobra.Command{}
		cmd.SetContext(ctx)
		w := &statusWatcher{out: &bytes.Buffer{}, read: func(context.Context) (*status.Report, error) { return &status.Report{}, nil }}
		ended := make(chan error, 1)
		go func() { ended <- w.watch(cmd) }()
		synctest.Wait()
		signal()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
	})
}

// One agent that hangs makes each reading slow, but not the pauses between readings. A slow control plane is asked less
// often.
func TestStatusWatchOfHungAgents(t *testing.T) {
	for takes, want := range map[time.Duration]int{status.AskTakes: 15, status.AskTakes + time.Second: 5} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
			defer cancel()
			cmd := &cobra.Command{}
			cmd.SetContext(ctx)
			readings := 0
			w := &statusWatcher{out: &bytes.Buffer{}, read: func(ctx context.Context) (*status.Report, error) {
				if ctx.Err() == nil {
					readings++
				}
				time.Sleep(takes)
				return &status.Report{}, nil
			}}
			if err := w.watch(cmd); err != nil || readings != want {
				t.Errorf("%d readings of %s within 59 s, want %d; it ends with %v", readings, takes, want, err)
			}
		})
	}
}

// The first reading reports errors of the command line, or that no control plane answers.
func TestStatusWatchNeedsAFirstReading(t *testing.T) {
	away := &exit.Error{Code: exit.Unreachable, Err: errors.New("no control plane")}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	w := &statusWatcher{read: func(context.Context) (*status.Report, error) { return nil, away }}
	if err := w.watch(cmd); !errors.Is(err, away) {
		t.Errorf("it ends with %v", err)
	}
}
