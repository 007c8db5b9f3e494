package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestBrokenSecretFile corrupts the file with key and certificate in many ways, at rest and while Envoy starts. No
// log may contain any part of a key, calls continue, and a renewal repairs the file.
func TestBrokenSecretFile(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"})
	a, b := proxies[0], proxies[1]
	load := startLoad(t, httpCallers(a, "b")...)
	good := read(t, b.IdentityFile())
	leaks := newLeaks(t, m)
	leaks.add(b)
	leaks.add(a)

	broken := brokenSecrets(t, good, read(t, a.IdentityFile()))
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		before := refused(t, b)
		replace(t, b.IdentityFile(), broken[name])
		must.Poll(t, "Envoy to refuse the file, "+name, func(context.Context) error {
			if refused(t, b) == before {
				return errors.New("it has not")
			}
			return nil
		})
		leaks.check(name)
	}
	must.Hold(t, load)

	for _, name := range []string{"begins in its key", "key of somebody else", ""} {
		startWithBrokenSecret(t, b, broken[name])
		leaks.check(name + ", at the start")
	}
	synced(t, proxies...)
	calls(t, a, "b")

	// If the agent cannot rename the new file into place, Envoy keeps the old identity, and the agent
	// retries.
	must.Do(t, os.Remove(b.IdentityFile()))
	must.Do(t, os.MkdirAll(filepath.Join(b.IdentityFile(), "in the way"), 0o700))
	ended := make(chan error, 1)
	go func() {
		_, err := m.Ctl(t.Context(), "rotate", "ca", "--wait")
		ended <- err
	}()
	must.Log(t, b.Agent, "failed to renew certificate, keeping the old one")
	calls(t, a, "b")
	must.Do(t, os.RemoveAll(b.IdentityFile()))
	must.Do(t, <-ended)
	leaks.add(b)
	leaks.add(a)
	calls(t, a, "b")
	leaks.check("at the end")
}

// brokenSecrets returns contents that Envoy refuses, by what is wrong in them. good is the file of the proxy, other
// the file of another proxy.
func brokenSecrets(t *testing.T, good, other string) map[string]string {
	t.Helper()
	key := pemOf(t, good)
	broken := map[string]string{
		"truncated at its end":   good[:len(good)-3],
		"truncated in its key":   good[:strings.Index(good, "PRIVATE KEY")+100],
		"starts within its key":  good[strings.Index(good, "PRIVATE KEY")+40:],
		"starts late in its key": good[len(good)-40:],
		"other field":            strings.Replace(good, "private_key", "privat", 1),
		"other type":             strings.Replace(good, "transport_sockets", "transport_socks", 1),
		"key as bytes":           strings.Replace(good, `"inline_string":"-----BEGIN PRIVATE`, `"inline_bytes":"-----BEGIN PRIVATE`, 1),
		"key in short lines":     strings.ReplaceAll(good[:len(good)-2], key, shortLines(key)),
		"key alone":              key,
		"only the key, no names": strings.Join(strings.Split(strings.TrimSpace(key), "\n")[1:3], "\n"),
		"short lines, no name":   shortLines(derOf(t, good)),
		"key in DER, base64":     derOf(t, good),
		"key of another proxy":   strings.Replace(good, keyText(good), keyText(other), 1),
		"after a long text":      strings.Repeat(" ", 8<<10) + good[:len(good)-2],
		"empty":                  "",
		"as YAML":                strings.ReplaceAll(strings.ReplaceAll(key, "\n", "\n  "), "-----BEGIN", "resources: |\n  -----BEGIN"),
	}
	for name, content := range broken {
		if content == good {
			t.Fatalf("%s: content equals the good file", name)
		}
	}
	return broken
}

// startWithBrokenSecret restarts an Envoy while its secret file is broken, or missing if content is "". Envoy would
// start without an identity, or not at all, so the agent must first restore the file.
func startWithBrokenSecret(t *testing.T, p *harness.Proxy, content string) {
	t.Helper()
	if content != "" {
		replace(t, p.IdentityFile(), content)
	} else {
		must.Do(t, os.RemoveAll(filepath.Dir(p.IdentityFile())))
		must.Do(t, os.Mkdir(filepath.Dir(p.IdentityFile()), 0o700))
	}
	killEnvoy(t, p)
	must.Poll(t, "another Envoy", func(ctx context.Context) error {
		_, err := p.EnvoyGet(ctx, "/ready")
		return err
	})
	must.Do(t, p.WaitReady(t.Context()))
}

