package lb

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Paths that are answered.
const (
	pathHealthz = "/healthz"
	pathLivez   = "/livez"
)

// Reasons of an answer, which any client may read, and of the gauge.
const (
	reasonTerminating   = "terminating"
	reasonNode          = "node"
	reasonAdministrator = "administrator"
	reasonUnready       = "unready"
	reasonStale         = "stale"
	reasonServedOn      = "served_on"
)

// answer is the body, with the keys of kube-proxy's (pkg/proxy/healthcheck/proxy_health.go).
type answer struct {
	// LastUpdated is the earlier one of all families.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// Healthy is what the status code says.
	Healthy bool `json:"healthy"`
	// NodeEligible is false if the node goes. Only /healthz has it.
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Status       map[family]familyStatus `json:"status"`
	// Reasons why it is not healthy, for programs.
	Reasons []string `json:"reasons,omitempty"`
	// Details are for callers on this host: they may have names and addresses.
	Details []string `json:"details,omitempty"`
}

// familyStatus is what one family of addresses adds to an answer.
type familyStatus struct {
	// LastUpdated is when Envoy was last seen to have applied all that it had received; the zero time before the first.
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (a *answer) fail(reason, detail string) {
	a.Healthy = false
	a.Reasons = append(a.Reasons, reason)
	a.Details = append(a.Details, reason+": "+detail)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	if r.URL.Path != pathHealthz && r.URL.Path != pathLivez {
		http.Error(w, fmt.Sprintf("there is %s and %s", pathHealthz, pathLivez), http.StatusNotFound)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, fmt.Sprintf("method %s: must be GET or HEAD", r.Method), http.StatusMethodNotAllowed)
		return
	}
	a, total := s.livez(), s.metrics.livez
	if r.URL.Path == pathHealthz {
		s.addHealthz(r.Context(), a)
		total = s.metrics.healthz
	}
	code := http.StatusOK
	if !a.Healthy {
		code = http.StatusServiceUnavailable
	}
	if !s.o.FromThisHost(r) {
		a.Details = nil
	}
	body, err := json.Marshal(a)
	if err != nil { // it has but strings and times
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	total.WithLabelValues(strconv.Itoa(code)).Inc()
	header.Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // an error means that the caller is gone
}

// livez says whether Envoy applies what it receives.
func (s *Server) livez() *answer {
	now := time.Now()
	a := &answer{CurrentTime: now.UTC(), Healthy: true, Status: map[family]familyStatus{}}
	var late error
	for i, f := range families {
		applied, err := s.changes.state(f, now)
		applied = applied.UTC()
		a.Status[f] = familyStatus{LastUpdated: applied, Healthy: err == nil}
		if i == 0 || applied.Before(a.LastUpdated) {
			a.LastUpdated = applied
		}
		if late == nil {
			late = err
		}
	}
	if late != nil {
		a.fail(reasonStale, late.Error())
	}
	return a
}

// addHealthz adds whether the proxy may get new traffic.
func (s *Server) addHealthz(ctx context.Context, a *answer) {
	if s.o.Begun() {
		s.End()
	}
	s.mu.Lock()
	drain, told := s.drain, !s.told.IsZero()
	s.mu.Unlock()
	eligible := drain.Node == "" || drain.ServesOn != ""
	a.NodeEligible = &eligible
	switch {
	case told:
		a.fail(reasonTerminating, "the agent, or its pod, was told to end")
	case drain.Terminating:
		a.fail(reasonTerminating, "the pod is being deleted")
	}
	if drain.ServesOn == "" {
		if drain.Node != "" {
			a.fail(reasonNode, drain.Node)
		}
		if drain.Administrator != "" {
			a.fail(reasonAdministrator, drain.Administrator)
		}
	}
	if !a.Healthy {
		return // an answer that is known already does not wait for an Envoy that may be slow
	}
	if err := s.o.Ready(ctx); err != nil {
		a.fail(reasonUnready, err.Error())
	}
}
