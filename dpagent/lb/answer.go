package lb

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Paths that the server answers.
const (
	pathHealthz = "/healthz"
	pathLivez   = "/livez"
)

// Reasons in responses, visible to any client, and values of the gauge's label.
const (
	reasonTerminating   = "terminating"
	reasonNode          = "node"
	reasonAdministrator = "administrator"
	reasonUnready       = "unready"
	reasonStale         = "stale"
	reasonServedOn      = "served_on"
)

// answer is the body of a response, with the keys of kube-proxy's body (pkg/proxy/healthcheck/proxy_health.go).
type answer struct {
	// LastUpdated is the earliest time of all families.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// Healthy matches the status code.
	Healthy bool `json:"healthy"`
	// NodeEligible is false if the node will go away soon. Only /healthz has it.
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Status       map[family]familyStatus `json:"status"`
	// Reasons why the proxy is not healthy, for programs.
	Reasons []string `json:"reasons,omitempty"`
	// Details are only for callers on this host, since they may contain names and addresses.
	Details []string `json:"details,omitempty"`
}

// familyStatus is the part of a response for one family of addresses.
type familyStatus struct {
	// LastUpdated is when a check last found that Envoy had applied everything that it had received; zero before the first
	// time.
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
		http.Error(w, fmt.Sprintf("not found: must be %s or %s", pathHealthz, pathLivez), http.StatusNotFound)
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
	if err != nil { // impossible: only strings and times
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	total.WithLabelValues(strconv.Itoa(code)).Inc()
	header.Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // fails if the caller has disconnected
}

// livez reports whether Envoy applies the configuration that it receives.
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
		a.fail(reasonTerminating, "the agent or its pod is shutting down")
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
		return // do not wait for a slow Envoy if the result is known
	}
	if err := s.o.Ready(ctx); err != nil {
		a.fail(reasonUnready, err.Error())
	}
}
