package parity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// rpc is a gRPC application.
var rpc = &application{name: "rpc", protocol: "grpc", serve: serveGRPC}

// rpcTCP is the same on a port whose protocol is tcp.
var rpcTCP = &application{name: "rpc-tcp", protocol: "tcp", serve: serveGRPC}

func serveGRPC(l net.Listener, _ func(string)) {
	s := grpcServer()
	_ = s.Serve(l)
	s.Stop()
}

func grpcServer() *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(largeMessage + 1024))
	healthpb.RegisterHealthServer(s, health.NewServer())
	testgrpc.RegisterTestServiceServer(s, testServer{})
	return s
}

const largeMessage = 8 << 20

// testServer has the methods of gRPC's interoperability tests that the calls here need.
type testServer struct {
	testgrpc.UnimplementedTestServiceServer
}

func (testServer) UnaryCall(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	in, _ := metadata.FromIncomingContext(ctx)
	if in.Get("x-wait") != nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_ = grpc.SetHeader(ctx, metadata.Join(metadata.Pairs("x-echo", strings.Join(in.Get("x-echo"), ",")), metadata.Pairs("y-bin", strings.Join(in.Get("y-bin"), ","))))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-end", "1"))
	if s := r.GetResponseStatus(); s != nil {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	return &testgrpc.SimpleResponse{Payload: r.GetPayload()}, nil
}

func (testServer) StreamingOutputCall(r *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
	for _, p := range r.GetResponseParameters() {
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	if st := r.GetResponseStatus(); st != nil {
		return status.Error(codes.Code(st.GetCode()), st.GetMessage())
	}
	return nil
}

func (testServer) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	var n int32
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: n})
		}
		if err != nil {
			return err
		}
		n += int32(len(r.GetPayload().GetBody()))
	}
}

func (testServer) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if st := r.GetResponseStatus(); st != nil {
			return status.Error(codes.Code(st.GetCode()), st.GetMessage())
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
			return err
		}
	}
}

// dials returns a client that calls do with a gRPC connection.
func dials(do func(context.Context, *grpc.ClientConn) string) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largeMessage+1024)))
		if err != nil {
			return err.Error()
		}
		defer func() { _ = conn.Close() }()
		return do(ctx, conn)
	}
}

// withTest is like dials, for the test service.
func withTest(do func(context.Context, testgrpc.TestServiceClient) string) func(context.Context, string) string {
	return dials(func(ctx context.Context, conn *grpc.ClientConn) string {
		return do(ctx, testgrpc.NewTestServiceClient(conn))
	})
}

