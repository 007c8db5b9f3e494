package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// secrets has the secret of the epoch.
type secrets struct {
	mu      sync.Mutex
	data    []byte // nil for none
	version int
	refuse  error  // of each write
	before  func() // is called before each write, with mu held
}

func (s *secrets) set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put([]byte(text))
}

func (s *secrets) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = nil
}

func (s *secrets) refuseWrites(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

func (s *secrets) put(data []byte) { s.data, s.version = data, s.version+1 }

func (s *secrets) Read(context.Context, string) ([]byte, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		return nil, "", fs.ErrNotExist
	}
	return s.data, strconv.Itoa(s.version), nil
}

func (s *secrets) Create(_ context.Context, _ string, data []byte) (string, error) {
	return s.write(data, func() error {
		if s.data != nil {
			return fs.ErrExist
		}
		return nil
	})
}

func (s *secrets) Update(_ context.Context, _ string, data []byte, version string) (string, error) {
	return s.write(data, func() error {
		switch {
		case s.data == nil:
			return fs.ErrNotExist
		case version != strconv.Itoa(s.version):
			return secret.ErrConflict
		}
		return nil
	})
}

func (s *secrets) write(data []byte, check func() error) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	if err := errors.Join(s.refuse, check()); err != nil {
		return "", err
	}
	s.put(data)
	return strconv.Itoa(s.version), nil
}

func TestTakeEpoch(t *testing.T) {
	// The clock of a bubble begins at this time.
	const now = 946684800
	tests := map[string]struct {
		kept  string // "" for none
		least int64
		want  int64
		err   string
	}{
		"the first":                                   {want: now},
		"after an earlier one":                        {kept: `{"epoch": 7}`, want: now},
		"after one of a faster clock":                 {kept: fmt.Sprintf(`{"epoch": %d}`, now+10), want: now + 11},
		"after one of this second":                    {kept: fmt.Sprintf(`{"epoch": %d}`, now), want: now + 1},
		"deleted, and this replica knows a later one": {least: now + 20, want: now + 21},
		"older than what this replica knows":          {kept: fmt.Sprintf(`{"epoch": %d}`, now+10), least: now + 20, want: now + 21},
		"zero":                                        {kept: `{"epoch": 0}`, err: "take epoch: read secret \"leader\": epoch: 0: must be from 1 to 9007199254740992"},
		"negative":                                    {kept: `{"epoch": -1}`, err: "epoch: -1: must be from 1 to 9007199254740992"},
		"nothing":                                     {kept: `{}`, err: "epoch: 0: must be from 1"},
		"too large":                                   {kept: `{"epoch": 9007199254740993}`, err: "epoch: 9007199254740993: must be from 1 to"},
		"much too large":                              {kept: `{"epoch": 1e60}`, err: "epoch: "},
		"the last one":                                {kept: `{"epoch": 9007199254740992}`, err: "epoch: 9007199254740993: must be from 1 to"},
		"no number":                                   {kept: `{"epoch": "soon"}`, err: "epoch: "},
		"garbage":                                     {kept: "\x00\xff", err: `read secret "leader": epoch: `},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &secrets{}
				if tc.kept != "" {
					s.set(tc.kept)
				}
				got, err := takeEpoch(t.Context(), epochs{s, SecretName}, "a", tc.least)
				if tc.err != "" {
					if err == nil || !strings.Contains(err.Error(), tc.err) || string(s.data) != tc.kept {
						t.Errorf("takeEpoch() = %d, %v with %q kept, want %q", got, err, s.data, tc.err)
					}
					return
				}
				if want := fmt.Sprintf(`{"epoch":%d,"replica":"a"}`, tc.want); err != nil || got != tc.want || string(s.data) != want {
					t.Errorf("takeEpoch() = %d, %v with %q kept, want %s", got, err, s.data, want)
				}
			})
		})
	}
}

