package probe

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

const (
	// messageTimeout is how long the message of a call may take to arrive.
	messageTimeout = 5 * time.Second
	// messagePrefix is the length of the prefix of a message, in bytes.
	messagePrefix = 5
	contentGRPC   = "application/grpc"
)

// answerer returns the result of a health check of a service.
type answerer func(r *http.Request, service string) result

// serveGRPC answers a gRPC health check. It answers other calls as unimplemented, without a check of the application.
func (answer answerer) serveGRPC(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close") // the kubelet makes a connection for each probe
	switch kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), "+"); {
	case r.Method != http.MethodPost || kind != contentGRPC:
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	case r.URL.EscapedPath() != healthpb.Health_Check_FullMethodName:
		refuse(w, codes.Unimplemented, "only "+healthpb.Health_Check_FullMethodName+" is answered")
		return
	}
	service, err := readService(w, r)
	if err != nil {
		refuse(w, codes.InvalidArgument, err.Error())
		return
	}
	answer(r, service).writeGRPC(w)
}

// readService returns the service that a call checks.
func readService(w http.ResponseWriter, r *http.Request) (string, error) {
	// fails only with a test recorder, which does not support it
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(messageTimeout))
	text, err := io.ReadAll(r.Body) // maxCall limits it
	switch {
	case err != nil:
		return "", errors.New("no message received")
	case len(text) < messagePrefix || text[0] != 0 || binary.BigEndian.Uint32(text[1:]) != uint32(len(text)-messagePrefix):
		return "", errors.New("must be one uncompressed message")
	}
	var request healthpb.HealthCheckRequest
	if err := proto.Unmarshal(text[messagePrefix:], &request); err != nil {
		return "", errors.New("must be a grpc.health.v1.HealthCheckRequest")
	}
	return request.GetService(), nil
}

// writeGRPC answers so that a gRPC client reaches the same verdict. Errored becomes a failure, since no gRPC answer
// makes a kubelet discard the check.
func (r result) writeGRPC(w http.ResponseWriter) {
	switch {
	case r.verdict == success:
		writeStatus(w, healthpb.HealthCheckResponse_SERVING)
	case r.class == NotServing:
		writeStatus(w, r.rpc.status)
	case r.rpc.code != codes.OK:
		refuse(w, r.rpc.code, r.rpc.text)
	case r.class == Timeout:
		refuse(w, codes.DeadlineExceeded, r.reason)
	default:
		refuse(w, codes.Unavailable, r.reason)
	}
}

func writeStatus(w http.ResponseWriter, status healthpb.HealthCheckResponse_ServingStatus) {
	message, err := proto.Marshal(&healthpb.HealthCheckResponse{Status: status})
	if err != nil {
		refuse(w, codes.Internal, err.Error())
		return
	}
	w.Header().Set("Content-Type", contentGRPC)
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	// an error means that the caller has disconnected
	_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
}

// refuse answers with an error and no message.
func refuse(w http.ResponseWriter, code codes.Code, text string) {
	header := w.Header()
	header.Set("Content-Type", contentGRPC)
	header.Set("Grpc-Status", strconv.Itoa(int(int32(code))))
	header.Set("Grpc-Message", percentEncode(text))
	w.WriteHeader(http.StatusOK)
}

// percentEncode encodes the message of an error (gRPC: PROTOCOL-HTTP2.md, Status-Message).
func percentEncode(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteString("%" + strings.ToUpper(strconv.FormatUint(0x100+uint64(c), 16)[1:]))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// askService returns the result of the gRPC probe on the port of r.
func (h *Handler) askService(r *http.Request, service string) result {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	e := h.byPort[portOf(local)]
	if e == nil || service != e.probe.GRPC.Service {
		return result{verdict: failure, rpc: rpcAnswer{code: codes.NotFound,
			text: "the probe of this port is for another service"}}
	}
	return e.ask(r)
}

// portOf returns the TCP port of an address, or 0.
func portOf(at net.Addr) int {
	if tcp, ok := at.(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}
