package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// answer is the body of each successful HTTP response.
type answer struct {
	Instance string      `json:"instance"`
	Remote   string      `json:"remote"`
	Protocol string      `json:"protocol"`
	Method   string      `json:"method"`
	Host     string      `json:"host"`
	URI      string      `json:"uri"`
	Headers  http.Header `json:"headers"`
	// Requests is the number of requests to this instance, including this request.
	Requests int64 `json:"requests"`
}

// httpServer serves HTTP/1, HTTP/2 without TLS, and gRPC health. Each path echoes the request; /slow?for=1s waits
// first.
func httpServer(state *state) server {
	return func(ctx context.Context, l net.Listener) error {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Handler: handler(state), Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
		ended := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(ended)
			bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), state.endOfRequests)
			defer cancel()
			if s.Shutdown(bound) != nil {
				_ = s.Close()
			}
		})
		err := s.Serve(l)
		if !stop() {
			<-ended
		}
		if !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

func handler(state *state) http.Handler {
	echo := func(w http.ResponseWriter, r *http.Request) {
		requests := state.count(r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{ // an error means that the caller has disconnected
			Instance: state.name,
			Remote:   r.RemoteAddr,
			Protocol: r.Proto,
			Method:   r.Method,
			Host:     r.Host,
			URI:      r.RequestURI,
			Headers:  r.Header,
			Requests: requests,
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", echo)
	mux.Handle("/"+healthpb.Health_ServiceDesc.ServiceName+"/", healthServer(state))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if status := state.statusNow(); status != http.StatusOK {
			state.count(r.URL.Path)
			w.WriteHeader(status)
			return
		}
		echo(w, r)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		wait, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(wait):
			echo(w, r)
		case <-r.Context().Done():
		}
	})
	return mux
}
