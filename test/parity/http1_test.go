package parity

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// asks returns a client that sends bytes of HTTP/1 and reads an answer, as leniently as curl does. It reports the named
// headers of the answer.
func asks(request string, headers ...string) func(context.Context, string) string {
	return onConnection(func(c net.Conn) string {
		if _, err := io.WriteString(c, request); err != nil {
			return inWords(err)
		}
		text, _ := readAnswer(bufio.NewReader(c), strings.HasPrefix(request, "HEAD "), headers...)
		return text
	})
}

// get returns a client that requests a path with HTTP/1.1.
func get(path string, headers ...string) func(context.Context, string) string {
	return asks("GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n", headers...)
}

// onConnection returns a client that calls do with a connection.
func onConnection(do func(net.Conn) string) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return "connect: " + inWords(err)
		}
		defer func() { _ = c.Close() }()
		if deadline, ok := ctx.Deadline(); ok {
			_ = c.SetDeadline(deadline)
		}
		return do(c)
	}
}

// inWords says how a connection ended.
func inWords(err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "waits for ever"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	}
	return err.Error()
}

// readAnswer reads an HTTP/1 answer. It returns whether another one may follow.
func readAnswer(r *bufio.Reader, head bool, headers ...string) (text string, more bool) {
	status, fields, err := readHead(r)
	if err != nil {
		return inWords(err), false
	}
	words := strings.Fields(status)
	if len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") {
		rest, _ := io.ReadAll(r)
		return "no HTTP: " + shortened(status+string(rest)), false
	}
	parts := words[1:2]
	for _, name := range headers {
		for _, f := range fields {
			if key, value, _ := strings.Cut(f, ":"); strings.EqualFold(strings.TrimSpace(key), name) {
				parts = append(parts, key+":"+value)
			}
		}
	}
	text = strings.Join(parts, ", ")
	switch {
	case words[1] == "101":
		return text, true
	case head, words[1] == "204", words[1] == "304":
		return text, true
	case words[1][0] == '1':
		after, more := readAnswer(r, head, headers...)
		return text + ", " + after, more
	}
	body, trailers, framed, err := readBody(r, fields)
	if strings.HasPrefix(string(body), "upstream connect error") {
		return text + " by Envoy", false
	}
	text += " " + strconv.Quote(shortened(string(body)))
	if trailers != "" {
		text += ", trailers " + trailers
	}
	if err != nil {
		text += ", " + inWords(err)
	}
	return text, framed && err == nil
}

// readHead reads the first line and the headers. Lines end with a line feed.
func readHead(r *bufio.Reader) (first string, fields []string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil && (line == "" || first != "") {
			return "", nil, err
		}
		line = strings.TrimRight(line, "\r\n")
		switch {
		case err != nil:
			return line, nil, nil //nolint:nilerr // HTTP/0.9 ends after its line
		case first == "":
			first = line
		case line == "":
			return first, fields, nil
		case (line[0] == ' ' || line[0] == '\t') && len(fields) > 0:
			fields[len(fields)-1] += " " + strings.TrimSpace(line)
		default:
			fields = append(fields, line)
		}
	}
}

// valueOf returns the values of a header, joined.
func valueOf(fields []string, name string) string {
	var values []string
	for _, f := range fields {
		if key, value, _ := strings.Cut(f, ":"); strings.EqualFold(strings.TrimSpace(key), name) {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return strings.Join(values, ", ")
}

// readBody reads a body that is chunked, has a length, or ends with the connection.
func readBody(r *bufio.Reader, fields []string) (body []byte, trailers string, framed bool, err error) {
	if strings.HasSuffix(strings.ToLower(valueOf(fields, "Transfer-Encoding")), "chunked") {
		body, trailers, err = readChunks(r)
		return body, trailers, true, err
	}
	length, _, _ := strings.Cut(valueOf(fields, "Content-Length"), ",")
	if n, bad := strconv.Atoi(length); bad == nil {
		body = make([]byte, n)
		n, err = io.ReadFull(r, body)
		return body[:n], "", true, err
	}
	body, err = io.ReadAll(r)
	return body, "", false, err
}

func readChunks(r *bufio.Reader) (body []byte, trailers string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return body, "", err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseUint(size, 16, 31)
		if err != nil {
			return body, "", err
		}
		if n == 0 {
			break
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(r, chunk); err != nil {
			return body, "", err
		}
		body = append(body, chunk[:n]...)
	}
	var fields []string
	for {
		line, err := r.ReadString('\n')
		if line = strings.TrimSpace(line); line == "" || err != nil {
			return body, strings.Join(fields, ", "), err
		}
		fields = append(fields, line)
	}
}

// shortened replaces a long text by its length.
func shortened(text string) string {
	if len(text) <= 200 {
		return text
	}
	return fmt.Sprintf("%d bytes", len(text))
}

// accept calls serve with each connection, and returns once the listener and all connections have ended.
func accept(l net.Listener, serve func(net.Conn)) {
	var open sync.Map
	var running sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open.Store(c, true)
		running.Go(func() {
			defer open.Delete(c)
			defer func() { _ = c.Close() }()
			serve(c)
		})
	}
	open.Range(func(c, _ any) bool {
		_ = c.(net.Conn).Close()
		return true
	})
	running.Wait()
}

// request is a request as an HTTP/1 application has read it.
type request struct {
	line     string
	fields   []string
	body     []byte
	trailers string
	conn     net.Conn
	rest     *bufio.Reader
}

// http1Server returns an application that reads HTTP/1 requests. answer writes the answer, byte by byte, and the
// connection ends if it returns false.
func http1Server(answer func(*request, func(string)) bool) func(net.Listener, func(string)) {
	return func(l net.Listener, see func(string)) {
		accept(l, func(c net.Conn) {
			r := bufio.NewReader(c)
			for {
				q := &request{conn: c, rest: r}
				var err error
				if q.line, q.fields, err = readHead(r); err != nil {
					return
				}
				if valueOf(q.fields, "Expect") != "" {
					_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
				}
				if valueOf(q.fields, "Content-Length")+valueOf(q.fields, "Transfer-Encoding") != "" {
					if q.body, q.trailers, _, err = readBody(r, q.fields); err != nil {
						see(fmt.Sprintf("%s, body %q, %s", q.line, shortened(string(q.body)), inWords(err)))
						return
					}
				}
				if !answer(q, see) {
					return
				}
			}
		})
	}
}

// path returns the path of a request.
func (q *request) path() string {
	words := strings.Fields(q.line)
	if len(words) < 2 {
		return ""
	}
	return words[1]
}

// added are the headers that the mesh adds to each request.
var added = []string{"x-forwarded-proto", "x-forwarded-client-cert"}

// String returns what the application sees.
func (q *request) String() string {
	text := bytes.NewBufferString(q.line)
	for _, f := range q.fields {
		// Spaces after a colon are ignored.
		if name, _, _ := strings.Cut(f, ":"); !slices.Contains(added, strings.ToLower(name)) {
			text.WriteString(strings.TrimRight(" / "+f, " "))
		}
	}
	if len(q.body) > 0 {
		fmt.Fprintf(text, " / body %q", shortened(string(q.body)))
	}
	if q.trailers != "" {
		text.WriteString(" / trailers " + q.trailers)
	}
	return shortened(text.String())
}
