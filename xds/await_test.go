package xds

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwait checks which proxies Await waits for.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{DrainTime: time.Hour})
		f.want("m/a", "CDS x@1 EDS x@1 LDS l@1")
		p := f.delta().listen()
		p.send(ask("m/a", "CDS"))
		cluster := p.next()
		await := func() <-chan struct{} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				f.server.Await(t.Context(), []string{"m/no-one", "m/a"})
			}()
			return done
		}
		waits := func(what string, done <-chan struct{}) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case <-done:
				t.Errorf("Await did not wait for the answer to %s", what)
			default:
			}
		}
		returns := func(what string, done <-chan struct{}) {
			t.Helper()
			time.Sleep(awaitInterval)
			synctest.Wait()
			select {
			case <-done:
			default:
				t.Fatalf("Await still waits, after %s", what)
			}
		}

		done := await()
		waits("the cluster", done)
		p.send(ack(cluster, ""))
		returns("the cluster was accepted", done)
		p.send(ask("", "EDS", "x"))
		p.send(ack(p.next(), ""))
		p.send(ask("", "LDS"))
		listener := p.next()
		returns("all but the listener was accepted", await())
		p.send(ack(listener, ""))

		f.want("m/a", "CDS x@1 EDS x@2 LDS l@1")
		done = await()
		waits("the endpoints", done)
		p.send(ack(p.next(), ""))
		returns("the endpoints were accepted", done)

		f.want("m/a", "CDS x@1 EDS x@3 LDS l@1")
		r := p.next()
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f.server.Await(short, []string{"m/a"})
		if short.Err() == nil {
			t.Error("Await did not wait until its context ended")
		}
		done = await()
		if err := p.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		expect(t, <-p.ended, io.EOF)
		returns("the stream ended with "+said(r)+" unanswered", done)
	})
}

// TestAwaitNoRemovals checks that Await does not wait for removals that wait for a drain.
func TestAwaitNoRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{DrainTime: time.Hour})
		f.want("m/a", "CDS x@1 y@1 EDS x@1 y@1 LDS l@1")
		p := f.delta().listen()
		p.send(ask("m/a", "CDS"))
		p.send(ack(p.next(), ""))
		p.send(ask("", "EDS", "x", "y"))
		p.send(ack(p.next(), ""))
		p.send(ask("", "LDS"))
		p.send(ack(p.next(), ""))
		f.want("m/a", "CDS x@1 EDS x@1 LDS l@2")
		p.send(ack(p.next(), ""))
		p.quiet()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f.server.Await(ctx, []string{"m/a"})
		if ctx.Err() != nil {
			t.Error("Await waits for the removal of y, which waits for the listener to drain")
		}
	})
}
