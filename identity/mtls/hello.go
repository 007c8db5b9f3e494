package mtls

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// A TLS record has a header of 5 bytes: its type, the version, and its length (RFC 8446 §5.1).
const (
	recordHeader    = 5
	recordHandshake = 22
	maxRecord       = 16 << 10
)

// readHello reads the first record, the ClientHello. Other protocols and invalid input are no error here, since the
// handshake reports them to the client. It allocates memory only for received bytes.
func readHello(from io.Reader) ([]byte, error) {
	var hello bytes.Buffer
	if _, err := io.CopyN(&hello, from, recordHeader); err != nil {
		return nil, helloError(err)
	}
	header := hello.Bytes()
	length := int64(header[3])<<8 | int64(header[4])
	if header[0] != recordHandshake || length > maxRecord {
		return header, nil
	}
	if _, err := io.CopyN(&hello, from, length); err != nil {
		return nil, helloError(err)
	}
	return hello.Bytes(), nil
}

func helloError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF // gRPC treats this error as a port check
	}
	return fmt.Errorf("read ClientHello: %w", err)
}
