package harness

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// ProxyOptions describes a proxy and its application.
type ProxyOptions struct {
	// Name is the name of the Dataplane, and of the instance in the application's responses.
	Name string
	// Service is the kuma.io/service of its inbound.
	Service string
	// Protocol is http (default), http2, grpc or tcp.
	Protocol string
	// Banner makes the application of a tcp inbound send first. It does not mark the inbound as server-first.
	Banner bool
	// ServerFirst marks the inbound as server-first.
	ServerFirst bool
	// ServiceProbe of its inbound, as in the Dataplane. Default: none.
	ServiceProbe map[string]any
	// Outbound lists the services that the application calls.
	Outbound []string
	// Labels of the Dataplane.
	Labels map[string]string
	// Mesh of the Dataplane. Default "default".
	Mesh string
	// Envoy is the binary that the agent runs. Default: the Envoy of the machine's Programs.
	Envoy string
	// AgentArgs are added to the agent's arguments.
	AgentArgs []string
	// AgentEnv is added to the agent's environment, "NAME=value".
	AgentEnv []string
}

// Proxy is an application with its agent and Envoy.
type Proxy struct {
	ProxyOptions
	// App and Agent are the current processes, or the last if none runs.
	App, Agent *Process
	// AppAddress is where the application listens, Inbound is where Envoy listens for the application, and Admin is
	// the agent's admin address.
	AppAddress, Inbound, Admin string
	// Outbounds are Envoy's listening addresses for the services that the application calls, by
	// service.
	Outbounds map[string]string
	// Ready is the health of the inbound in the Dataplane.
	Ready bool

	machine *Machine
	envoy   *http.Client
}

// Prepare makes a proxy with all its addresses. It neither writes files nor starts processes.
func (m *Machine) Prepare(o ProxyOptions) (*Proxy, error) {
	if o.Protocol == "" {
		o.Protocol = "http"
	}
	if o.Mesh == "" {
		o.Mesh = "default"
	}
	if o.Envoy == "" {
		o.Envoy = m.options.Programs.Envoy
	}
	p := &Proxy{ProxyOptions: o, Outbounds: map[string]string{}, Ready: true, machine: m}
	for _, a := range []*string{&p.AppAddress, &p.Inbound, &p.Admin} {
		var err error
		if *a, err = m.ports.takeAddress(); err != nil {
			return nil, err
		}
	}
	for _, service := range o.Outbound {
		var err error
		if p.Outbounds[service], err = m.ports.takeAddress(); err != nil {
			return nil, err
		}
	}
	p.envoy = SocketClient(filepath.Join(p.Dir(), "admin.sock"))
	return p, nil
}

