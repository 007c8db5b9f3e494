// Package reach is what clients of the control plane share: its address as operators write it, and why it could not be reached.
package reach

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Service is what a client wants of the control plane, each at a port of its own.
type Service struct {
	// Name is what it is called in errors.
	Name string
	// Port is the default, and Flag the flag of sonde-cp for another one.
	Port int
	Flag string
}

// The services. Clients ask for the first two.
var (
	Agents  = Service{"agents and ADS", mesh.PortAgents, "--agents-port"}
	Admin   = Service{"the admin API", mesh.PortAdmin, "--admin-port"}
	Health  = Service{"health and metrics", mesh.PortHealth, "--health-port"}
	Webhook = Service{"the admission webhook", mesh.PortWebhook, "--webhook-port"}
)

// Usual returns the service that is at a port by default, nil for other ports.
func Usual(port string) *Service {
	for _, s := range []*Service{&Agents, &Admin, &Health, &Webhook} {
		if strconv.Itoa(s.Port) == port {
			return s
		}
	}
	return nil
}

// Address returns the host:port of an address as operators write it, also with https:// before it and a slash behind it. The error says what is
// allowed.
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

// WrongPort says that a port is that of another service.
func (s Service) WrongPort(other Service) string {
	return fmt.Sprintf("it is the control plane's port for %s: %s", other.Name, s.where())
}

// where says where the service is.
func (s Service) where() string {
	return fmt.Sprintf("%s has port %d, or that of %s of sonde-cp", s.short(), s.Port, s.Flag)
}

func (s Service) short() string {
	if s == Agents {
		return "the one for " + s.Name
	}
	return s.Name
}

// AddressFlag is the value of a flag that is an address of the service.
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
