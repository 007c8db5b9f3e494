package replicas_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/replicas"
)

// verdicts is a replicas.Freeze that keeps the verdict of the highest epoch.
type verdicts struct {
	peers *replicas.Peers
	leads bool

	mu      sync.Mutex
	verdict *peerv1.Freeze
}

var _ replicas.Freeze = (*verdicts)(nil)

func (v *verdicts) Tell() *peerv1.Freeze {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.verdict
}

func (v *verdicts) Hear(m *peerv1.Freeze) error {
	v.mu.Lock()
	newer := m.GetEpoch() > v.verdict.GetEpoch()
	if newer {
		v.verdict = m
	}
	v.mu.Unlock()
	if newer {
		v.peers.ChangedFreeze()
	}
	return nil
}

func (v *verdicts) Order(r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	switch {
	case !v.leads:
		return nil, nil
	case r.GetZone() != "a":
		return nil, status.Error(codes.NotFound, "no such zone")
	}
	return &adminv1.FreezeZoneResponse{KeptPercent: 100}, nil
}

// has checks a replica's verdict, without waiting.
func (v *verdicts) has(t *testing.T, epoch int64) {
	t.Helper()
	synctest.Wait()
	if got := v.Tell().GetEpoch(); got != epoch {
		t.Errorf("epoch %d, want %d", got, epoch)
	}
}

// A verdict of one replica reaches all others, even a replica that starts after the first one is gone.
func TestFreezeIsToldOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		with := func(name string) (*replica, *verdicts) {
			r := c.start(name)
			v := &verdicts{peers: r.Peers}
			r.ConnectFreeze(v)
			return r, v
		}
		a, ofA := with("a")
		b, ofB := with("b")
		connect(a, b)
		if err := ofA.Hear(&peerv1.Freeze{Epoch: 7}); err != nil {
			t.Fatal(err)
		}
		ofB.has(t, 7)
		a.stop()
		third, ofC := with("c")
		connect(b, third)
		ofC.has(t, 7)
		if err := ofC.Hear(&peerv1.Freeze{Epoch: 8}); err != nil {
			t.Fatal(err)
		}
		ofB.has(t, 8)
	})
}

func TestOrderFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		ofB := &verdicts{peers: b.Peers, leads: true}
		b.ConnectFreeze(ofB)
		connect(a, b)
		done, missing, err := a.OrderFreeze(t.Context(), &adminv1.FreezeZoneRequest{Zone: "a"})
		if done.GetKeptPercent() != 100 || len(missing) > 0 || err != nil {
			t.Errorf("OrderFreeze() = %v, %q, %v", done, missing, err)
		}
		if done, _, err := a.OrderFreeze(t.Context(), &adminv1.FreezeZoneRequest{Zone: "c"}); status.Code(err) != codes.NotFound {
			t.Errorf("OrderFreeze() of an unknown zone = %v, %v", done, err)
		}
		if done, missing, err := b.OrderFreeze(t.Context(), &adminv1.FreezeZoneRequest{Zone: "a"}); done != nil || len(missing) > 0 || err != nil {
			t.Errorf("OrderFreeze() at replicas that do not lead = %v, %q, %v", done, missing, err)
		}
		b.stop()
		if done, missing, err := a.OrderFreeze(t.Context(), &adminv1.FreezeZoneRequest{Zone: "a"}); done != nil || !slices.Equal(missing, []string{"b"}) || err != nil {
			t.Errorf("OrderFreeze() without the leader = %v, %q, %v", done, missing, err)
		}
	})
}

func TestStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start("a"), c.start("b")
		connect(a, b)
		all, missing := a.Streaming(t.Context())
		want, _ := a.Peers.Streams(t.Context())
		if len(all) != len(want) || len(all) == 0 || len(missing) > 0 {
			t.Errorf("Streaming() = %v, %q, want the streams of %v", all, missing, want)
		}
		for id := range want {
			if !all[id] {
				t.Errorf("%s has no stream", id)
			}
		}
		b.stop()
		if all, missing := a.Streaming(t.Context()); len(all) > 0 || !slices.Equal(missing, []string{"b"}) {
			t.Errorf("Streaming() = %v, missing %q", all, missing)
		}
	})
}

// An invalid verdict ends its stream.
func TestBadFreezes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		b := c.start("b")
		v := &verdicts{peers: b.Peers}
		b.ConnectFreeze(v)
		b.Follow(map[string]string{})
		long := strings.Repeat("x", 2000)
		for want, m := range map[string]*peerv1.Freeze{
			"freeze.epoch: -1":          {Epoch: -1},
			"freeze.lost: 1001":         {Epoch: 9, Lost: make([]*peerv1.FreezeLoss, 1001)},
			"freeze.lost: 2000 bytes":   {Epoch: 9, Lost: []*peerv1.FreezeLoss{{Zone: long}}},
			"freeze.zones: 2000 bytes":  {Epoch: 9, Zones: []*peerv1.FreezeZone{{Name: long}}},
			"freeze.zones.since":        {Epoch: 9, Zones: []*peerv1.FreezeZone{{Since: &timestamppb.Timestamp{Nanos: -1}}}},
			"freeze.orders: 2000 bytes": {Epoch: 9, Orders: []*peerv1.FreezeOrder{{Zone: long}}},
		} {
			stream := c.report(b)
			_ = stream.Send(helloOf("a"))
			_ = stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Freeze{Freeze: m}}) // Recv returns the error
			if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
				t.Errorf("the stream ends with %v, want an error with %q", err, want)
			}
		}
		if v.Tell() != nil {
			t.Error("a verdict was accepted")
		}
	})
}
