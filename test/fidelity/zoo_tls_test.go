package fidelity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// identities are certificates that nobody has reason to trust.
type identities struct {
	valid, expired, future, other []tls.Certificate
	authority                     *x509.CertPool
}

var certificates = sync.OnceValue(func() identities {
	year := 365 * 24 * time.Hour
	now := time.Now()
	make := func(name string, from, to time.Time) []tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err) // no randomness
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			panic(err) // as above
		}
		return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
	all := identities{
		valid:     make("app.example", now.Add(-time.Hour), now.Add(year)),
		expired:   make("app.example", now.Add(-year), now.Add(-time.Hour)),
		future:    make("app.example", now.Add(year), now.Add(2*year)),
		other:     make("elsewhere.example", now.Add(-time.Hour), now.Add(year)),
		authority: x509.NewCertPool(),
	}
	certificate, err := x509.ParseCertificate(all.valid[0].Certificate[0])
	if err != nil {
		panic(err) // it was made above
	}
	all.authority.AddCert(certificate)
	return all
})

// secure is HTTPS in each version and state.
func secure() (z zoo) {
	add := func(name string, want kubelet.Verdict, config *tls.Config, headers ...corev1.HTTPHeader) {
		n := len(z)
		if config.Certificates == nil {
			config.Certificates = certificates().valid
		}
		z.add(scenario{
			name: "TLS " + name, want: []kubelet.Verdict{want}, process: n%10 == 0,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe", headers...) }),
			sites:      func(p place) []site { return []site{{port: p.app, tls: config, answer: ok}} },
		})
	}
	add("1.3", success, &tls.Config{MinVersion: tls.VersionTLS13})
	add("1.2", success, &tls.Config{MaxVersion: tls.VersionTLS12})
	add("1.1", failure, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	add("1.0", failure, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10})
	add("1.2 with an old suite", success, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}})
	add("expired", success, &tls.Config{Certificates: certificates().expired})
	add("not yet valid", success, &tls.Config{Certificates: certificates().future})
	add("of another name", success, &tls.Config{Certificates: certificates().other})
	add("client certificate wanted", success, &tls.Config{ClientAuth: tls.RequestClientCert})
	add("client certificate required", failure, &tls.Config{ClientAuth: tls.RequireAnyClientCert})
	add("client certificate required, 1.2", failure, &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12})
	add("client certificate verified", failure, &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: certificates().authority})
	add("ALPN http/1.1", success, &tls.Config{NextProtos: []string{"http/1.1"}})
	add("ALPN of another protocol", failure, &tls.Config{NextProtos: []string{"postgresql"}})
	add("with a Host", success, &tls.Config{}, header("Host", "x.example"))
	add("with Connection", success, &tls.Config{}, header("Connection", "keep-alive"))
	add("X25519MLKEM768 alone", success, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}})
	add("1.2 with ChaCha20", success, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}})
	add("1.2 with a forbidden suite", failure, &tls.Config{
		Certificates: signedRSA(2048), MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA},
	})
	return slices.Concat(z, keys(), http2s(), http2Answers(), httpFrames(), handshakes(), noTLS())
}

