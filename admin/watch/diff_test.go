package watch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// listed is a list of services with these protocols by name, and a number of objects that it leaves out.
func listed(leftOut uint32, services ...string) list {
	l := list{rest: &adminv1.ListServicesResponse{Tail: &adminv1.Tail{LeftOut: leftOut}}}
	for _, s := range services {
		name, protocol, _ := strings.Cut(s, "=")
		l.names = append(l.names, name)
		l.entries = append(l.entries, &adminv1.Service{Name: name, Protocol: protocol})
	}
	return l
}

// told describes messages in short.
func told(messages ...*adminv1.WatchResponse) []string {
	var all []string
	for _, m := range messages {
		words := []string{m.GetSection().String()}
		if e := m.GetError(); e != nil {
			words = append(words, fmt.Sprintf("%s: %s", codes.Code(e.GetCode()), e.GetMessage()))
		}
		if m.GetReset_() {
			words = append(words, "reset")
		}
		if m.GetRest() {
			words = append(words, fmt.Sprintf("left out %d", m.GetServices().GetTail().GetLeftOut()))
		}
		for i, s := range m.GetServices().GetServices() {
			words = append(words, m.GetNames()[i]+"="+s.GetProtocol())
		}
		for _, name := range m.GetRemoved() {
			words = append(words, "-"+name)
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

// A viewer gets the first reading as a whole, then only what differs from what it has.
func TestDifferences(t *testing.T) {
	v, err := newView([]section{adminv1.WatchRequest_SERVICES}, nil)
	if err != nil {
		t.Fatal(err)
	}
	away := &snapshot{failed: status.New(codes.Unavailable, "not read")}
	var last *snapshot
	read := func(l list) *snapshot {
		t.Helper()
		if last, err = last.next(l); err != nil {
			t.Fatal(err)
		}
		return last
	}
	steps := []struct {
		is   *snapshot
		want []string
	}{
		{nil, nil}, // not read yet
		{away, []string{"SERVICES Unavailable: not read"}},
		{away, nil},
		{read(listed(0, "a=tcp", "c=tcp")), []string{"SERVICES reset left out 0 a=tcp c=tcp"}},
		{read(listed(0, "a=tcp", "c=tcp")), nil},
		{read(listed(0, "a=http", "b=tcp", "c=tcp")), []string{"SERVICES a=http b=tcp"}},
		{read(listed(2, "b=tcp", "d=tcp")), []string{"SERVICES left out 2 d=tcp -a -c"}},
		{read(listed(2)), []string{"SERVICES -b -d"}},
		{away, []string{"SERVICES Unavailable: not read"}},
		{read(listed(2)), []string{"SERVICES reset left out 2"}},
	}
	for i, step := range steps {
		var messages []*adminv1.WatchResponse
		for m := range v.update(map[section]*snapshot{adminv1.WatchRequest_SERVICES: step.is}) {
			messages = append(messages, m)
		}
		if diff := cmp.Diff(step.want, told(messages...)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}

// A viewer that skipped readings gets what differs from the one it has.
func TestSkippedReadingsAreOneDifference(t *testing.T) {
	first, err := (*snapshot)(nil).next(listed(0, "a=tcp", "b=tcp"))
	if err != nil {
		t.Fatal(err)
	}
	last := first
	for i := range 10 {
		if last, err = last.next(listed(0, "a=tcp", fmt.Sprint("c=", i))); err != nil {
			t.Fatal(err)
		}
	}
	var messages []*adminv1.WatchResponse
	for m := range messagesOf(first, last) {
		messages = append(messages, m)
	}
	if diff := cmp.Diff([]string{"SERVICES c=9 -b"}, told(messages...)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func messagesOf(was, is *snapshot) func(func(*adminv1.WatchResponse) bool) {
	return messages(adminv1.WatchRequest_SERVICES, was, is)
}

// Messages have a limited size, whatever changes.
func TestMessagesAreShort(t *testing.T) {
	var services []string
	for i := range 1000 {
		services = append(services, fmt.Sprintf("service-%04d=%s", i, strings.Repeat("x", 500)))
	}
	full, err := (*snapshot)(nil).next(listed(1, services...))
	if err != nil {
		t.Fatal(err)
	}
	empty, err := full.next(listed(1))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ was, is *snapshot }{"added": {nil, full}, "removed": {full, empty}} {
		entries, resets, rests := 0, 0, 0
		for m := range messagesOf(tc.was, tc.is) {
			if n := proto.Size(m); n > 2*maxPartBytes {
				t.Errorf("%s: a message has %d bytes", name, n)
			}
			entries += len(m.GetServices().GetServices()) + len(m.GetRemoved())
			if m.GetReset_() {
				resets++
			}
			if m.GetRest() {
				rests++
			}
		}
		want := 0
		if tc.was == nil {
			want = 1
		}
		if entries != 1000 || resets != want || rests != want {
			t.Errorf("%s: %d entries, %d resets and %d tails, want 1000, %d and %d", name, entries, resets, rests, want, want)
		}
	}
}

// A text that protobuf cannot send makes the section fail, as the call would.
func TestInvalidText(t *testing.T) {
	if _, err := (*snapshot)(nil).next(listed(0, "a=\xff")); err == nil {
		t.Error("it has no error")
	}
}

// Each section takes over the response to its call, and sends it in the field that the viewer reads.
func TestKinds(t *testing.T) {
	for n := range adminv1.WatchRequest_Section_name {
		s := section(n)
		k, known := kinds[s]
		if s == adminv1.WatchRequest_SECTION_UNSPECIFIED {
			if known {
				t.Error("the unspecified section is known")
			}
			continue
		}
		l, err := k.read(t.Context(), fullCalls{})
		if err != nil || !known {
			t.Fatalf("%s: %v", s, err)
		}
		now, err := (*snapshot)(nil).next(l)
		if err != nil {
			t.Fatal(err)
		}
		for m := range messages(s, nil, now) {
			body := m.ProtoReflect()
			list := body.WhichOneof(body.Descriptor().Oneofs().ByName("list"))
			if list == nil || !strings.EqualFold(string(list.Name()), s.String()) {
				t.Errorf("%s is sent as %v", s, list)
			}
			if want := map[bool]int{true: 0, false: 1}[s == adminv1.WatchRequest_HEALTH]; len(m.GetNames()) != want {
				t.Errorf("%s has the names %q", s, m.GetNames())
			}
		}
	}
}

// withSet has a probe set with an ID.
type withSet struct {
	fullCalls
	id uint64
}

func (c *withSet) ListDataplanes(ctx context.Context, r *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	l, err := c.fullCalls.ListDataplanes(ctx, r)
	if r.GetProbeSets() {
		l.ProbeSets = []*adminv1.ProbeSet{{Id: c.id}}
	}
	return l, err
}

// Probe sets are sent when they differ, without the Dataplanes that do not.
func TestProbeSetsAreSent(t *testing.T) {
	const of = adminv1.WatchRequest_DATAPLANES
	calls := &withSet{}
	var last *snapshot
	for i, want := range []string{"sets 1, 1 dataplanes", "", "sets 2, 0 dataplanes"} {
		calls.id = []uint64{1, 1, 2}[i]
		l, err := kinds[of].read(t.Context(), calls)
		if err != nil {
			t.Fatal(err)
		}
		now, err := last.next(l)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for m := range messages(of, last, now) {
			for _, set := range m.GetDataplanes().GetProbeSets() {
				got = append(got, fmt.Sprintf("sets %d, %d dataplanes", set.GetId(), len(m.GetNames())))
			}
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("reading %d sends %q, want %q", i, text, want)
		}
		last = now
	}
}
