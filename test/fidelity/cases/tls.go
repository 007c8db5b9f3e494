package cases

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// tlsRow is an HTTPS server. By default its certificate is valid and it answers 200.
type tlsRow struct {
	name    string
	want    Verdict
	config  *tls.Config
	answer  func(*exchange)
	headers []corev1.HTTPHeader
}

// tlsAndHTTP2 has HTTPS in each version and state.
func tlsAndHTTP2() []Case {
	var all []Case
	for _, r := range slices.Concat(tlsVersions(), tlsKeys()) {
		if r.config.Certificates == nil && r.config.GetCertificate == nil {
			r.config.Certificates = certificates().valid
		}
		if r.answer == nil {
			r.answer = ok
		}
		all = append(all, Case{
			Name: "TLS " + r.name, Want: Verdicts{r.want}, probe: getTLS("/probe", r.headers...), servers: app(server{tls: r.config, answer: r.answer}),
		})
	}
	return slices.Concat(all, http2Answers(), http2Timeouts(), httpFrames(), handshakes(), otherProtocols())
}

func tlsVersions() []tlsRow {
	suite := func(id uint16) *tls.Config {
		return &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{id}}
	}
	rc4 := suite(tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA)
	rc4.GetCertificate = signedRSA(2048)
	all := certificates()
	return []tlsRow{
		{name: "1.3", want: Success, config: &tls.Config{MinVersion: tls.VersionTLS13}},
		{name: "1.2", want: Success, config: &tls.Config{MaxVersion: tls.VersionTLS12}},
		{name: "1.1", want: Failure, config: &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}},
		{name: "1.0", want: Failure, config: &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}},
		{name: "1.2 with an old suite", want: Success, config: suite(tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA)},
		{name: "1.2 with ChaCha20", want: Success, config: suite(tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)},
		{name: "1.2 with a forbidden suite", want: Failure, config: rc4},
		{name: "expired", want: Success, config: &tls.Config{Certificates: all.expired}},
		{name: "not yet valid", want: Success, config: &tls.Config{Certificates: all.future}},
		{name: "of another name", want: Success, config: &tls.Config{Certificates: all.other}},
		{name: "client certificate wanted", want: Success, config: &tls.Config{ClientAuth: tls.RequestClientCert}},
		{name: "client certificate required", want: Failure, config: &tls.Config{ClientAuth: tls.RequireAnyClientCert}},
		{name: "client certificate required, 1.2", want: Failure, config: &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}},
		{name: "client certificate verified", want: Failure, config: &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: all.authority}},
		{name: "ALPN http/1.1", want: Success, config: &tls.Config{NextProtos: []string{"http/1.1"}}},
		{name: "ALPN of another protocol", want: Failure, config: &tls.Config{NextProtos: []string{"postgresql"}}},
		{name: "with a Host", want: Success, config: &tls.Config{}, headers: list("Host", "x.example")},
		{name: "with Connection", want: Success, config: &tls.Config{}, headers: list("Connection", "keep-alive")},
		{name: "X25519MLKEM768 alone", want: Success, config: &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}}},
		{name: "on one curve", want: Success, config: &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}},
	}
}

