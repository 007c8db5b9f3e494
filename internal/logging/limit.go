package logging

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// Limits on lines that outsiders can cause, per message. Suppressed lines are counted, and the count is logged.
const (
	// One subject, such as an address or a proxy, may cause a burst, and then a number per second.
	subjectBurst = 20
	subjectRate  = rate.Limit(1)
	// Limit for all subjects together. It is large, since every proxy connects after a restart of the control plane.
	messageBurst = 200
	messageRate  = rate.Limit(1)
	// maxSubjects limits the memory of one message, since an unauthenticated client may have many addresses. Further
	// subjects share the total limit.
	maxSubjects = 1000
	// countInterval is how often the number of suppressed lines is logged.
	countInterval = 10 * time.Second
)

// keyPeer is the key of a caller's address, whatever identity the caller claims.
const keyPeer = "peer"

// claimed are the keys of a caller's identity, real or claimed. A line without these keys and without a peer is caused
// by the program itself, and is not limited.
var claimed = []string{"proxy", "node"}

// limited is a handler that limits lines caused by outsiders.
type limited struct {
	slog.Handler
	limiter *limiter
	subject subject
}

// limit wraps a handler.
func limit(h slog.Handler) slog.Handler {
	return &limited{Handler: h, limiter: &limiter{to: h, messages: map[string]*message{}}}
}

// Handle implements slog.Handler.
func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	s := h.subject
	r.Attrs(func(a slog.Attr) bool {
		s = s.with(a)
		return true
	})
	if who := s.key(); who != "" && r.Level > slog.LevelDebug && !h.limiter.allow(r.Message, who, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // a handler like any other
}

// WithAttrs implements slog.Handler.
func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	s := h.subject
	for _, a := range attrs {
		s = s.with(a)
	}
	return &limited{h.Handler.WithAttrs(attrs), h.limiter, s}
}

// WithGroup implements slog.Handler.
func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{h.Handler.WithGroup(name), h.limiter, h.subject}
}

// subject is the cause of a line: a caller.
type subject struct{ peer, name string }

func (s subject) with(a slog.Attr) subject {
	switch {
	case a.Key == keyPeer:
		s.peer = sourceOf(a.Value.String())
	case slices.Contains(claimed, a.Key):
		s.name = a.Value.String()
	}
	return s
}

// key returns a text that identifies the subject, or "". A caller may name any proxy, but has only its own addresses.
func (s subject) key() string { return cmp.Or(s.peer, s.name) }

// sourceOf returns the source of an address, which may include a port.
func sourceOf(address string) string {
	if at, err := netip.ParseAddrPort(address); err == nil {
		return connlimit.Source(at.Addr()).String()
	}
	if ip, err := netip.ParseAddr(address); err == nil {
		return connlimit.Source(ip).String()
	}
	return address
}

// limiter decides which lines are written.
type limiter struct {
	to slog.Handler

	mu       sync.Mutex
	messages map[string]*message // one per message of the program
}

// message is one constant message.
type message struct {
	all      *rate.Limiter
	subjects map[string]*rate.Limiter

	leftOut int // lines suppressed since the last logged count
	level   slog.Level
}

// allow reports whether a line may be written. It counts a suppressed line.
func (l *limiter) allow(text, who string, level slog.Level) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.messages[text]
	if m == nil {
		m = &message{all: rate.NewLimiter(messageRate, messageBurst), subjects: map[string]*rate.Limiter{}}
		l.messages[text] = m
	}
	if m.allows(who) && m.all.Allow() {
		return true
	}
	if m.leftOut++; m.leftOut == 1 {
		m.level = level
		time.AfterFunc(countInterval, func() { l.logCount(text) })
	}
	m.level = max(m.level, level)
	return false
}

// allows reports whether a subject may cause one more line.
func (m *message) allows(who string) bool {
	one := m.subjects[who]
	if one == nil {
		if len(m.subjects) >= maxSubjects {
			for name, other := range m.subjects {
				if other.Tokens() >= subjectBurst { // the subject is unused, so a new limiter is equal
					delete(m.subjects, name)
				}
			}
		}
		if len(m.subjects) >= maxSubjects {
			return true
		}
		one = rate.NewLimiter(subjectRate, subjectBurst)
		m.subjects[who] = one
	}
	return one.Allow()
}

// logCount logs how many lines of a message were suppressed.
func (l *limiter) logCount(text string) {
	l.mu.Lock()
	m := l.messages[text]
	count, level := m.leftOut, m.level
	m.leftOut = 0
	l.mu.Unlock()
	r := slog.NewRecord(time.Now(), level, "suppressed log lines", 0)
	r.AddAttrs(slog.String("message", text), slog.Int("count", count), slog.Duration("within", countInterval))
	_ = l.to.Handle(context.Background(), r) // nowhere to report the error
}
