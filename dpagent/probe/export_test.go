package probe

import "net/http"

// ServeGRPC answers a call, and calls asked with the service.
func ServeGRPC(w http.ResponseWriter, r *http.Request, asked func(service string)) {
	answerer(func(_ *http.Request, service string) result {
		asked(service)
		return result{verdict: success}
	}).serveGRPC(w, r)
}
