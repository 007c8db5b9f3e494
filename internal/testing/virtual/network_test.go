package virtual

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const at = "10.0.0.1:80"

// connected returns both ends of a connection from 10.0.0.2.
func connected(t *testing.T, n *Network) (client, server net.Conn) {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	client, err = n.DialFrom("10.0.0.2")(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = l.Close(), client.Close(), server.Close() })
	return client, server
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func TestListen(t *testing.T) {
	tests := map[string]struct {
		network, listens, dials string
		want                    error
	}{
		"its address":     {"tcp", at, at, nil},
		"all hosts":       {"tcp", ":80", at, nil},
		"all of IPv4":     {"tcp4", "0.0.0.0:80", at, nil},
		"another port":    {"tcp", at, "10.0.0.1:81", syscall.ECONNREFUSED},
		"another host":    {"tcp", at, "10.0.0.3:80", syscall.ECONNREFUSED},
		"Unix socket":     {"unix", "/run/a.sock", "/run/a.sock", nil},
		"no Unix socket":  {"unix", "/run/a.sock", "/run/b.sock", syscall.ENOENT},
		"another network": {"tcp", "[::1]:80", "[::1]:80", nil},
	}
	for name, tc := range tests {
		Run(t, name, func(t *testing.T) {
			n := NewNetwork()
			l, err := n.Listen(t.Context(), tc.network, tc.listens)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.Listen(t.Context(), tc.network, tc.listens); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("second Listen() error = %v, want %v", err, syscall.EADDRINUSE)
			}
			_, err = n.DialFrom("10.0.0.2")(t.Context(), tc.network, tc.dials)
			if !errors.Is(err, tc.want) {
				t.Errorf("dial error = %v, want %v", err, tc.want)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := n.DialFrom("10.0.0.2")(t.Context(), tc.network, tc.listens); err == nil {
				t.Error("a closed listener accepts connections")
			}
		})
	}
}

func TestPortOfListener(t *testing.T) {
	n := NewNetwork()
	l, err := n.Listen(t.Context(), "tcp", "10.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if port := l.Addr().(*net.TCPAddr).Port; port < firstPort || port > lastPort {
		t.Errorf("port %d", port)
	}
	if _, err := n.Listen(t.Context(), "tcp", "localhost:80"); err == nil {
		t.Error("Listen() accepts a host name")
	}
	_, err = n.DialFrom("10.0.0.2")(t.Context(), "tcp", "localhost:80")
	if dns, ok := errors.AsType[*net.DNSError](err); !ok || dns.Name != "localhost" || !dns.IsNotFound {
		t.Errorf("dial of a name: %v, want a DNS error", err)
	}
}

func TestBytesArriveInOrderAndThenTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connected(t, NewNetwork())
		write(t, client, "one ")
		write(t, client, "two")
		_ = client.Close()
		got, err := io.ReadAll(server)
		if string(got) != "one two" || err != nil {
			t.Errorf("ReadAll() = %q, %v", got, err)
		}
		if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write() to a closed end: %v", err)
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read() of a closed end: %v", err)
		}
	})
}

func TestHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connected(t, NewNetwork())
		if err := client.(*conn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(server); len(got) > 0 || err != nil {
			t.Errorf("ReadAll() = %q, %v", got, err)
		}
		write(t, server, "answer")
		got := make([]byte, 6)
		if _, err := io.ReadFull(client, got); string(got) != "answer" || err != nil {
			t.Errorf("Read() = %q, %v", got, err)
		}
	})
}

func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connected(t, NewNetwork())
		if err := client.(*conn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		write(t, client, "last")
		_ = client.Close()
		if got, err := io.ReadAll(server); string(got) != "last" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("ReadAll() = %q, %v, want the data that has arrived, and a reset", got, err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		n.BufferBytes = 4
		client, _ := connected(t, n)
		began := time.Now()
		_ = client.SetDeadline(began.Add(time.Second))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Read() error = %v after %s", err, time.Since(began))
		}
		_ = client.SetDeadline(time.Time{})
		_ = client.SetWriteDeadline(time.Now().Add(time.Second))
		if written, err := client.Write([]byte("too much")); written != 4 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("Write() = %d, %v after %s", written, err, time.Since(began))
		}
	})
}

func TestWritersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		n.BufferBytes = 4
		client, server := connected(t, n)
		for _, c := range []net.Conn{client, server} {
			go func() {
				defer func() { _ = c.(*conn).CloseWrite() }()
				_, _ = io.WriteString(c, "more than there is room for")
			}()
		}
		synctest.Wait()
		for _, c := range []net.Conn{client, server} {
			if got, err := io.ReadAll(c); string(got) != "more than there is room for" || err != nil {
				t.Errorf("ReadAll() = %q, %v", got, err)
			}
		}
	})
}

func TestCutLinkDropsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		client, server := connected(t, n)
		n.Isolate("10.0.0.1", true)
		write(t, client, "late")
		_ = server.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := server.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read() over a cut link: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := n.DialFrom("10.0.0.2")(ctx, "tcp", at); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial over a cut link: %v", err)
		}
		n.Isolate("10.0.0.1", false)
		_ = server.SetReadDeadline(time.Time{})
		got := make([]byte, 4)
		if _, err := io.ReadFull(server, got); string(got) != "late" || err != nil {
			t.Errorf("Read() = %q, %v", got, err)
		}
	})
}

func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		client, server := connected(t, n)
		write(t, client, "lost")
		n.Reset("10.0.0.2")
		for name, c := range map[string]net.Conn{"client": client, "server": server} {
			if _, err := c.Read(make([]byte, 8)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Read() of the %s: %v", name, err)
			}
		}
	})
}
