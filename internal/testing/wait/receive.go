package wait

import "testing"

// Receive returns the next value of a channel, or the zero value if the channel is closed. If its time is over, as in
// Until, the test fails with what.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-Context(t).Done():
		t.Fatalf("timeout: %s", what)
	}
	panic("unreachable")
}
