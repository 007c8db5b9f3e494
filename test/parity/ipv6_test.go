package parity

import "slices"

// overIPv6 are the calls that are also made over IPv6: some of each protocol.
var overIPv6 = []struct {
	app         *application
	group, name string
}{
	{both, "HTTP/1.1 by Go's client", "GET"},
	{both, "HTTP/1.1 by Go's client", "POST of 4 MiB"},
	{both, "HTTP/2 without TLS by Go's client", "trailers of a request and an answer"},
	{both, "gRPC on a port with protocol http", "a stream each way"},
	{rpc, "gRPC", "unary"},
	{rpc, "gRPC", "300 streams, and a call beside them"},
	{upgrades, "Upgrades, methods and CONNECT", "WebSocket"},
	{https, "The application's own TLS", "HTTP over TLS"},
	{tcp, "TCP", "the client half-closes after the answer"},
	{tcp, "TCP", "16 MiB both ways at once"},
	{banner, "TCP", "the server speaks first"},
	{tcpDown, "Applications that do not listen", "TCP, the application does not listen"},
}

// ipv6Calls returns copies of calls to applications that listen only on ::1.
func ipv6Calls(all []*call) []*call {
	twins := map[*application]*application{}
	var copies []*call
	for _, o := range overIPv6 {
		i := slices.IndexFunc(all, func(c *call) bool { return c.app == o.app && c.group == o.group && c.name == o.name })
		if i < 0 {
			panic("there is no call " + o.group + ": " + o.name)
		}
		if twins[o.app] == nil {
			twin := *o.app
			twin.name, twin.ipv6 = twin.name+"-ipv6", true
			twins[o.app] = &twin
		}
		c := *all[i]
		c.group, c.name, c.app = "Over IPv6", o.group+": "+o.name, twins[o.app]
		copies = append(copies, &c)
	}
	return copies
}
