// Package kubeconfig reads the kubeconfigs of watched clusters. They come from other people's Secrets, so they must not
// make the watchdog run a program, read its files, or call its host or its cloud's metadata service.
package kubeconfig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Key of the Secret.
const Key = "kubeconfig"

// dialTimeout of a connection. A probe has its own timeout.
const dialTimeout = 10 * time.Second

// Target has the connection settings for the API server of a cluster.
type Target struct {
	Config *rest.Config
	// External is the server's address if it seems to be outside the watchdog's cluster: then the path of the probe may
	// break while the path of the dependants works.
	External string
}

// Parse reads a kubeconfig. Errors name the field, but no value, which may be a secret.
func Parse(data []byte) (*Target, error) {
	config, err := clientcmd.Load(data)
	if err != nil { // the decoder's error may quote a secret
		return nil, &mesh.FieldError{Field: Key, Allowed: "must be a kubeconfig, in YAML or JSON"}
	}
	c := config.Contexts[config.CurrentContext]
	if c == nil {
		return nil, &mesh.FieldError{Field: "current-context", Value: config.CurrentContext,
			Allowed: "must be the name of one of contexts"}
	}
	cluster, user := config.Clusters[c.Cluster], config.AuthInfos[c.AuthInfo]
	var errs []error
	if cluster == nil {
		errs = append(errs, &mesh.FieldError{Field: "contexts[" + config.CurrentContext + "].cluster", Value: c.Cluster,
			Allowed: "must be the name of one of clusters"})
	} else {
		errs = append(errs, checkCluster(cluster)...)
	}
	if user == nil {
		errs = append(errs, &mesh.FieldError{Field: "contexts[" + config.CurrentContext + "].user", Value: c.AuthInfo,
			Allowed: "must be the name of one of users"})
	} else {
		errs = append(errs, checkUser(user)...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	made, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, &mesh.FieldError{Field: Key, Err: err}
	}
	made.Dial = (&net.Dialer{Timeout: dialTimeout, Control: refuseOwn}).DialContext
	t := &Target{Config: made}
	if isExternal(cluster.Server) {
		t.External = cluster.Server
	}
	return t, nil
}

func checkCluster(c *clientcmdapi.Cluster) (errs []error) {
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: "cluster." + field, Value: value, Allowed: allowed})
	}
	server, err := url.Parse(c.Server)
	switch {
	case err != nil || server.Scheme != "https" || server.Hostname() == "":
		refuse("server", mesh.Shorten(c.Server, 100), "must be an address such as https://kube-apiserver")
	case isOwn(server.Hostname()):
		refuse("server", c.Server, "must not be an address of the host itself, or of a cloud's metadata service")
	}
	if c.CertificateAuthority != "" {
		refuse("certificate-authority", c.CertificateAuthority, "must not be a file: write certificate-authority-data")
	}
	if c.ProxyURL != "" {
		refuse("proxy-url", "", "must not be given: a probe must use the same path as the cluster")
	}
	if c.InsecureSkipTLSVerify {
		refuse("insecure-skip-tls-verify", "true",
			"must not be given: write certificate-authority-data, so that the server is verified")
	}
	return errs
}

func checkUser(u *clientcmdapi.AuthInfo) (errs []error) {
	for field, given := range map[string]bool{"exec": u.Exec != nil, "auth-provider": u.AuthProvider != nil} {
		if given {
			errs = append(errs, &mesh.FieldError{Field: "user." + field,
				Allowed: "must not be given: the watchdog runs no programs; write token, or client-certificate-data and client-key-data"})
		}
	}
	for field, path := range map[string]string{"client-certificate": u.ClientCertificate, "client-key": u.ClientKey,
		"tokenFile": u.TokenFile} {
		if path != "" {
			errs = append(errs, &mesh.FieldError{Field: "user." + field,
				Allowed: "must not be a file: the watchdog does not read its own files"})
		}
	}
	return errs
}

// isOwn reports whether a host name means the watchdog's own host.
func isOwn(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		return isOwnAddress(ip)
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// metadata are addresses, in addition to link-local ones, at which clouds serve a host's credentials.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("100.96.0.96"),     // Volcano Engine
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
	netip.MustParseAddr("fd00:42::42"),     // Scaleway
}

// nat64 is the prefix through which IPv6-only hosts reach IPv4 addresses (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// isOwnAddress includes link-local and other metadata addresses, where clouds serve the host's credentials.
func isOwnAddress(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		whole := ip.As16()
		ip = netip.AddrFrom4([4]byte(whole[12:]))
	}
	return ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		slices.Contains(metadata, ip)
}

// refuseOwn is a net.Dialer.Control: a name may resolve to any address.
func refuseOwn(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", address, err)
	}
	if isOwnAddress(at.Addr()) {
		return &mesh.FieldError{Field: "cluster.server", Value: address,
			Allowed: "must not resolve to an address of the host itself, or of a cloud's metadata service"}
	}
	return nil
}

// isExternal reports whether a server seems to be outside this cluster: it has a public address, or a dotted name that
// is not a Service's.
func isExternal(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.Unmap().IsPrivate()
	}
	labels := strings.Split(host, ".")
	if len(labels) <= 2 { // kube-apiserver, or kube-apiserver.shoot--a--b
		return false
	}
	return labels[2] != "svc"
}
