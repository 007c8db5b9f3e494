package cases

// PerPort is what must be different in the per-port mode, with the verdicts there, nil if they are the same, and the reason.
type PerPort struct {
	Want Verdicts
	Why  string
}

// Reasons why something cannot be the same in the per-port mode.
const (
	beforeSettings = "Envoy sends a gRPC call as soon as it is connected; the kubelet first waits for the server's HTTP/2 SETTINGS, obeys them, and connects again " +
		"if the connection ends before"
	strictHTTP2  = "Envoy refuses what is wrong in HTTP/2, and which the kubelet's library ignores"
	joined       = "Envoy joins trailers of one name with commas"
	refusedAgain = "Envoy tries a call whose stream was refused again on a new connection until the timeout; the kubelet tries once more, on the same connection"
	ownPreface   = "what Envoy sends as HTTP/2 without waiting for an answer, which differs from the first bytes of the kubelet"
)

// perPorts are the cases that differ in the per-port mode, by name.
var perPorts = map[string]PerPort{
	"gRPC no streams allowed":                      {Verdicts{Success}, beforeSettings},
	"gRPC a window of 0":                           {Verdicts{Success}, beforeSettings},
	"gRPC a window too large":                      {nil, beforeSettings},
	"gRPC short lists of headers":                  {Verdicts{Success}, beforeSettings},
	"gRPC two connections closed, then good, of 5": {Verdicts{Failure}, beforeSettings},
	"gRPC HTTP status abc, and gRPC":               {Verdicts{Failure}, strictHTTP2},
	"gRPC PUSH_PROMISE":                            {Verdicts{Failure}, strictHTTP2},
	"gRPC a frame of a stream that is not":         {Verdicts{Failure}, strictHTTP2},
	"gRPC a window that overflows":                 {Verdicts{Failure}, strictHTTP2},
	"gRPC frames too small":                        {Verdicts{Failure}, strictHTTP2},
	"gRPC headers of another stream":               {Verdicts{Failure}, strictHTTP2},
	"gRPC trailers with grpc-status 5 and 0":       {Verdicts{Failure}, joined},
	"gRPC REFUSED_STREAM once":                     {nil, refusedAgain},
	"gRPC REFUSED_STREAM always":                   {nil, refusedAgain},
	"gRPC to a server of HTTP/1":                   {nil, ownPreface},
}
