package token

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
)

// jwt returns a token with these claims and an unchecked signature.
func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2VjcmV0"
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		token string
		want  validity
		err   string // "" for none
	}{
		"both":               {jwt(`{"exp":2000000000,"iat":1900000000}`), validity{time.Unix(19e8, 0).UTC(), time.Unix(2e9, 0).UTC()}, ""},
		"no iat":             {jwt(`{"exp":2000000000,"aud":["a"]}`), validity{expires: time.Unix(2e9, 0).UTC()}, ""},
		"iat after exp":      {jwt(`{"exp":1,"iat":2}`), validity{expires: time.Unix(1, 0).UTC()}, ""},
		"fraction":           {jwt(`{"exp":2000000000.9}`), validity{expires: time.Unix(2e9, 0).UTC()}, ""},
		"empty":              {"", validity{}, "token is empty"},
		"no JWT":             {"secret", validity{}, "1 parts, not 3"},
		"no base64":          {"secret.secret!.secret", validity{}, "not base64url"},
		"no JSON":            {jwt(`secret`), validity{}, "not JSON"},
		"exp is text":        {jwt(`{"exp":"secret"}`), validity{}, "not numbers"},
		"no exp":             {jwt(`{"iat":1900000000}`), validity{}, "exp: missing"},
		"exp past year 9999": {jwt(`{"exp":1e300}`), validity{}, "exp: missing or invalid"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(tc.token)
			if got != tc.want {
				t.Errorf("parse() = %v, want %v", got, tc.want)
			}
			switch {
			case tc.err == "" && err != nil:
				t.Errorf("parse() error = %v, want none", err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "secret")):
				t.Errorf("parse() error = %v, want one with %q and nothing of the token", err, tc.err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(jwt(`{"exp":2000000000,"iat":1900000000}`))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if l, err := parse(token); err == nil && (l.expires.IsZero() || l.issued.After(l.expires)) {
			t.Errorf("parse(%q) = %v", token, l)
		}
	})
}

func TestReadRefusesWhatIsNoToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	f := New(path, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
	if _, err := f.Read(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Read() of no file: error = %v, want one that names it", err)
	}
	if err := os.WriteFile(path, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Errorf("Read() of a large file: error = %v, want one that names file and limit", err)
	}
}

// TestWatch lets a token expire and be replaced, in virtual time.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Buffer{}
		path := filepath.Join(t.TempDir(), "token")
		registry := prometheus.NewRegistry()
		f := New(path, slog.New(slog.NewTextHandler(log, nil)), registry, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { f.Watch(ctx) })
		defer watch.Wait()
		defer cancel()
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// after lets time pass, and compares the log lines since the last call, and the metric.
		after := func(d time.Duration, want string, expires time.Time) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			if got := log.Take(); want == "" && got != "" || !strings.Contains(got, want) || strings.Count(got, "\n") > 1 {
				t.Errorf("logged %q, want one line with %q", got, want)
			}
			metric := 0.
			if !expires.IsZero() {
				metric = float64(expires.Unix())
			}
			families, err := registry.Gather()
			if err != nil || len(families) != 1 {
				t.Fatalf("metrics = %v, %v, want one", families, err)
			}
			if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != metric {
				t.Errorf("the metric is %v, want %v", got, metric)
			}
		}
		after(time.Second, "no such file", time.Time{})
		fresh := func(validity time.Duration) (string, time.Time) {
			now := time.Now()
			end := now.Add(validity)
			return jwt(fmt.Sprintf(`{"iat":%d,"exp":%d}`, now.Unix(), end.Unix())), end
		}
		token, end := fresh(10 * time.Hour)
		write(token)
		after(2*time.Minute, "", end)
		after(8*time.Hour+50*time.Minute, "", end)
		after(15*time.Minute, `msg="dataplane token expires soon, put a new one into its file" file=`+path, end)
		after(30*time.Minute, "", end)
		after(time.Until(end)+2*time.Minute, "dataplane token has expired", end)
		after(23*time.Hour, "", end)
		after(2*time.Hour, "dataplane token has expired", end)
		token, end = fresh(time.Hour)
		write(token)
		after(2*time.Minute, "", end)
		write("secret")
		after(2*time.Minute, "token is not a JWT", time.Time{})
	})
}