// http2s is HTTP/2 by ALPN.
func http2s() (z zoo) {
	add := func(name string, want kubelet.Verdict, answer func(*exchange2), headers ...corev1.HTTPHeader) {
		n := len(z)
		z.add(scenario{
			name: "HTTP/2 " + name, want: []kubelet.Verdict{want},
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe?a=b", headers...) }),
			sites: func(p place) []site {
				return []site{{port: p.app, tls: &tls.Config{Certificates: certificates().valid, NextProtos: []string{"h2"}}, answer2: answer}}
			},
		})
	}
	add("200", success, func(y *exchange2) { y.reply2(200, "ok") })
	add("204", success, func(y *exchange2) { y.reply2(204, "") })
	add("304", warning, func(y *exchange2) { y.reply2(304, "") })
	add("404", failure, func(y *exchange2) { y.reply2(404, "no") })
	add("503", failure, func(y *exchange2) { y.reply2(503, "") })
	add("103 and 200", success, func(y *exchange2) { y.headers(false, ":status", "103"); y.reply2(200, "ok") })
	add("redirect", success, func(y *exchange2) {
		if y.target == "/new" {
			y.reply2(200, "ok")
			return
		}
		y.reply2(302, "", "location", "/new")
	})
	add("redirect elsewhere", warning, func(y *exchange2) { y.reply2(302, "", "location", "https://elsewhere.example/") })
	add("body cut by RST_STREAM", errored, func(y *exchange2) {
		y.headers(false, ":status", "200", "content-length", "10")
		y.data(false, []byte("ok"))
		_ = y.framer.WriteRSTStream(y.stream, 2)
	})
	add("body shorter than its length", errored, func(y *exchange2) { y.reply2(200, "ok", "content-length", "10") })
	add("RST_STREAM", failure, func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, 2) })
	add("connection closed", failure, func(y *exchange2) { y.close() })
	add("trailers", success, func(y *exchange2) {
		y.headers(false, ":status", "200")
		y.data(false, []byte("ok"))
		y.headers(true, "x-t", "1")
	})
	add("no status", failure, func(y *exchange2) { y.headers(true, "x-a", "1") })
	list := []corev1.HTTPHeader{
		header("Host", "x.example"), header("X-A", "1"), header("x-a", "2"), header("User-Agent", ""), header("TE", "trailers"),
		header("Cookie", "a=b"), header("Authorization", "x"), header("Keep-Alive", "1"),
	}
	add("with headers", success, func(y *exchange2) { y.reply2(200, "ok") }, list...)
	add("with Connection: keep-alive", success, func(y *exchange2) { y.reply2(200, "ok") }, header("Connection", "keep-alive"))
	add("with Upgrade", failure, func(y *exchange2) { y.reply2(200, "ok") }, header("Upgrade", "websocket"))
	return z
}

// noTLS is a port that speaks something else.
func noTLS() (z zoo) {
	add := func(name string, want kubelet.Verdict, timeout int32, handler func(place) corev1.ProbeHandler, s func(place) site) {
		n := len(z)
		z.add(scenario{
			name: name, want: []kubelet.Verdict{want}, timing: timeout < patience, containers: one(n, timeout, handler),
			sites: func(p place) []site { return []site{s(p)} },
		})
	}
	https := func(p place) corev1.ProbeHandler { return getTLS(p, "/probe") }
	http1 := func(p place) corev1.ProbeHandler { return get(p, "/probe") }
	add("https to a port of HTTP", failure, patience, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) {
			x.raw("HTTP/1.1 " + http.StatusText(400) + "\r\n\r\n")
			x.close()
		}}
	})
	add("https to a port of HTTP that answers well", failure, patience, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) {
			x.raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			x.hang()
		}}
	})
	add("https to garbage", failure, patience, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) {
			x.raw("garbage that is no TLS\r\n\r\n")
			x.hang()
		}}
	})
	add("https to a server that closes", failure, patience, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) { x.close() }}
	})
	add("https to a server that resets", failure, patience, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) { x.reset() }}
	})
	add("https to a server that never shakes hands", failure, 1, https, func(p place) site {
		return site{port: p.app, connection: func(x *exchange) { x.hang() }}
	})
	add("https to a server that shakes hands and never answers", failure, 1, https, func(p place) site {
		return site{port: p.app, tls: &tls.Config{Certificates: certificates().valid}, answer: func(x *exchange) { x.hang() }}
	})
	add("https cut in the body", errored, patience, https, func(p place) site {
		return site{port: p.app, tls: &tls.Config{Certificates: certificates().valid}, answer: func(x *exchange) {
			x.raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
			x.close()
		}}
	})
	add("https that ends without a goodbye", success, patience, https, func(p place) site {
		return site{port: p.app, tls: &tls.Config{Certificates: certificates().valid}, answer: func(x *exchange) {
			x.raw("HTTP/1.1 200 OK\r\n\r\nshort")
			x.closed = true
			_ = x.tcp.Close() // without close_notify
		}}
	})
	add("http to a port of TLS", failure, patience, http1, func(p place) site {
		return site{port: p.app, tls: &tls.Config{Certificates: certificates().valid}, answer: ok}
	})
	add("http to a port of HTTP/2 alone", failure, patience, http1, func(p place) site {
		return site{port: p.app, answer2: func(y *exchange2) { y.reply2(200, "ok") }}
	})
	return z
}
