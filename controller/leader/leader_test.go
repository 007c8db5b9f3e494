package leader

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// usual are the election times of a leader without Options.Times.
var usual = Times{}.withDefaults()

// leases is an API server with one Lease, and with the Secret of an earlier release's epoch.
type leases struct {
	coordinationv1.LeaseInterface
	away atomic.Bool

	mu      sync.Mutex // guards the rest
	lease   *coordination.Lease
	version int
	before  func()                 // is called before each write
	old     func() ([]byte, error) // nil without a secret
}

var errAway = errors.New("connection refused")

func (l *leases) Leases(string) coordinationv1.LeaseInterface { return l }

func (l *leases) Get(context.Context, string, metav1.GetOptions) (*coordination.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.away.Load():
		return nil, errAway
	case l.lease == nil:
		return nil, apierrors.NewNotFound(coordination.Resource("leases"), LeaseName)
	}
	return l.lease.DeepCopy(), nil
}

func (l *leases) Create(_ context.Context, lease *coordination.Lease, _ metav1.CreateOptions) (*coordination.Lease, error) {
	return l.write(lease, func() error {
		if l.lease != nil {
			return apierrors.NewAlreadyExists(coordination.Resource("leases"), LeaseName)
		}
		return nil
	})
}

func (l *leases) Update(_ context.Context, lease *coordination.Lease, _ metav1.UpdateOptions) (*coordination.Lease, error) {
	return l.write(lease, func() error {
		switch {
		case l.lease == nil:
			return apierrors.NewNotFound(coordination.Resource("leases"), LeaseName)
		case l.lease.ResourceVersion != lease.ResourceVersion:
			return apierrors.NewConflict(coordination.Resource("leases"), LeaseName, errors.New("changed"))
		}
		return nil
	})
}

func (l *leases) write(lease *coordination.Lease, check func() error) (*coordination.Lease, error) {
	if l.away.Load() {
		return nil, errAway
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before != nil {
		l.before()
	}
	if err := check(); err != nil {
		return nil, err
	}
	l.put(lease)
	return l.lease.DeepCopy(), nil
}

// put stores the Lease; the caller holds mu.
func (l *leases) put(lease *coordination.Lease) {
	l.version++
	l.lease = lease.DeepCopy()
	l.lease.ResourceVersion = strconv.Itoa(l.version)
}

// annotate sets the epoch of the Lease, which need not exist; "" removes it.
func (l *leases) annotate(value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName}}
	if l.lease != nil {
		lease = l.lease.DeepCopy()
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AnnotationEpoch, value)
	if value == "" {
		lease.Annotations = nil
	}
	l.put(lease)
}

// remove deletes the Lease.
func (l *leases) remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = nil
}

// epoch returns the annotation of the Lease.
func (l *leases) epoch() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil {
		return ""
	}
	return l.lease.Annotations[AnnotationEpoch]
}

// Read implements OldEpoch.
func (l *leases) Read(context.Context, string) ([]byte, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.old == nil {
		return nil, "", fs.ErrNotExist
	}
	data, err := l.old()
	return data, "1", err
}

// holder returns the holder of the Lease.
func (l *leases) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil || l.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.lease.Spec.HolderIdentity
}

func options(client *leases, identity string, tasks ...func(context.Context) error) Options {
	o := Options{Client: client, Namespace: "sonde-system", Identity: identity, OldEpoch: client, Logger: slog.New(slog.DiscardHandler)}
	for _, task := range tasks {
		o.Tasks = append(o.Tasks, func(ctx context.Context, _ int64) error { return task(ctx) })
	}
	return o
}

// The Lease is released only after the tasks have ended, so that two leaders never overlap.
func TestOneLeadsAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		var who atomic.Value // name of the leader
		who.Store("")
		task := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				if other := who.Swap(name); other != "" {
					t.Errorf("%s leads, and so does %s", name, other)
				}
				<-ctx.Done()
				time.Sleep(3 * time.Second)
				who.Store("")
				return nil
			}
		}
		first, endFirst := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- Run(first, options(client, "a", task("a"))) }()
		time.Sleep(time.Second)
		go func() { done <- Run(second, options(client, "b", task("b"))) }()
		time.Sleep(10 * time.Second)
		if who.Load() != "a" || client.holder() != "a" {
			t.Errorf("%q leads, %q has the Lease, want a", who.Load(), client.holder())
		}
		endFirst()
		if err := <-done; err != nil {
			t.Errorf("Run() of a = %v", err)
		}
		time.Sleep(3 * usual.Retry)
		if who.Load() != "b" || client.holder() != "b" {
			t.Errorf("%q leads, %q has the Lease, want b", who.Load(), client.holder())
		}
		endSecond()
		if err := <-done; err != nil || client.holder() != "" {
			t.Errorf("Run() of b = %v; %q has the Lease", err, client.holder())
		}
	})
}

