package watch

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// call is a call in progress.
type call struct {
	server *Server
	view   *view
	stream adminv1.AdminService_WatchServer
	// checks receives the sections that the rights checks have denied.
	checks chan map[section]*status.Status
	leave  func() // the feed
}

// serve sends readings until ctx ends, or the viewer has the right to no section.
func (c *call) serve(ctx context.Context) error {
	c.leave = c.server.feed.join(c.view.allowed())
	defer func() { c.leave() }()
	var sent time.Time // the start of the reading that was sent last
	for len(c.view.allowed()) > 0 {
		now, err := c.server.feed.read(ctx, c.view.allowed())
		if err != nil {
			return ended(ctx)
		}
		changed, err := c.update(ctx, &now, sent)
		if err != nil {
			return err
		}
		if changed {
			sent = time.Time{}
			continue
		}
		sent = now.began
		next := time.NewTimer(time.Until(now.next))
		select {
		case <-next.C:
		case denied := <-c.checks:
			if c.allow(denied) {
				sent = time.Time{}
			}
		case <-ctx.Done():
			next.Stop()
			return ended(ctx)
		}
		next.Stop()
	}
	return c.refuse(ctx)
}

// refuse sends the error of each section as a whole reading, so that the viewer shows it, and returns one of them.
func (c *call) refuse(ctx context.Context) error {
	why := c.view.refusal()
	if _, err := c.update(ctx, &reading{began: time.Now()}, time.Time{}); err != nil {
		return err
	}
	return why
}

// update sends a reading, and its end unless it is the one that began at sent. It stops when the rights have changed.
func (c *call) update(ctx context.Context, now *reading, sent time.Time) (changed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, updateTimeout, errLong)
	defer cancel()
	for m := range c.view.update(now.sections) {
		if err := c.send(ctx, m); err != nil {
			return false, err
		}
		select {
		case denied := <-c.checks:
			if c.allow(denied) {
				return true, nil
			}
		default:
		}
	}
	if now.began.Equal(sent) {
		return false, nil
	}
	return false, c.send(ctx, now.end())
}

// allow takes over the result of a check of the rights, and reports whether it differs from the one before.
func (c *call) allow(denied map[section]*status.Status) (changed bool) {
	if maps.EqualFunc(c.view.denied, denied, func(a, b *status.Status) bool { return a.String() == b.String() }) {
		return false
	}
	leave := c.leave
	c.view.denied = denied
	c.leave = c.server.feed.join(c.view.allowed())
	leave() // later, so that the feed keeps what is still watched
	return true
}

// end returns the message after all changes of a reading.
func (r *reading) end() *adminv1.WatchResponse {
	return &adminv1.WatchResponse{Reading: &adminv1.WatchReading{
		Age: durationpb.New(time.Since(r.began)), Next: durationpb.New(max(0, time.Until(r.next))),
	}}
}

// send sends a message, unless the viewer does not read. Then Send returns when the call has ended.
func (c *call) send(ctx context.Context, m *adminv1.WatchResponse) error {
	sent := make(chan error, 1)
	c.server.sends.Go(func() { sent <- c.stream.Send(m) })
	late := time.NewTimer(sendTimeout)
	defer late.Stop()
	select {
	case err := <-sent:
		return err
	case <-late.C:
		return errSlow
	case <-ctx.Done():
		return ended(ctx)
	}
}
