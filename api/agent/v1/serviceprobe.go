package agentv1

import "github.com/sonde-mesh/sonde/api/mesh"

// SetCheck sets the handler to what a probe asks. Its port is in Application.
func (p *ServiceProbe) SetCheck(check mesh.Probe) {
	switch h := check.Handler().(type) {
	case *mesh.HTTPGetProbe:
		get := &ServiceProbe_HTTPGet{Path: h.Path, Https: h.Scheme == mesh.SchemeHTTPS}
		for _, header := range h.HTTPHeaders {
			get.Headers = append(get.Headers, &ServiceProbe_Header{Name: header.Name, Value: header.Value})
		}
		p.Handler = &ServiceProbe_HttpGet{HttpGet: get}
	case *mesh.TCPSocketProbe:
		p.Handler = &ServiceProbe_TcpSocket{TcpSocket: &ServiceProbe_TCPSocket{}}
	case *mesh.GRPCProbe:
		p.Handler = &ServiceProbe_Grpc{Grpc: &ServiceProbe_GRPC{Service: h.Service}}
	}
}

// Check returns the readiness probe that SetCheck was called with, of that port, and false for a handler of a later version.
func (p *ServiceProbe) Check(port int32) (check mesh.Probe, known bool) {
	switch h := p.GetHandler().(type) {
	case *ServiceProbe_HttpGet:
		get := &mesh.HTTPGetProbe{Path: h.HttpGet.GetPath(), Scheme: mesh.SchemeHTTP}
		if h.HttpGet.GetHttps() {
			get.Scheme = mesh.SchemeHTTPS
		}
		for _, header := range h.HttpGet.GetHeaders() {
			get.HTTPHeaders = append(get.HTTPHeaders, mesh.HTTPHeader{Name: header.GetName(), Value: header.GetValue()})
		}
		check = get.At(port)
	case *ServiceProbe_TcpSocket:
		check = (&mesh.TCPSocketProbe{}).At(port)
	case *ServiceProbe_Grpc:
		check = (&mesh.GRPCProbe{Service: h.Grpc.GetService()}).At(port)
	default:
		return check, false
	}
	check.Type = mesh.ProbeReadiness
	return check, true
}
