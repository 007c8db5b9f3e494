package webhook_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// seedPod is the pod of the golden case seed as sent by an API server for a Deployment: with defaults, managed fields,
// and the service account's volume. test/bench/admission uses the same pod.
func seedPod(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/bench/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return toJSON(t, string(text))
}

// largePod is seedPod with 2,000 environment variables.
func largePod(t testing.TB) []byte {
	t.Helper()
	var env strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&env, `{"name":"VARIABLE_%d","value":"the value of variable %d"},`, i, i)
	}
	list := `"env":[` + strings.TrimSuffix(env.String(), ",") + `],`
	return bytes.Replace(seedPod(t), []byte(`"image":"busybox",`), []byte(list+`"image":"busybox",`), 1)
}

// BenchmarkAdmission runs one admission, from the bytes of the AdmissionReview to the bytes of the response.
func BenchmarkAdmission(b *testing.B) {
	for name, pod := range map[string][]byte{"seed": seedPod(b), "2000 variables": largePod(b)} {
		b.Run(name, func(b *testing.B) {
			handler := newServer(b, enabled().options()).Handler()
			body := podReview("shop", pod)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, webhook.PathInject, nil)
			r.Header.Set("Content-Type", "application/json")
			r.ContentLength = int64(len(body))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				r.Body = nopCloser{bytes.NewReader(body)}
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(`"patch":`)) {
					b.Fatalf("%d: %s", w.Code, w.Body)
				}
			}
		})
	}
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }
