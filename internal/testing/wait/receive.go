package wait

import "testing"

// Receive returns the next value of a channel, the zero value if that is closed. The test fails with what when its time is over, as in Until.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-Context(t).Done():
		t.Fatalf("not in time: %s", what)
	}
	panic("unreachable")
}