// tlsKeys are certificates of each kind, and different ends of the connection.
func tlsKeys() []tlsRow {
	valid := certificates().valid[0]
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	broken := []tls.Certificate{{Certificate: [][]byte{[]byte("no certificate")}, PrivateKey: valid.PrivateKey}}
	long := []tls.Certificate{{Certificate: slices.Repeat(valid.Certificate, 31), PrivateKey: valid.PrivateKey}}
	const untilEnd, whole = "HTTP/1.1 200 OK\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	return []tlsRow{
		{name: "RSA of 1024 bits", want: Success, config: &tls.Config{GetCertificate: signedRSA(1024)}},
		{name: "RSA of 2048 bits", want: Success, config: &tls.Config{GetCertificate: signedRSA(2048)}},
		{name: "RSA with 1.2", want: Success, config: &tls.Config{GetCertificate: signedRSA(2048), MaxVersion: tls.VersionTLS12}},
		{name: "RSA without a key exchange", want: Failure, config: &tls.Config{
			GetCertificate: signedRSA(2048), MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256},
		}},
		{name: "P-521", want: Success, config: &tls.Config{Certificates: signed(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))}},
		{name: "Ed25519", want: Success, config: &tls.Config{Certificates: signed(ed, err)}},
		{name: "an invalid certificate", want: Failure, config: &tls.Config{Certificates: broken}},
		{name: "31 certificates", want: Success, config: &tls.Config{Certificates: long}},
		{name: "body until the end", want: Success, config: &tls.Config{}, answer: says(untilEnd)},
		{name: "body until the end, which is not said", want: Success, config: &tls.Config{}, answer: steps(send(untilEnd), drains)},
		{name: "a whole body, and an end that is not said", want: Success, config: &tls.Config{}, answer: steps(send(whole), drains)},
		{name: "body cut", want: Errored, config: &tls.Config{}, answer: says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")},
		{name: "body until the end, without close_notify", want: Success, config: &tls.Config{}, answer: steps(send(untilEnd), (*exchange).cut)},
	}
}

// handshakes are answers to a ClientHello.
func handshakes() []Case {
	var all []Case
	for _, c := range []struct{ name, answer string }{
		{"handshake_failure", "\x15\x03\x03\x00\x02\x02\x28"},
		{"a warning", "\x15\x03\x03\x00\x02\x01\x70"},
		{"close_notify", "\x15\x03\x03\x00\x02\x01\x00"},
		{"no_application_protocol", "\x15\x03\x03\x00\x02\x02\x78"},
		{"an alert of TLS 1.0", "\x15\x03\x01\x00\x02\x02\x46"},
		{"data", "\x17\x03\x03\x00\x02ok"},
		{"a record too long", "\x16\x03\x03\xff\xff" + strings.Repeat("x", 70000)},
		{"40 empty records", strings.Repeat("\x16\x03\x03\x00\x00", 40)},
		{"half a record", "\x16\x03\x03\x00\x50abc"},
		{"HTTP/1.0 200", "HTTP/1.0 200 OK\r\n\r\nok"},
		{"half of HTTP", "HTTP"},
		{"SSH", "SSH-2.0-x\r\n"},
		{"nothing", ""},
	} {
		answer := func(x *exchange) {
			record := make([]byte, 5)
			if _, err := io.ReadFull(x.conn, record); err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, x.conn, int64(record[3])<<8|int64(record[4])) // an error returns with the next read
			x.raw(c.answer)
			x.drain()
		}
		all = append(all, Case{Name: "TLS ClientHello answered with " + c.name, Want: Verdicts{Failure}, probe: getTLS("/probe"), servers: raw(answer)})
	}
	return all
}

// otherProtocols has ports that speak another protocol.
func otherProtocols() []Case {
	https := getTLS("/probe")
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	neverAnswers := app(server{tls: serverTLS(), answer: hangs})
	return []Case{
		{Name: "https to a port of HTTP", Want: Verdicts{Failure}, probe: https, servers: raw(says("HTTP/1.1 Bad Request\r\n\r\n"))},
		{Name: "https to a port of HTTP that answers well", Want: Verdicts{Failure}, probe: https, servers: raw(steps(send(whole), hangs))},
		{Name: "https to garbage", Want: Verdicts{Failure}, probe: https, servers: raw(steps(send("garbage that is no TLS\r\n\r\n"), hangs))},
		{Name: "https to a server that closes", Want: Verdicts{Failure}, probe: https, servers: raw(closes)},
		{Name: "https to a server that resets", Want: Verdicts{Failure}, probe: https, servers: raw(resets)},
		{Name: "https to a server that never shakes hands", Want: Verdicts{Failure}, timeout: 1, probe: https, servers: raw(hangs)},
		{Name: "https to a server that shakes hands and never answers", Want: Verdicts{Failure}, timeout: 1, probe: https, servers: neverAnswers},
		{Name: "http to a port of TLS", Want: Verdicts{Failure}, servers: app(server{tls: serverTLS(), answer: ok})},
		{Name: "http to a port of HTTP/2 alone", Want: Verdicts{Failure}, servers: http2c(reply2(200, "ok"))},
	}
}
