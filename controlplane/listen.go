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

// addressesFile in the state directory says where the control plane listens.
const addressesFile = "addresses.json"

// listeners of the control plane.
type listeners struct{ agents, admin, health, webhook net.Listener }

// closeUnserved closes those that only stages serve.
func (l *listeners) closeUnserved() (err error) {
	for _, one := range []net.Listener{l.agents, l.admin, l.webhook} {
		if one != nil {
			err = errors.Join(err, one.Close())
		}
	}
	return err
}

// listen opens all ports, or none, and writes their addresses to addressesFile.
func (cp *ControlPlane) listen(ctx context.Context) (err error) {
	type port struct {
		name, field string
		port        uint16
		listener    *net.Listener
	}
	ports := []port{
		{"agents", "AgentsPort", cp.o.AgentsPort, &cp.listeners.agents},
		{"admin", "AdminPort", cp.o.AdminPort, &cp.listeners.admin},
		{"health", "HealthPort", cp.o.HealthPort, &cp.listeners.health},
	}
	if cp.o.onKubernetes() {
		ports = append(ports, port{"webhook", "WebhookPort", cp.o.WebhookPort, &cp.listeners.webhook})
	}
	var config net.ListenConfig
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, l := range open {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	addresses := map[string]string{}
	host := strings.TrimPrefix(cp.o.BindAddress, DefaultBindAddress) // to Go, no address means all
	for _, p := range ports {
		port := strconv.Itoa(int(p.port))
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
		if err != nil {
			return &mesh.FieldError{Field: p.field, Value: port, Err: err}
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
