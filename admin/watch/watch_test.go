package watch

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

const proxies, healths, restarts = adminv1.WatchRequest_PROXIES, adminv1.WatchRequest_HEALTH, adminv1.WatchRequest_RESTARTS

// Twenty viewers cost as many readings as one, and nothing is read without one.
func TestViewersShareReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{})
		var all []*caller
		for range 20 {
			c := p.call(t, proxies)
			go c.follow()
			all = append(all, c)
			time.Sleep(37 * time.Millisecond)
		}
		before := p.lists.Load()
		time.Sleep(time.Minute)
		if n := p.lists.Load() - before; n != 60 {
			t.Errorf("%d readings in a minute, want 60", n)
		}
		for _, c := range all {
			c.end()
			<-c.ended
		}
		before = p.lists.Load()
		time.Sleep(time.Hour)
		if n := p.lists.Load() - before; n != 0 {
			t.Errorf("%d readings without a viewer", n)
		}
		if p.server.feed.last.sections[proxies] != nil {
			t.Error("the last reading is kept")
		}
	})
}

// A large mesh is read less often, but not arbitrarily.
func TestLongReadings(t *testing.T) {
	for takes, every := range map[time.Duration]time.Duration{
		50 * time.Millisecond: time.Second, 500 * time.Millisecond: 5 * time.Second, 5 * time.Second: 15 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := start(t, &plane{takes: takes})
			go p.call(t, proxies).follow()
			time.Sleep(every*10 - time.Millisecond)
			if n := p.lists.Load(); n != 10 {
				t.Errorf("%d readings of %s in %s, want one every %s", n, takes, every*10, every)
			}
		})
	}
}

// A viewer of another section makes a reading of all: its time is for all sections.
func TestReadingsAreOfOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{change: func(p *adminv1.Proxy) { p.Drain = time.Now().String() }})
		go p.call(t, proxies).follow()
		time.Sleep(700 * time.Millisecond)
		c := p.call(t, healths, proxies)
		var drain string
		for _, m := range c.read() {
			if m.GetSection() == proxies {
				drain = m.GetProxies().GetProxies()[0].GetDrain()
			}
		}
		if want := time.Now().String(); drain != want {
			t.Errorf("its proxies are of %s at %s", drain, want)
		}
	})
}

// A replica that does not answer makes readings long, but is no reason for pauses.
func TestReadingsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{waits: 3 * time.Second})
		go p.call(t, proxies).follow()
		time.Sleep(time.Minute - time.Millisecond)
		if n := p.lists.Load(); n != 20 {
			t.Errorf("%d readings of 3 s in a minute, want 20", n)
		}
	})
}

// One reading that waits for a processor does not make the next one late.
func TestOneLongReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{takes: 50 * time.Millisecond})
		p.change = func(*adminv1.Proxy) {
			if p.lists.Load() == 10 {
				time.Sleep(700 * time.Millisecond)
			}
		}
		go p.call(t, proxies).follow()
		time.Sleep(time.Minute - time.Millisecond)
		if n := p.lists.Load(); n != 60 {
			t.Errorf("%d readings in a minute, want 60", n)
		}
	})
}

// Only changes are sent, each within a second, and the end of each reading.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := start(t, &plane{change: func(p *adminv1.Proxy) { p.Draining = time.Since(began) > 3*time.Second }})
		c := p.call(t, proxies)
		for i, want := range []int{1, 0, 0, 0, 1, 0} {
			if got := c.read(); len(got) != want {
				t.Errorf("reading %d has %v, want %d messages", i, got, want)
			}
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("six readings took %s", took)
		}
	})
}

