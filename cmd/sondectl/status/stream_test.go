package status_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sonde-mesh/sonde/admin/watch"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

const planeAt = "10.0.0.1:5681"

// plane is a control plane whose state changes.
type plane struct {
	adminv1.UnimplementedAdminServiceServer
	watch *watch.Server
	hangs atomic.Bool

	mu         sync.Mutex
	meshes     adminv1.ListMeshesResponse
	dataplanes adminv1.ListDataplanesResponse
	services   adminv1.ListServicesResponse
	proxies    adminv1.ListProxiesResponse
	restarts   adminv1.ListRestartsResponse
	health     adminv1.Health
	errs       map[string]error // of calls
	denied     map[string]error // of rights
}

// answer returns a copy of a response.
func answer[M proto.Message](p *plane, call, resource string, m M) (M, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, err := range []error{p.denied[resource], p.errs[call]} {
		if err != nil {
			var none M
			return none, err
		}
	}
	return proto.CloneOf(m), nil
}

func (p *plane) ListMeshes(context.Context, *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	return answer(p, "meshes", "proxies", &p.meshes)
}

func (p *plane) ListDataplanes(context.Context, *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	return answer(p, "dataplanes", "proxies", &p.dataplanes)
}

func (p *plane) ListServices(context.Context, *adminv1.ListServicesRequest) (*adminv1.ListServicesResponse, error) {
	return answer(p, "services", "proxies", &p.services)
}

func (p *plane) ListProxies(context.Context, *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	return answer(p, "list proxies", "proxies", &p.proxies)
}

func (p *plane) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return answer(p, "restarts", "restarts", &p.restarts)
}

func (p *plane) GetHealth(context.Context, *adminv1.GetHealthRequest) (*adminv1.Health, error) {
	for p.hangs.Load() {
		time.Sleep(time.Second)
	}
	return answer(p, "health", "health", &p.health)
}

func (p *plane) Waited() time.Duration { return 0 }

func (p *plane) Watch(r *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer) error {
	if p.watch == nil {
		return p.UnimplementedAdminServiceServer.Watch(r, stream)
	}
	return p.watch.Watch(r, stream, func(_ context.Context, needs []adminv1.Right) (watch.Caller, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		errs := map[adminv1.Right]error{}
		for _, need := range needs {
			errs[need] = p.denied[need.Resource]
		}
		return watch.Caller{Name: "operator", Errs: errs}, nil
	})
}

// serve serves p in a bubble, until the end of the test.
func (p *plane) serve(t *testing.T) adminv1.AdminServiceClient {
	t.Helper()
	p.watch = watch.New(watch.Options{
		Calls: func(watch.Calls) watch.Calls { return p }, Ready: func() error { return nil },
		Unresponsive: func(context.Context) (map[mesh.ID]bool, []string) { return nil, nil },
	})
	network := virtual.NewNetwork()
	lis, err := network.Listen(t.Context(), "tcp", planeAt)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	adminv1.RegisterAdminServiceServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///"+planeAt, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return network.DialFrom("10.0.0.2")(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if p.watch != nil {
			p.watch.Stop()
		}
		server.GracefulStop()
		if p.watch != nil {
			p.watch.Wait()
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return adminv1.NewAdminServiceClient(conn)
}