// While the API server is unreachable for minutes, the tasks stop; they start again once it answers.
func TestAPIServerAway(t *testing.T) {
	for name, times := range map[string]Times{"usual times": {}, "shorter times": {Lease: 3 * time.Second, Renew: 2 * time.Second, Retry: 400 * time.Millisecond}} {
		virtual.Run(t, name, func(t *testing.T) {
			client := &leases{}
			var leading atomic.Bool
			var terms atomic.Int32
			o := options(client, "a", func(ctx context.Context) error {
				leading.Store(true)
				terms.Add(1)
				<-ctx.Done()
				leading.Store(false)
				return nil
			})
			o.Times = times
			times := times.withDefaults()
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, o) }()
			time.Sleep(time.Second)
			if !leading.Load() {
				t.Fatal("a does not lead")
			}
			client.away.Store(true)
			time.Sleep(times.Renew + 2*times.Retry)
			if leading.Load() {
				t.Error("a leads, although another replica may have its Lease")
			}
			time.Sleep(3 * time.Minute)
			client.away.Store(false)
			time.Sleep(times.Lease + 2*times.Retry)
			if !leading.Load() || terms.Load() != 2 {
				t.Errorf("leads: %t, in term %d; want true, 2", leading.Load(), terms.Load())
			}
			end()
			if err := <-done; err != nil || leading.Load() {
				t.Errorf("Run() = %v, leads: %t", err, leading.Load())
			}
		})
	}
}

func TestTaskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		broken := errors.New("broken")
		var stopped atomic.Bool
		err := Run(t.Context(), options(client, "a",
			func(context.Context) error { return broken },
			func(ctx context.Context) error {
				<-ctx.Done()
				stopped.Store(true)
				return nil
			}))
		if !errors.Is(err, broken) || !stopped.Load() || client.holder() != "" {
			t.Errorf("Run() = %v, the other task stopped: %t, %q has the Lease", err, stopped.Load(), client.holder())
		}
	})
}

// A replica that is not fit ends its tasks and releases the Lease at once, and does not take it again before it is
// fit.
func TestNotFitToLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		var unfit atomic.Bool
		unfit.Store(true)
		leads := map[string]*atomic.Bool{"a": {}, "b": {}}
		run := func(name string, fit func() error) (end func()) {
			o := options(client, name, func(ctx context.Context) error {
				leads[name].Store(true)
				<-ctx.Done()
				leads[name].Store(false)
				return nil
			})
			o.Fit = fit
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, o) }()
			return func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run() of %s = %v", name, err)
				}
			}
		}
		after := func(d time.Duration, a, b bool) {
			t.Helper()
			time.Sleep(d)
			if leads["a"].Load() != a || leads["b"].Load() != b {
				t.Errorf("a leads: %t, b leads: %t, want %t and %t", leads["a"].Load(), leads["b"].Load(), a, b)
			}
		}
		defer run("a", func() error {
			if unfit.Load() {
				return errors.New("it is behind")
			}
			return nil
		})()
		after(time.Minute, false, false)
		unfit.Store(false)
		after(restPeriod+2*usual.Retry, true, false)
		unfit.Store(true)
		endB := run("b", nil)
		after(fitPeriod+3*usual.Retry, false, true)
		after(time.Minute, false, true)
		endB()
		after(time.Minute, false, false)
		unfit.Store(false)
		after(restPeriod+usual.Lease, true, false)
	})
}

// A leader whose process was stopped for too long ends its tasks when it continues, before its elector notices.
func TestStoppedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for stop, again := range map[time.Duration]bool{usual.Renew - 2*fitPeriod: false, usual.Renew + 2*fitPeriod: true} {
			client := &leases{}
			var leads atomic.Bool
			var terms atomic.Int32
			var stopFor atomic.Int64
			o := options(client, "a", func(ctx context.Context) error {
				leads.Store(true)
				terms.Add(1)
				<-ctx.Done()
				leads.Store(false)
				return nil
			})
			o.Fit = func() error {
				time.Sleep(time.Duration(stopFor.Swap(0))) // a bubble cannot stop the whole process
				return nil
			}
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, o) }()
			time.Sleep(time.Minute)
			stopFor.Store(int64(stop))
			time.Sleep(stop + 2*fitPeriod)
			if leads.Load() == again {
				t.Errorf("after %s: it leads: %t", stop, leads.Load())
			}
			time.Sleep(restPeriod + usual.Lease)
			if want := map[bool]int32{false: 1, true: 2}[again]; !leads.Load() || terms.Load() != want {
				t.Errorf("after %s and a pause: it leads: %t, in term %d, want %d", stop, leads.Load(), terms.Load(), want)
			}
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