// Each section needs its right, which is checked again. A section without it has an error, and the others go on.
func TestRightsAreCheckedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Pointer[map[string]error]
		answers.Store(&map[string]error{})
		p := start(t, &plane{rights: func(need adminv1.Right) (string, error) { return "operator", (*answers.Load())[need.Resource] }})
		c := p.call(t, healths, proxies)
		is := func(what string, want ...string) {
			t.Helper()
			var got []string
			for range 65 { // with one check of the rights
				got = slices.Concat(got, told(c.read()...))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		may := func(rights map[string]error) { answers.Store(&rights) }
		is("all allowed", "HEALTH reset left out 0", "PROXIES reset left out 0")
		may(map[string]error{"proxies": status.Error(codes.PermissionDenied, "no")})
		is("proxies denied", "PROXIES PermissionDenied: no")
		before := p.lists.Load()
		c.read()
		if n := p.lists.Load() - before; n != 0 {
			t.Errorf("proxies are listed for a viewer that may not see them")
		}
		may(nil)
		is("proxies allowed again", "PROXIES reset left out 0")
		may(map[string]error{"proxies": status.Error(codes.PermissionDenied, "no"), "health": status.Error(codes.PermissionDenied, "never")})
		is("all denied", "HEALTH PermissionDenied: never", "PROXIES PermissionDenied: no")
		if status.Code(c.err) != codes.PermissionDenied {
			t.Errorf("the call ends with %v", c.err)
		}
	})
}

// A token that has expired ends the call, and so does an API server that does not answer: the viewer sees that it is
// blind.
func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := start(t, &plane{rights: func(adminv1.Right) (string, error) {
			if time.Since(began) > 90*time.Second {
				return "", status.Error(codes.Unauthenticated, "expired")
			}
			return "operator", nil
		}})
		c := p.call(t, proxies)
		c.follow()
		if took := time.Since(began); status.Code(c.err) != codes.Unauthenticated || took < 90*time.Second || took > 2*time.Minute+30*time.Second {
			t.Errorf("it ends after %s with %v", took, c.err)
		}
	})
}

func TestInvalidRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{})
		var many []section
		for n := range section(maxSections + 1) {
			many = append(many, n+1)
		}
		for name, sections := range map[string][]section{"none": nil, "twice": {proxies, proxies}, "unspecified": {0}, "too many": many} {
			c := p.call(t, sections...)
			if <-c.ended; status.Code(c.err) != codes.InvalidArgument || !strings.Contains(c.err.Error(), "sections: ") {
				t.Errorf("%s: %v", name, c.err)
			}
		}
	})
}

// A client of a later release gets the sections that exist.
func TestUnknownSections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var denies atomic.Bool
		p := start(t, &plane{rights: func(adminv1.Right) (string, error) {
			if denies.Load() {
				return "", status.Error(codes.PermissionDenied, "no")
			}
			return "operator", nil
		}})
		c := p.call(t, 99, healths)
		if diff := cmp.Diff([]string{"99 Unimplemented: section 99: this release does not have it", "HEALTH reset left out 0"}, told(c.read()...)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		denies.Store(true)
		if c.follow(); status.Code(c.err) != codes.PermissionDenied {
			t.Errorf("without a right it ends with %v", c.err)
		}
		c = p.call(t, 99)
		if c.follow(); status.Code(c.err) != codes.Unimplemented {
			t.Errorf("with no known section it ends with %v", c.err)
		}
	})
}

// A viewer that does not read is cut off. Others are not affected, and one that is slow skips readings.
func TestViewerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drain atomic.Int64
		p := start(t, &plane{change: func(p *adminv1.Proxy) { p.Drain = time.Duration(drain.Add(1)).String() }})
		began := time.Now()
		deaf, slow, good := p.call(t, proxies), p.call(t, proxies), p.call(t, proxies)
		go good.follow()
		<-deaf.ended
		if took := time.Since(began); status.Code(deaf.err) != codes.Aborted || took != sendTimeout {
			t.Errorf("it ends after %s with %v", took, deaf.err)
		}
		if <-slow.ended; status.Code(slow.err) != codes.Aborted {
			t.Errorf("the other one that does not read ends with %v", slow.err)
		}
		slow = p.call(t, proxies)
		slow.read()
		time.Sleep(9 * time.Second)
		if got := append(slow.read(), slow.read()...); len(got) > 2 || got[len(got)-1].GetProxies().GetProxies()[0].GetDrain() != time.Duration(drain.Load()).String() {
			t.Errorf("after 9 s of %d changes it gets %v", drain.Load(), got)
		}
		select {
		case <-good.ended:
			t.Errorf("the viewer that reads ends with %v", good.err)
		default:
		}
	})
}

