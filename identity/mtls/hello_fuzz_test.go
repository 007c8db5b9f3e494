package mtls

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/iotest"
)

// FuzzReadHello reads a client's first bytes, at once and byte by byte. readHello returns exactly these bytes, and
// reads at most one record.
func FuzzReadHello(f *testing.F) {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(context.Background()) // returns an error without a server
	}()
	hello, err := readHello(server)
	if err != nil {
		f.Fatal(err)
	}
	_ = server.Close()
	f.Add(hello)
	f.Add(append(hello, "more"...))
	f.Add(hello[:len(hello)/2])
	f.Add([]byte{recordHandshake, 3, 1, 0xff, 0xff})
	f.Add([]byte{recordHandshake, 3, 1, maxRecord >> 8, 0})
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, sent []byte) {
		rest := bytes.NewReader(sent)
		got, err := readHello(rest)
		slowly, slowErr := readHello(iotest.OneByteReader(bytes.NewReader(sent)))
		if !bytes.Equal(got, slowly) || (err == nil) != (slowErr == nil) {
			t.Fatalf("at once %x, %v; byte by byte %x, %v", got, err, slowly, slowErr)
		}
		if err != nil {
			return
		}
		if len(got) > recordHeader+maxRecord {
			t.Fatalf("%d bytes are kept", len(got))
		}
		more, err := io.ReadAll(rest)
		if err != nil || !bytes.Equal(append(got, more...), sent) {
			t.Fatalf("read %x and then %x of %x", got, more, sent)
		}
	})
}