// replace replaces a file by rename, the only change that Envoy detects.
func replace(t *testing.T, path, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(path+".tmp", []byte(content), 0o600))
	must.Do(t, os.Rename(path+".tmp", path))
}

// refused counts the refused secrets in Envoy's log so far.
func refused(t *testing.T, p *harness.Proxy) int {
	t.Helper()
	return strings.Count(read(t, p.Agent.Log), `"msg":"envoy log"`)
}

// keyText returns the key in a secret file, escaped as in JSON.
func keyText(file string) string {
	start := strings.Index(file, "-----BEGIN PRIVATE KEY")
	return file[start : start+strings.Index(file[start:], `"`)]
}

// pemOf returns the key in a secret file.
func pemOf(t *testing.T, file string) string {
	t.Helper()
	var text string
	must.Do(t, json.Unmarshal([]byte(`"`+keyText(file)+`"`), &text))
	return text
}

func derOf(t *testing.T, file string) string {
	t.Helper()
	c, err := tls.X509KeyPair([]byte(certificateOf(t, file)), []byte(pemOf(t, file)))
	must.Do(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must.Do(t, err)
	return base64.StdEncoding.EncodeToString(der)
}

func certificateOf(t *testing.T, file string) string {
	t.Helper()
	start := strings.Index(file, "-----BEGIN CERTIFICATE")
	var text string
	must.Do(t, json.Unmarshal([]byte(file[start-1:start+strings.Index(file[start:], `"`)+1]), &text))
	return text
}

// shortLines breaks a key into lines of 16 characters.
func shortLines(key string) string {
	var out strings.Builder
	for n, c := range strings.ReplaceAll(key, "\n", "") {
		if out.WriteRune(c); n%16 == 15 {
			out.WriteString(`\n`)
		}
	}
	return out.String()
}

// leaks searches logs for secrets.
type leaks struct {
	t       *testing.T
	m       *harness.Machine
	secrets map[string]string // origin of each secret, by its text
}

// newLeaks returns leaks with the secrets of the state directory and the tokens of all proxies.
func newLeaks(t *testing.T, m *harness.Machine) *leaks {
	t.Helper()
	l := &leaks{t: t, m: m, secrets: map[string]string{}}
	l.secrets[strings.TrimSpace(read(t, filepath.Join(m.StateDir(), "admin-token")))] = "the admin token"
	must.Do(t, filepath.WalkDir(m.Dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || !entry.Type().IsRegular():
			return err
		case strings.HasSuffix(path, ".token"):
			l.secrets[strings.TrimSpace(read(t, path))] = path
		case strings.HasPrefix(path, m.StateDir()):
			l.addKeys(path)
		}
		return nil
	}))
	if len(l.secrets) < 10 {
		t.Fatalf("%d secrets found: too few", len(l.secrets))
	}
	return l
}

// add adds the current key of a proxy.
func (l *leaks) add(p *harness.Proxy) {
	l.t.Helper()
	l.addKeys(p.IdentityFile())
}

// minPart is the shortest part of a key that must not be in a log.
const minPart = 16

// addKeys adds each part of each key in a file.
func (l *leaks) addKeys(path string) {
	l.t.Helper()
	text := strings.ReplaceAll(read(l.t, path), `\n`, "\n")
	for {
		_, rest, ok := strings.Cut(text, "PRIVATE KEY-----")
		if !ok {
			return
		}
		body, rest, _ := strings.Cut(rest, "-----END")
		body = strings.Join(strings.Fields(body), "")
		const head = 36 // length of the start, which is the same in all keys
		for at := head; at+minPart <= len(body); at += minPart / 2 {
			l.secrets[body[at:at+minPart]] = path
		}
		text = rest[strings.Index(rest, "\n")+1:]
	}
}

// check fails the test if a secret is in a log.
func (l *leaks) check(when string) {
	l.t.Helper()
	logs, err := l.m.LogFiles()
	must.Do(l.t, err)
	for name, log := range logs {
		for secret, of := range l.secrets {
			if strings.Contains(log, secret) {
				l.t.Errorf("%s: the log %s shows a part of %s", when, name, of)
				break
			}
		}
		if strings.Contains(log, "PRIVATE KEY") {
			l.t.Errorf("%s: the log %s shows a key", when, name)
		}
	}
}
