// Package reach is for clients of the control plane: it parses the address as operators write it, and explains why the
// control plane could not be reached.
package reach

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Service is a service of the control plane, each at its own port.
type Service struct {
	// Name is used in errors.
	Name string
	// Port is the default port. Flag is the flag of sonde-cp that changes it.
	Port int
	Flag string
}

// The services. Clients use the first two.
var (
	Agents  = Service{"agents and ADS", mesh.PortAgents, "--agents-port"}
	Admin   = Service{"the admin API", mesh.PortAdmin, "--admin-port"}
	Health  = Service{"health and metrics", mesh.PortHealth, "--health-port"}
	Webhook = Service{"the admission webhook", mesh.PortWebhook, "--webhook-port"}
)

// Usual returns the service with a default port, nil for other ports.
func Usual(port string) *Service {
	for _, s := range []*Service{&Agents, &Admin, &Health, &Webhook} {
		if strconv.Itoa(s.Port) == port {
			return s
		}
	}
	return nil
}

// Address returns the host:port of an address as operators write it, optionally with https:// before it and a slash
// after it. The error tells what is allowed.
func (s Service) Address(text string) (string, error) {
	scheme, address, hasScheme := strings.Cut(text, "://")
	switch {
	case !hasScheme:
		address = text
	case strings.EqualFold(scheme, "http"):
		return "", fmt.Errorf("must not be http: the control plane speaks TLS: write %s", strings.TrimRight(address, "/"))
	case !strings.EqualFold(scheme, "https"):
		return "", s.allowed()
	}
	address = strings.TrimRight(address, "/")
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ \t\n?#") {
		return "", s.allowed()
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "", s.allowed()
	}
	return address, nil
}

func (s Service) allowed() error {
	return errors.New("must be host:port, with a port from 1 to 65535: " + s.where())
}

// WrongPort returns an error text for a port that belongs to another service.
func (s Service) WrongPort(other Service) string {
	return fmt.Sprintf("it is the control plane's port for %s: %s", other.Name, s.where())
}

// where describes the port of the service.
func (s Service) where() string {
	return fmt.Sprintf("%s has port %d, or the one set by %s of sonde-cp", s.short(), s.Port, s.Flag)
}

func (s Service) short() string {
	if s == Agents {
		return "the one for " + s.Name
	}
	return s.Name
}

// AddressFlag is the value of a flag with an address of the service.
type AddressFlag struct {
	Service Service
	To      *string
}

// Set implements the Value of package pflag.
func (f *AddressFlag) Set(text string) error {
	address, err := f.Service.Address(text)
	if err == nil {
		*f.To = address
	}
	return err
}

// String implements the Value of package pflag.
func (f *AddressFlag) String() string {
	if f.To == nil {
		return ""
	}
	return *f.To
}

// Type implements the Value of package pflag.
func (f *AddressFlag) Type() string { return "string" }
