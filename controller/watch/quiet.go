package watch

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	// complainEvery is the interval of logs while a kind cannot be read. complainAgain is the minimum time between the
	// logs of two losses.
	complainEvery = 5 * time.Minute
	complainAgain = 10 * time.Second
)

// quiet returns a context in which client-go logs an error when the API server is lost, and then every complainEvery.
// Otherwise it would log each failure, and it retries every two seconds.
func (s *Store[O, R]) quiet(ctx context.Context) context.Context {
	log := klog.FromContext(ctx)
	// klog.New would initialise the sink, which all contexts share
	return klog.NewContext(ctx, log.WithSink(quietSink{log.GetSink(), s.mayComplain}))
}

// mayComplain reports whether an error should be logged.
func (s *Store[O, R]) mayComplain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause := complainEvery
	if s.lost.Since.After(s.complained) {
		pause = complainAgain
	}
	now := time.Now()
	if now.Sub(s.complained) < pause {
		return false
	}
	s.complained = now
	return true
}

// quietSink drops errors unless mayComplain allows them.
type quietSink struct {
	klog.LogSink

	may func() bool
}

// Error implements klog.LogSink.
func (q quietSink) Error(err error, msg string, keysAndValues ...any) {
	if q.may() {
		q.LogSink.Error(err, msg, keysAndValues...)
	}
}

// WithValues implements klog.LogSink.
func (q quietSink) WithValues(keysAndValues ...any) klog.LogSink {
	return quietSink{q.LogSink.WithValues(keysAndValues...), q.may}
}

// WithName implements klog.LogSink.
func (q quietSink) WithName(name string) klog.LogSink {
	return quietSink{q.LogSink.WithName(name), q.may}
}