// SocketClient makes each request on a new connection to a Unix socket, such as the socket of Envoy's admin
// interface.
func SocketClient(path string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

// Add prepares and declares proxies, starts the application, agent and Envoy of each, and waits until all are ready.
func (m *Machine) Add(ctx context.Context, options ...ProxyOptions) ([]*Proxy, error) {
	proxies := make([]*Proxy, 0, len(options))
	for _, o := range options {
		p, err := m.Prepare(o)
		if err != nil {
			return nil, err
		}
		proxies = append(proxies, p)
	}
	return proxies, m.Launch(ctx, proxies...)
}

// Launch is like Add, for proxies from Prepare.
func (m *Machine) Launch(ctx context.Context, proxies ...*Proxy) error {
	for _, p := range proxies {
		if err := errors.Join(p.Declare(), p.StartApp(ctx), p.StartAgent(ctx)); err != nil {
			return err
		}
	}
	for _, p := range proxies {
		m.options.Progress("waiting for " + p.Name)
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// label names the proxy's files. It contains the mesh, because proxies of two meshes may have the
// same name.
func (p *Proxy) label() string {
	if p.Mesh == "default" {
		return p.Name
	}
	return p.Mesh + "-" + p.Name
}

// Dir is the working directory of the agent and of Envoy.
func (p *Proxy) Dir() string { return filepath.Join(p.machine.Dir, p.label()) }

// Declare writes the Dataplane into the store.
func (p *Proxy) Declare() error {
	return p.machine.Put(p.label()+".yaml", p.YAML())
}

// YAML returns the Dataplane as JSON, which is valid YAML.
func (p *Proxy) YAML() string {
	type object = map[string]any
	inbound := object{
		"port": json.Number(portOf(p.Inbound)), "servicePort": json.Number(portOf(p.AppAddress)),
		"tags": object{"kuma.io/service": p.Service, "kuma.io/protocol": p.Protocol},
	}
	if p.ServerFirst {
		inbound["serverFirst"] = true
	}
	if p.ServiceProbe != nil {
		inbound["serviceProbe"] = p.ServiceProbe
	}
	if !p.Ready {
		inbound["health"] = object{"ready": false}
	}
	outbound := []object{}
	for _, service := range p.Outbound {
		outbound = append(outbound, object{
			"port": json.Number(portOf(p.Outbounds[service])), "tags": object{"kuma.io/service": service},
		})
	}
	dataplane := object{
		"type": "Dataplane", "mesh": p.Mesh, "name": p.Name,
		"networking": object{"address": "127.0.0.1", "inbound": []object{inbound}, "outbound": outbound},
	}
	if len(p.Labels) > 0 {
		dataplane["labels"] = p.Labels
	}
	text, err := json.MarshalIndent(dataplane, "", "  ")
	if err != nil {
		panic(err) // impossible: only strings and numbers
	}
	return string(text) + "\n"
}

// StartApp starts the application and waits until it listens.
func (p *Proxy) StartApp(ctx context.Context) error {
	serve := p.Protocol
	if p.Banner {
		serve = "banner"
	}
	var err error
	p.App, err = p.machine.StartApp(ctx, p.label(), serve, p.AppAddress)
	return err
}

// StartAgent makes a token and starts the agent, which starts Envoy.
func (p *Proxy) StartAgent(ctx context.Context) error {
	if err := p.MakeToken(ctx); err != nil {
		return err
	}
	return p.RunAgent()
}

// MakeToken creates a token and sets it with SetToken.
func (p *Proxy) MakeToken(ctx context.Context) error {
	token, err := p.machine.Ctl(ctx, "generate", "dataplane-token", "--name="+p.Name, "--mesh="+p.Mesh,
		"--workload="+p.workload())
	if err != nil {
		return err
	}
	return p.SetToken(token)
}

// SetToken sets the token with which the agent joins.
func (p *Proxy) SetToken(token string) error {
	return os.WriteFile(p.tokenFile(), []byte(token), 0o600)
}

func (p *Proxy) tokenFile() string { return filepath.Join(p.machine.Dir, p.label()+".token") }

// RunAgent starts the agent with the current token.
func (p *Proxy) RunAgent() (err error) {
	args := append([]string{
		"run", "--cp-address=" + p.machine.Agents, "--ca-cert-file=" + filepath.Join(p.machine.StateDir(), "serving-ca.crt"),
		"--name=" + p.Name, "--mesh=" + p.Mesh, "--dataplane-token-file=" + p.tokenFile(), "--admin-addr=" + p.Admin,
		"--work-dir=" + p.Dir(), "--envoy-path=" + p.Envoy,
	}, p.AgentArgs...)
	p.Agent, err = p.machine.run(p.label()+" agent", p.AgentEnv, p.machine.options.Programs.Agent, args...)
	return err
}

func (p *Proxy) workload() string {
	if w := p.Labels["kuma.io/workload"]; w != "" {
		return w
	}
	return p.Service
}

// WaitReady waits until the agent reports the proxy as ready.
func (p *Proxy) WaitReady(ctx context.Context) error {
	return p.machine.wait(ctx, p.Agent, "http://"+p.Admin+"/readyz")
}

// SetReady writes the health of the inbound into the store.
func (p *Proxy) SetReady(ready bool) error {
	p.Ready = ready
	return p.Declare()
}