// Agents are asked now and then, once for all viewers. One that hangs stays so until the next answer, or session.
func TestAgentsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var session atomic.Int64
		p := start(t, &plane{
			change: func(p *adminv1.Proxy) {
				p.Agent = &adminv1.Agent{ConnectedSince: timestamppb.New(began.Add(time.Duration(session.Load())))}
			},
			hang: func() (map[mesh.ID]bool, []string) {
				time.Sleep(2 * time.Second)
				return map[mesh.ID]bool{"default/web-1": true}, []string{"replica-b"}
			},
		})
		hangs := func(m *adminv1.WatchResponse) bool {
			return m.GetProxies().GetProxies()[0].GetAgent().GetUnresponsive()
		}
		c := p.call(t, proxies)
		go p.call(t, proxies).follow()
		first := c.read()
		if took := time.Since(began); len(first) != 1 || !hangs(first[0]) || took != 2*time.Second {
			t.Errorf("after %s the first reading is %v", took, first)
		}
		if missing := first[0].GetProxies().GetTail().GetMissingReplicas(); !slices.Equal(missing, []string{"replica-b"}) {
			t.Errorf("the missing replicas are %q", missing)
		}
		for range 10 {
			if got := c.read(); len(got) != 0 {
				t.Errorf("nothing has changed, and it gets %v", got)
			}
		}
		session.Store(1)
		if got := c.read(); len(got) != 1 || hangs(got[0]) {
			t.Errorf("with a new session it gets %v", got)
		}
		go c.follow()
		time.Sleep(time.Minute)
		if n := p.asks.Load(); n < 4 || n > 6 {
			t.Errorf("agents were asked %d times in 73 s", n)
		}
		if n := p.lists.Load(); n < 70 {
			t.Errorf("%d readings in 73 s: they wait for agents", n)
		}
	})
}

// Before the first view, objects fail at once, and other sections do not wait for them.
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{})
		away := status.Error(codes.Unavailable, "not read")
		p.notReady.Store(&away)
		c := p.call(t, proxies, restarts, healths)
		want := []string{"PROXIES Unavailable: not read", "RESTARTS reset left out 0", "HEALTH reset left out 0"}
		if diff := cmp.Diff(want, told(c.read()...)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		p.notReady.Store(nil)
		if diff := cmp.Diff([]string{"PROXIES reset left out 0"}, told(c.read()...)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{})
		c := p.call(t, proxies)
		c.read()
		p.server.Stop()
		for _, c := range []*caller{c, p.call(t, proxies)} {
			if c.follow(); status.Code(c.err) != codes.Unavailable {
				t.Errorf("the call ends with %v", c.err)
			}
		}
	})
}

// After Stop, a reading in progress does not ask agents.
func TestStopDuringAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{})
		p.change = func(*adminv1.Proxy) {
			if p.lists.Load() == 16 { // the next question is due
				p.server.Stop()
			}
		}
		c := p.call(t, proxies)
		c.follow()
		p.running.Wait()
		p.server.Wait()
		if n := p.asks.Load(); status.Code(c.err) != codes.Unavailable || n != 1 {
			t.Errorf("agents were asked %d times, and it ends with %v", n, c.err)
		}
	})
}

// A caller without any right sees why, and takes no seat.
func TestCallerWithoutRightsTakesNoSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &plane{rights: func(adminv1.Right) (string, error) { return "operator", status.Error(codes.PermissionDenied, "no") }})
		c := p.call(t, proxies, healths)
		m := <-c.took // the handler waits for the reader
		p.server.seats.mu.Lock()
		n := p.server.seats.count
		p.server.seats.mu.Unlock()
		got := append(told(m), told(c.read()...)...)
		if diff := cmp.Diff([]string{"PROXIES PermissionDenied: no", "HEALTH PermissionDenied: no"}, got); n != 0 || diff != "" {
			t.Errorf("it takes %d seats and gets (-want +got):\n%s", n, diff)
		}
		c.follow()
		if status.Code(c.err) != codes.PermissionDenied || p.lists.Load() != 0 {
			t.Errorf("after %d readings it ends with %v", p.lists.Load(), c.err)
		}
	})
}
