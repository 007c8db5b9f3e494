package watch

import (
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// A caller at the limit is refused. When all seats are taken, callers with few take seats from the one with the most.
func TestSeats(t *testing.T) {
	s := seats{taken: map[account][]*seat{}}
	of := func(name string) account { return account{caller: name} }
	lost := map[string]int{}
	take := func(name string) error {
		_, err := s.take(of(name), func() { lost[name]++ })
		return err
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		for range maxPerCaller {
			if err := take(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := take(name); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s has one more: %v", name, err)
		}
	}
	for range maxPerCaller {
		_ = take("e") // until it has as many as the others
	}
	if n := len(s.taken[of("e")]); s.count != maxViewers || n < maxViewers/5-1 || n > maxViewers/5+1 {
		t.Errorf("the newest caller has %d of %d seats", n, s.count)
	}
	if err := take("e"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("it takes more than its share: %v", err)
	}
	if len(lost) != 4 || lost["e"] != 0 {
		t.Errorf("seats were lost by %v", lost)
	}
	leave, err := s.take(of("f"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	leave()
	if s.count != maxViewers-1 || len(s.taken[of("f")]) != 0 {
		t.Errorf("after the end of a call %d seats are taken, %d of it", s.count, len(s.taken[of("f")]))
	}
}

// An account has the same places wherever it calls from. People who share the admin token are told apart.
func TestSeatsOfOneAccount(t *testing.T) {
	for shared, want := range map[bool]int{false: maxPerCaller, true: 2 * maxPerCaller} {
		synctest.Test(t, func(t *testing.T) {
			p := &plane{}
			if !shared {
				p.rights = func(adminv1.Right) (string, error) { return "system:serviceaccount:shop:reader", nil }
			}
			start(t, p)
			var all []*caller
			for n := range 4 * maxPerCaller {
				c := p.callFrom(t, net.IPv4(10, 0, 0, byte(n%2)), healths)
				go c.follow()
				all = append(all, c)
				synctest.Wait()
			}
			if p.server.seats.count != want {
				t.Errorf("shared %t: %d seats", shared, p.server.seats.count)
			}
			for _, c := range all {
				c.end()
				<-c.ended
			}
		})
	}
}
