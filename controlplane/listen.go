package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// addressesFile in the state directory has the listening addresses of the control plane.
const addressesFile = "addresses.json"

// listeners of the control plane.
type listeners struct{ agents, admin, health, webhook, peers net.Listener }

// closeUnserved closes the listeners that the stages would have served, if there are no stages.
func (l *listeners) closeUnserved() (err error) {
	for _, one := range []net.Listener{l.agents, l.admin, l.webhook, l.peers} {
		if one != nil {
			err = errors.Join(err, one.Close())
		}
	}
	return err
}

// listen opens all ports, or none, and writes their addresses to addressesFile.
func (cp *ControlPlane) listen(ctx context.Context) (err error) {
	type port struct {
		name, field    string
		value, address string // of the field, and the resulting address
		ip             mesh.FieldError
		listener       *net.Listener
	}
	host := strings.TrimPrefix(cp.o.BindAddress, DefaultBindAddress) // for Go, an empty address means all
	bound := mesh.FieldError{Field: "BindAddress", Value: cp.o.BindAddress, Allowed: mesh.AllowedOwnAddress}
	at := func(name, field string, number uint16, listener *net.Listener) port {
		value := strconv.Itoa(int(number))
		return port{name, field, value, net.JoinHostPort(host, value), bound, listener}
	}
	ports := []port{
		at("agents", "AgentsPort", cp.o.AgentsPort, &cp.listeners.agents),
		at("admin", "AdminPort", cp.o.AdminPort, &cp.listeners.admin),
		at("health", "HealthPort", cp.o.HealthPort, &cp.listeners.health),
	}
	if a := cp.o.HealthAddress; a != "" {
		own := mesh.FieldError{Field: "HealthAddress", Value: a, Allowed: mesh.AllowedOwnHostPort}
		ports[len(ports)-1] = port{"health", own.Field, a, strings.TrimPrefix(a, DefaultBindAddress), own,
			&cp.listeners.health}
	}
	if cp.o.onKubernetes() {
		ports = append(ports, at("webhook", "WebhookPort", cp.o.WebhookPort, &cp.listeners.webhook),
			at("peers", "PeerPort", cp.o.PeerPort, &cp.listeners.peers))
	}
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, l := range open {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	addresses := map[string]string{}
	for _, p := range ports {
		l, err := cp.o.Listen(ctx, "tcp", p.address)
		if err != nil {
			return mesh.ListenError(p.ip, mesh.FieldError{Field: p.field, Value: p.value}, err)
		}
		open = append(open, l)
		*p.listener, addresses[p.name] = l, l.Addr().String()
	}
	data, err := json.Marshal(addresses)
	if err != nil {
		return fmt.Errorf("encode %s: %w", addressesFile, err)
	}
	return cp.platform.listened(append(data, '\n'))
}
