package status

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// slowly sends the messages of a reading, one every 9 s.
type slowly struct {
	adminv1.AdminServiceClient
	grpc.ClientStream
	ctx      context.Context //nolint:containedctx // as in the stream
	messages int
}

func (s *slowly) Watch(ctx context.Context, _ *adminv1.WatchRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[adminv1.WatchResponse], error) {
	s.ctx = ctx
	return s, nil
}

func (s *slowly) Recv() (*adminv1.WatchResponse, error) {
	select {
	case <-time.After(messageLimit - time.Second):
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	if s.messages--; s.messages == 0 {
		return &adminv1.WatchResponse{Reading: &adminv1.WatchReading{}}, nil
	}
	return &adminv1.WatchResponse{Section: adminv1.WatchRequest_SERVICES}, nil
}

// A long reading is not late as long as its messages come, but not for any time.
func TestStreamOfLongReadings(t *testing.T) {
	for messages, want := range map[int]codes.Code{6: codes.OK, 100: codes.Unavailable} {
		synctest.Test(t, func(t *testing.T) {
			s, err := Watch(t.Context(), &slowly{messages: messages})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			began := time.Now()
			if _, err := s.Next(); status.Code(err) != want || time.Since(began) > messageLimit+readingLimit {
				t.Errorf("%d messages: after %s the error is %v", messages, time.Since(began), err)
			}
		})
	}
}

// An object that cannot be decoded is an error of its section, until all its entries are sent again.
func TestStreamOfObjectsThatDoNotDecode(t *testing.T) {
	s := newStream()
	send := func(reset bool, name, object string) *Reading {
		t.Helper()
		err := s.take(&adminv1.WatchResponse{
			Section: adminv1.WatchRequest_DATAPLANES, Reset_: reset, Names: []string{name}, List: &adminv1.WatchResponse_Dataplanes{
				Dataplanes: &adminv1.ListDataplanesResponse{Dataplanes: []*adminv1.Dataplane{{Object: []byte(object)}}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return s.reading(time.Now())
	}
	if r := send(true, "default/a", `{"spec":5}`); r.ObjectsErr == nil || r.HealthErr != nil || r.RestartsErr != nil {
		t.Errorf("the errors are %v, %v and %v", r.ObjectsErr, r.HealthErr, r.RestartsErr)
	}
	if r := send(false, "default/b", `{"spec":{}}`); r.ObjectsErr == nil {
		t.Error("another object hides the error")
	}
	if r := send(true, "default/b", `{"spec":{}}`); r.ObjectsErr != nil || len(r.Dataplanes) != 1 {
		t.Errorf("after a reset: %v, %v", r.ObjectsErr, r.Dataplanes)
	}
}

// A control plane cannot make a viewer keep anything that it sends.
func TestStreamIsBounded(t *testing.T) {
	services := func(names, entries int) *adminv1.WatchResponse {
		m := &adminv1.WatchResponse{Section: adminv1.WatchRequest_SERVICES}
		for n := range names {
			m.Names = append(m.Names, fmt.Sprint("default/", n))
		}
		m.List = &adminv1.WatchResponse_Services{Services: &adminv1.ListServicesResponse{Services: make([]*adminv1.Service, entries)}}
		return m
	}
	long := &adminv1.WatchResponse{Removed: []string{strings.Repeat("x", maxBytes/2)}}
	for name, tc := range map[string]struct {
		sent []*adminv1.WatchResponse
		want codes.Code
	}{
		"as many entries as allowed": {[]*adminv1.WatchResponse{services(maxEntries, maxEntries)}, codes.OK},
		"more entries":               {[]*adminv1.WatchResponse{services(maxEntries+1, maxEntries+1)}, codes.Internal},
		"more names than entries":    {[]*adminv1.WatchResponse{services(2, 1)}, codes.Internal},
		"more entries than names":    {[]*adminv1.WatchResponse{services(1, 2)}, codes.Internal},
		"long reading":               {[]*adminv1.WatchResponse{long, long}, codes.Internal},
		"unknown sections":           {[]*adminv1.WatchResponse{{Section: 99, Error: &adminv1.WatchError{Code: 5}}, {Section: 100, Rest: true}}, codes.OK},
	} {
		s := newStream()
		var err error
		for _, m := range tc.sent {
			err = cmp.Or(err, s.take(m))
		}
		if status.Code(err) != tc.want || len(s.errs)+len(s.tails) > 0 {
			t.Errorf("%s: %v, and it keeps %v and %v", name, err, s.errs, s.tails)
		}
	}
}
