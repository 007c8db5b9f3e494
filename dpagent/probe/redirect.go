package probe

import (
	"net/http"
	"net/url"
	"strconv"
)

// stoppedRedirect is an application's redirect that the kubelet does not follow. Without the mesh the kubelet's event
// shows its body.
type stoppedRedirect struct {
	location string
	body     []byte // at most maxBody
}

// maxLocation is the maximum length of a Location that is passed on, in bytes.
const maxLocation = 4 << 10

// otherHost is a Location with a host that no caller uses.
const otherHost = "http://warning.sonde.invalid/"

// write answers with a redirect that the kubelet does not follow either, which results in a warning. host is the Host
// of the request.
func (s stoppedRedirect) write(w http.ResponseWriter, host string) {
	header := w.Header()
	header["Location"] = []string{otherHost}
	if s.leadsAwayFrom(host) {
		header["Location"] = []string{s.location}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(s.body))}
	w.WriteHeader(http.StatusFound)
	_, _ = w.Write(s.body) // an error means that the caller has disconnected
}

// leadsAwayFrom reports whether a caller that called host would not follow the Location. The caller might follow a
// Location if the kubelet would not have followed the application's status, or if its name for the pod differs from the
// agent's.
// Source: kubernetes pkg/probe/http/http.go, RedirectChecker.
func (s stoppedRedirect) leadsAwayFrom(host string) bool {
	to, err := url.Parse(s.location)
	if err != nil || to.Hostname() == "" || len(s.location) > maxLocation {
		return false
	}
	asked := url.URL{Host: host}
	return to.Hostname() != asked.Hostname()
}