func ended(err error) string {
	if errors.Is(err, io.EOF) {
		return "OK"
	}
	if status.Code(err) == codes.DeadlineExceeded { // client and server use different texts for it
		return "DeadlineExceeded"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", status.Code(err), status.Convert(err).Message()))
}

// streams opens n streams on one connection, and then makes a unary call.
func streams(n int) func(context.Context, string) string {
	return dials(func(ctx context.Context, conn *grpc.ClientConn) string {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c := healthpb.NewHealthClient(conn)
		opened := make(chan error, n)
		for range n {
			go func() {
				w, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
				if err == nil {
					_, err = w.Recv()
				}
				opened <- err
			}()
		}
		good := 0
		for range n {
			if err := <-opened; err == nil {
				good++
			}
		}
		_, err := c.Check(ctx, &healthpb.HealthCheckRequest{})
		if good < n {
			return "fewer streams, then " + ended(err)
		}
		return "all streams, then " + ended(err)
	})
}

func grpcCalls() []*call {
	var all []*call
	for _, app := range []*application{rpc, both, rpcTCP} {
		group := map[*application]string{
			rpc: "gRPC", both: "gRPC on a port with protocol http", rpcTCP: "gRPC on a port with protocol tcp",
		}[app]
		add := func(name, want string, client func(context.Context, string) string) {
			all = append(all, &call{group: group, name: name, app: app, want: want, client: client})
		}
		add("unary", "5 bytes OK", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			answer, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte("hello")}})
			return fmt.Sprintf("%d bytes %s", len(answer.GetPayload().GetBody()), ended(err))
		}))
		add("300 streams, and a call beside them", "all streams, then OK", streams(300))
		add("a stream each way", "3 messages, OK", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			s, err := c.FullDuplexCall(ctx)
			if err != nil {
				return ended(err)
			}
			n := 0
			for range 3 {
				if err = s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 100)}}); err != nil {
					break
				}
				if _, err = s.Recv(); err != nil {
					break
				}
				n++
			}
			_ = s.CloseSend()
			_, err = s.Recv()
			return fmt.Sprintf("%d messages, %s", n, ended(err))
		}))
		if app == rpcTCP {
			continue
		}
		add("1,500 streams, and a call beside them", "all streams, then OK", streams(1500))
		last := all[len(all)-1]
		last.takes = patience
		last.differs = []difference{{ways: []way{plain}, want: "fewer streams, then DeadlineExceeded", why: tooManyStreams}}
		add("a message of 8 MiB each way", "8388608 bytes OK", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			answer, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, largeMessage)}})
			return fmt.Sprintf("%d bytes %s", len(answer.GetPayload().GetBody()), ended(err))
		}))
		add("compressed by gzip", "100000 bytes OK", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			answer, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, 100_000)}}, grpc.UseCompressor(gzip.Name))
			return fmt.Sprintf("%d bytes %s", len(answer.GetPayload().GetBody()), ended(err))
		}))
		add("an error in trailers alone", `FailedPrecondition no <way> über %2F`, withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseStatus: &testgrpc.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "no <way> über %2F"}})
			return ended(err)
		}))
		add("an unknown method", "Unimplemented method UnimplementedCall not implemented", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			_, err := c.UnimplementedCall(ctx, &testgrpc.Empty{})
			return ended(err)
		}))
		add("an unknown service", "Unimplemented unknown service grpc.testing.UnimplementedService", dials(func(ctx context.Context, conn *grpc.ClientConn) string {
			_, err := testgrpc.NewUnimplementedServiceClient(conn).UnimplementedCall(ctx, &testgrpc.Empty{})
			return ended(err)
		}))
		add("metadata, also binary", `echo a,b, bin "\x00\xff", end 1`, withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-echo", "a", "x-echo", "b")
			ctx = metadata.AppendToOutgoingContext(ctx, "y-bin", "\x00\xff")
			var header, trailer metadata.MD
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			if err != nil {
				return ended(err)
			}
			return fmt.Sprintf("echo %s, bin %q, end %s", strings.Join(header.Get("x-echo"), ","), strings.Join(header.Get("y-bin"), ","), strings.Join(trailer.Get("x-end"), ","))
		}))
		add("a deadline that passes", "DeadlineExceeded", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "x-wait", "1"), 300*time.Millisecond)
			defer cancel()
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
			return ended(err)
		}))
		add("a stream from the server, then an error", "3 messages, Aborted enough", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			size := &testgrpc.ResponseParameters{Size: 70_000}
			s, err := c.StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{
				ResponseParameters: []*testgrpc.ResponseParameters{size, size, size},
				ResponseStatus:     &testgrpc.EchoStatus{Code: int32(codes.Aborted), Message: "enough"},
			})
			n := 0
			for err == nil {
				if _, err = s.Recv(); err == nil {
					n++
				}
			}
			return fmt.Sprintf("%d messages, %s", n, ended(err))
		}))
		add("a stream from the client", "300000 bytes OK", withTest(func(ctx context.Context, c testgrpc.TestServiceClient) string {
			s, err := c.StreamingInputCall(ctx)
			for range 3 {
				if err == nil {
					err = s.Send(&testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 100_000)}})
				}
			}
			if err != nil {
				return ended(err)
			}
			answer, err := s.CloseAndRecv()
			return fmt.Sprintf("%d bytes %s", answer.GetAggregatedPayloadSize(), ended(err))
		}))
	}
	return all
}
