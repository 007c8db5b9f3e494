package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// answer is the body of every good answer over HTTP.
type answer struct {
	Instance string      `json:"instance"`
	Remote   string      `json:"remote"`
	Protocol string      `json:"protocol"`
	Method   string      `json:"method"`
	Host     string      `json:"host"`
	URI      string      `json:"uri"`
	Headers  http.Header `json:"headers"`
	// Requests counts those of this instance, this one included.
	Requests int64 `json:"requests"`
}

// httpServer serves HTTP/1 and, in clear text, HTTP/2: an echo of the request on every path, /slow?for=1s, which takes
// its time first, /status/503, which answers that, and gRPC health.
func httpServer(name string) server {
	return func(ctx context.Context, l net.Listener) error {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Handler: handler(name), Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
		stop := context.AfterFunc(ctx, func() { _ = s.Close() })
		defer stop()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

func handler(name string) http.Handler {
	var requests atomic.Int64
	echo := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{ // an error means that the caller has gone
			Instance: name,
			Remote:   r.RemoteAddr,
			Protocol: r.Proto,
			Method:   r.Method,
			Host:     r.Host,
			URI:      r.RequestURI,
			Headers:  r.Header,
			Requests: requests.Add(1),
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", echo)
	mux.Handle("/"+healthpb.Health_ServiceDesc.ServiceName+"/", healthServer())
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
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil || code < 200 || code > 599 {
			http.Error(w, "status must be a number from 200 to 599", http.StatusBadRequest)
			return
		}
		requests.Add(1)
		w.WriteHeader(code)
	})
	return mux
}
