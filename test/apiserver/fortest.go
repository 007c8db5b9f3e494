package apiserver

import (
	"runtime"
	"testing"
)

// ForTest starts an API server, which ends with the test. It runs on its own thread, because the API server's
// programs end with the thread that started them.
func ForTest(t *testing.T) *Cluster {
	t.Helper()
	type started struct {
		cluster *Cluster
		err     error
	}
	result, end, ended := make(chan started), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		c, err := Start(t.Context())
		result <- started{c, err}
		<-end
	}()
	r := <-result
	t.Cleanup(func() {
		if r.err == nil {
			if err := r.cluster.Close(); err != nil {
				t.Error(err)
			}
		}
		close(end)
		<-ended
	})
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.cluster
}
