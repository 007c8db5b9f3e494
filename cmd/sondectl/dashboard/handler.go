package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

//go:embed assets
var assets embed.FS

// files are what the browser may get without the token, by path. They have no data.
var files = map[string]struct{ name, kind string }{
	"/":         {"assets/index.html", "text/html; charset=utf-8"},
	"/app.js":   {"assets/app.js", "text/javascript; charset=utf-8"},
	"/app.css":  {"assets/app.css", "text/css; charset=utf-8"},
	"/icon.svg": {"assets/icon.svg", "image/svg+xml"},
}

// headers of every response.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
	"Cache-Control":                "no-store",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
}

const (
	// tokenBytes are random.
	tokenBytes = 32
	// requestsPerSecond is enough for twenty pages, which send two in a second, and a section when it changes.
	requestsPerSecond = 200
	requestsBurst     = 200
)

// newToken returns a token for the Authorization header.
func newToken() string {
	var random [tokenBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(random[:])
}

// handler serves the page, and the sections to those who have the token.
type handler struct {
	source *source
	token  [sha256.Size]byte // its hash
	hosts  map[string]bool
	limit  *rate.Limiter // of requests with the token
}

// newHandler returns the handler of a server on a port of 127.0.0.1.
func newHandler(source *source, token, port string) *handler {
	return &handler{
		source: source, token: sha256.Sum256([]byte(token)),
		hosts: map[string]bool{"127.0.0.1:" + port: true, "localhost:" + port: true},
		limit: rate.NewLimiter(requestsPerSecond, requestsBurst),
	}
}

// ServeHTTP implements http.Handler. A page of another origin gets nothing: the browser sends the Origin of scripts,
// and a name that leads here, as in DNS rebinding, is in Host.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	origin := r.Header.Get("Origin")
	file, ok := files[r.URL.Path]
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "method must be GET or HEAD")
	case !h.hosts[r.Host]:
		refuse(w, http.StatusForbidden, "Host must be 127.0.0.1 or localhost, with the port of sondectl dashboard")
	case origin != "" && origin != "http://"+r.Host:
		refuse(w, http.StatusForbidden, "Origin must be this server's")
	case ok:
		h.file(w, file.name, file.kind)
	case !strings.HasPrefix(r.URL.Path, "/api/"):
		refuse(w, http.StatusNotFound, "not found")
	case !h.authorized(r):
		refuse(w, http.StatusUnauthorized, "the token is not the one of this sondectl dashboard: open the address that it printed")
	case !h.limit.Allow(): // after the token, so that other users of this machine cannot use it up
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "too many requests: close some of the pages")
	default:
		h.api(w, strings.TrimPrefix(r.URL.Path, "/api/"))
	}
}

func (h *handler) authorized(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return ok && subtle.ConstantTimeCompare(sum[:], h.token[:]) == 1
}

func (*handler) file(w http.ResponseWriter, name, kind string) {
	content, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(content) // the browser may have gone
}

// index says what there is of each section.
type index struct {
	Now time.Time `json:"now"`
	// Due is when the next reading should be there, at the latest: after that the page is blind.
	Due      time.Time          `json:"due"`
	Sections map[string]Section `json:"sections"`
}

// content is a section with its data.
type content struct {
	Section
	Data json.RawMessage `json:"data"`
}

func (h *handler) api(w http.ResponseWriter, path string) {
	if path == "state" {
		sections, due := h.source.look()
		answer(w, index{time.Now(), due, sections})
		return
	}
	section, data, ok := h.source.section(strings.TrimPrefix(path, "section/"))
	if !ok {
		refuse(w, http.StatusNotFound, "not found")
		return
	}
	answer(w, content{section, data})
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": reason}) // the browser may have gone
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the browser may have gone
}
