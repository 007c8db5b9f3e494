package agentv1

import "github.com/sonde-mesh/sonde/api/mesh"

// SetCheck sets the handler from a probe. Its port is in Application.
func (p *ServiceProbe) SetCheck(check mesh.Probe) {
	p.Handler = mesh.MatchHandler(check,
		func(h *mesh.HTTPGetProbe) isServiceProbe_Handler {
			get := &ServiceProbe_HTTPGet{Path: h.Path, Https: h.Scheme == mesh.SchemeHTTPS,
				Http2: h.Protocol == mesh.HTTPGetHTTP2}
			for _, header := range h.HTTPHeaders {
				get.Headers = append(get.Headers, &ServiceProbe_Header{Name: header.Name, Value: header.Value})
			}
			return &ServiceProbe_HttpGet{HttpGet: get}
		},
		func(*mesh.TCPSocketProbe) isServiceProbe_Handler {
			return &ServiceProbe_TcpSocket{TcpSocket: &ServiceProbe_TCPSocket{}}
		},
		func(h *mesh.GRPCProbe) isServiceProbe_Handler {
			return &ServiceProbe_Grpc{Grpc: &ServiceProbe_GRPC{Service: h.Service, Tls: h.Mode == mesh.GRPCModeTLS}}
		},
		func(*mesh.ExecProbe) isServiceProbe_Handler { return nil }, // only a pod has it
	)
}

// Check returns the readiness probe that was passed to SetCheck, for that port, and false for a handler of a later
// version.
func (p *ServiceProbe) Check(port int32) (mesh.Probe, bool) {
	check := mesh.Probe{Type: mesh.ProbeReadiness}
	switch h := p.GetHandler().(type) {
	case *ServiceProbe_HttpGet:
		check.HTTPGet = &mesh.HTTPGetProbe{Path: h.HttpGet.GetPath(), Port: port, Scheme: mesh.SchemeHTTP}
		if h.HttpGet.GetHttps() {
			check.HTTPGet.Scheme = mesh.SchemeHTTPS
		}
		if h.HttpGet.GetHttp2() {
			check.HTTPGet.Protocol = mesh.HTTPGetHTTP2
		}
		for _, header := range h.HttpGet.GetHeaders() {
			check.HTTPGet.HTTPHeaders = append(check.HTTPGet.HTTPHeaders,
				mesh.HTTPHeader{Name: header.GetName(), Value: header.GetValue()})
		}
	case *ServiceProbe_TcpSocket:
		check.TCPSocket = &mesh.TCPSocketProbe{Port: port}
	case *ServiceProbe_Grpc:
		check.GRPC = &mesh.GRPCProbe{Port: port, Service: h.Grpc.GetService()}
		if h.Grpc.GetTls() {
			check.GRPC.Mode = mesh.GRPCModeTLS
		}
	default:
		return check, false
	}
	return check, true
}