// change changes anything.
func (p *plane) change(r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, value := fmt.Sprint("web-", r.IntN(20)), strconv.Itoa(r.IntN(1000))
	tail := &adminv1.Tail{Problems: []*adminv1.Problem{{Text: value}}, LeftOut: uint32(r.IntN(2)), MissingReplicas: []string{value}}
	switch r.IntN(8) {
	case 0:
		replace(r, &p.meshes.Meshes, (*adminv1.Mesh).GetName, &adminv1.Mesh{Name: name, Object: fmt.Appendf(nil, `{"name":%q,"spec":{}}`, name), Services: 1})
		p.meshes.Tail = tail
	case 1:
		replace(r, &p.dataplanes.Dataplanes, (*adminv1.Dataplane).GetName, &adminv1.Dataplane{Mesh: "default", Name: name, Drain: value, Object: fmt.Appendf(nil, `{"type":"Dataplane","mesh":"default","name":%q,"spec":{}}`, name)})
		p.dataplanes.Tail = tail
		p.dataplanes.ProbeSets = []*adminv1.ProbeSet{{Id: uint64(r.IntN(3)), Probes: []*adminv1.ProbeText{{Written: value}}}}
	case 2:
		replace(r, &p.services.Services, (*adminv1.Service).GetName, &adminv1.Service{Mesh: "default", Name: name, Protocol: value})
		p.services.Tail = tail
	case 3:
		replace(r, &p.proxies.Proxies, (*adminv1.Proxy).GetName, &adminv1.Proxy{Mesh: "default", Name: name, Drain: value, Verdicts: &adminv1.Verdicts{LeftOut: uint32(r.IntN(3))}})
		p.proxies.Tail = tail
	case 4:
		replace(r, &p.restarts.Restarts, (*adminv1.Restart).GetPod, &adminv1.Restart{Namespace: "shop", Pod: name, Why: value})
		p.restarts.Tail, p.restarts.Guarded, p.restarts.Round = tail, uint32(r.IntN(9)), &adminv1.RestartRound{Replica: value}
		p.restarts.Unhelpful = []string{value}
	case 5:
		p.health.Checks = []*adminv1.HealthCheck{{Name: value, Status: adminv1.HealthCheck_Status(1 + r.IntN(2))}}
	case 6:
		calls := []string{"meshes", "dataplanes", "services", "list proxies", "restarts", "health"}
		reasons := []codes.Code{codes.Unavailable, codes.FailedPrecondition, codes.Internal}
		p.errs = map[string]error{calls[r.IntN(len(calls))]: grpcstatus.Error(reasons[r.IntN(len(reasons))], value)}
	case 7:
		p.errs = nil
	}
}

// replace puts an entry into a sorted list, or removes the one of its name.
func replace[E any](r *rand.Rand, entries *[]E, name func(E) string, e E) {
	at, found := slices.BinarySearchFunc(*entries, name(e), func(e E, key string) int { return strings.Compare(name(e), key) })
	if found {
		*entries = slices.Delete(*entries, at, at+1)
	}
	if !found || r.IntN(2) == 0 {
		*entries = slices.Insert(*entries, at, e)
	}
}

// A stream gives the same facts and errors as reading everything, whatever changes.
func TestStreamSaysWhatReadingsSay(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			p := &plane{}
			api := p.serve(t)
			stream, err := status.Watch(t.Context(), api)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			for step := range 40 {
				got, err := stream.Next()
				if err != nil {
					t.Fatal(err)
				}
				if age := time.Since(got.Now); age != 0 || got.Next != time.Second {
					t.Errorf("the reading is from %s ago, the next one in %s", age, got.Next)
				}
				want := status.ReadAll(t.Context(), api, false)
				if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty(), cmp.Comparer(sameError),
					cmpopts.IgnoreFields(status.Reading{}, "Next"), cmpopts.IgnoreFields(status.Facts{}, "Now")); diff != "" {
					t.Fatalf("seed %d, step %d (-reading +stream):\n%s", seed, step, diff)
				}
				for range r.IntN(3) {
					p.change(r)
				}
			}
		})
	}
}

func sameError(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// A section without the right says so in the words of its call, and the others go on.
func TestStreamOfDeniedSections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{denied: map[string]error{"restarts": grpcstatus.Error(codes.PermissionDenied, "no restarts")}}
		stream, err := status.Watch(t.Context(), p.serve(t))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		r, err := stream.Next()
		if err != nil || r.Err() != nil || !status.IsDenied(r.RestartsErr) || !slices.Equal(r.NotAsked, []string{"restarts: no restarts"}) {
			t.Errorf("the reading is %v, %v", r, err)
		}
		p.mu.Lock()
		p.denied["proxies"], p.denied["health"] = p.denied["restarts"], p.denied["restarts"]
		p.mu.Unlock()
		for err == nil {
			_, err = stream.Next()
		}
		if !status.IsDenied(err) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// A control plane that hangs makes the stream end, and so does one of an earlier release.
func TestStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		api := p.serve(t)
		stream, err := status.Watch(t.Context(), api)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
		p.hangs.Store(true)
		began := time.Now()
		if _, err := stream.Next(); grpcstatus.Code(err) != codes.Unavailable || time.Since(began) != 11*time.Second {
			t.Errorf("after %s it ends with %v", time.Since(began), err)
		}
		p.hangs.Store(false)
		time.Sleep(time.Second)
	})
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		api := p.serve(t)
		p.watch.Stop()
		p.watch = nil
		stream, err := status.Watch(t.Context(), api)
		if err == nil {
			_, err = stream.Next()
			stream.Close()
		}
		if grpcstatus.Code(err) != codes.Unimplemented {
			t.Errorf("it ends with %v", err)
		}
	})
}
