package probe

import (
	"net/http"
	"net/url"
	"strconv"
)

// stoppedRedirect is the application's answer where the kubelet does not follow it. Without the mesh the kubelet's event shows its body.
type stoppedRedirect struct {
	location string
	body     []byte // at most maxBody
}

// maxLocation is the longest Location that is passed on, in bytes.
const maxLocation = 4 << 10

// otherHost is a Location that no caller has the host of.
const otherHost = "http://warning.sonde.invalid/"

// write answers with a redirect that the kubelet does not follow either, and so with a warning. host is that of the request.
func (s stoppedRedirect) write(w http.ResponseWriter, host string) {
	header := w.Header()
	header["Location"] = []string{otherHost}
	if s.leadsAwayFrom(host) {
		header["Location"] = []string{s.location}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(s.body))}
	w.WriteHeader(http.StatusFound)
	_, _ = w.Write(s.body) // an error means that the caller is gone
}

// leadsAwayFrom reports whether a caller that asked a host would not follow the Location. It might where the kubelet would not have followed
// the application's status, or where it knows the pod by another name than the agent.
// Source: kubernetes pkg/probe/http/http.go, RedirectChecker.
func (s stoppedRedirect) leadsAwayFrom(host string) bool {
	to, err := url.Parse(s.location)
	if err != nil || to.Hostname() == "" || len(s.location) > maxLocation {
		return false
	}
	asked := url.URL{Host: host}
	return to.Hostname() != asked.Hostname()
}