// TestTakeEpochWithOthers has other writers be faster, for some time and for ever.
func TestTakeEpochWithOthers(t *testing.T) {
	begin := time.Now().Unix() + 1000
	other := func(n int64) []byte { return fmt.Appendf(nil, `{"epoch": %d}`, begin+n) }
	tests := map[string]struct {
		interfere func(s *secrets, n int64)
		times     int64
		want      int64
	}{
		"once":           {func(s *secrets, n int64) { s.put(other(n)) }, 1, begin + 2},
		"often":          {func(s *secrets, n int64) { s.put(other(n)) }, maxConflicts - 1, begin + maxConflicts},
		"too often":      {func(s *secrets, n int64) { s.put(other(n)) }, maxConflicts, 0},
		"one deletes it": {func(s *secrets, _ int64) { s.data = nil }, 1, begin + 1},
		"one deletes it, and another makes it": {func(s *secrets, n int64) {
			if s.data == nil {
				s.put(other(n))
			} else {
				s.data = nil
			}
		}, 2, begin + 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &secrets{data: other(0)}
			n := int64(0)
			s.before = func() {
				if n++; n <= tc.times {
					tc.interfere(s, n)
				}
			}
			got, err := takeEpoch(t.Context(), epochs{s, SecretName}, "a", 0)
			if tc.want == 0 {
				if !errors.Is(err, secret.ErrConflict) {
					t.Errorf("takeEpoch() = %d, %v, want a conflict", got, err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("takeEpoch() = %d, %v, want %d", got, err, tc.want)
			}
		})
	}
}

// TestWithoutEpoch checks that a replica that cannot take an epoch does not lead, says so, lets others try, and leads once it can.
func TestWithoutEpoch(t *testing.T) {
	tests := map[string]struct{ spoil, repair func(*secrets) }{
		"the secret is bad":            {func(s *secrets) { s.set(`{"epoch": 0}`) }, func(s *secrets) { s.remove() }},
		"the secret cannot be written": {func(s *secrets) { s.refuseWrites(errors.New("forbidden")) }, func(s *secrets) { s.refuseWrites(nil) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &leases{}
				tc.spoil(&client.secrets)
				epochs := make(chan int64, 1)
				var log bytes.Buffer
				o := options(client, "a")
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				o.Tasks = []Task{func(ctx context.Context, epoch int64) error {
					epochs <- epoch
					<-ctx.Done()
					return nil
				}}
				ctx, end := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- Run(ctx, o) }()
				time.Sleep(5 * time.Minute) //nolint:forbidigo // the time of a bubble
				synctest.Wait()
				if holder := client.holder(); len(epochs) != 0 || holder != "" {
					t.Errorf("%d tasks run, %q has the Lease, want none: there is no epoch", len(epochs), holder)
				}
				if n := strings.Count(log.String(), "level=ERROR msg=\"not leading: the next epoch cannot be taken"); n < 10 || n > 35 {
					t.Errorf("it tried %d times in 5 minutes, and says so:\n%s", n, &log)
				}
				tc.repair(&client.secrets)
				time.Sleep(restPeriod + 2*retryPeriod) //nolint:forbidigo // the time of a bubble
				synctest.Wait()
				if len(epochs) != 1 {
					t.Fatal("it does not lead, though it can")
				}
				if want := fmt.Sprintf("msg=leading replica=a epoch=%d", <-epochs); !strings.Contains(log.String(), want) {
					t.Errorf("no %q in\n%s", want, &log)
				}
				end()
				if err := <-done; err != nil {
					t.Errorf("Run() = %v", err)
				}
			})
		})
	}
}

// TestEpochsOfTerms has a replica lead three times: each term has a greater epoch, also if the secret was deleted within the second.
func TestEpochsOfTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		epochs := make(chan int64, 10)
		o := options(client, "a")
		o.Tasks = []Task{func(ctx context.Context, epoch int64) error {
			epochs <- epoch
			<-ctx.Done()
			return nil
		}}
		client.secrets.set(fmt.Sprintf(`{"epoch": %d}`, time.Now().Add(time.Hour).Unix())) // of a clock that is ahead
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		var last int64
		for range 3 {
			time.Sleep(leaseDuration) //nolint:forbidigo // the time of a bubble
			if epoch := <-epochs; epoch <= last {
				t.Errorf("epoch %d after %d", epoch, last)
			} else {
				last = epoch
			}
			client.secrets.remove()
			client.away.Store(true)
			time.Sleep(renewDeadline + 2*retryPeriod) //nolint:forbidigo // the time of a bubble
			client.away.Store(false)
		}
		end()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
