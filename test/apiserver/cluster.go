// Package apiserver runs a real API server with its etcd, for tests of programs that read and write a cluster. There
// are no controllers and no kubelets, so tests write the objects that these would write, such as EndpointSlices.
package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/test/harness"
)

// Cluster is a running API server.
type Cluster struct {
	// Config connects as a member of system:masters.
	Config *rest.Config
	// Kubeconfig is a file with the same configuration.
	Kubeconfig string

	directory string
	processes []*exec.Cmd
	release   func() error // releases the addresses
}

// Start starts an API server with Sonde's CustomResourceDefinitions. The main goroutine must call it, because the
// programs end with the thread that started them. Close ends the API server.
func Start(ctx context.Context) (*Cluster, error) {
	runtime.LockOSThread()
	programs, err := binaries(ctx)
	if err != nil {
		return nil, err
	}
	addresses, release, err := harness.FreeAddresses(3)
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "sonde-kube-")
	if err != nil {
		return nil, errors.Join(err, release())
	}
	c := &Cluster{directory: directory, release: release}
	if err := c.run(ctx, programs, addresses); err != nil {
		return nil, errors.Join(err, c.logs(), c.Close())
	}
	return c, nil
}

func (c *Cluster) run(ctx context.Context, programs string, addresses []string) error {
	directory := c.directory
	etcd, peers := "http://"+addresses[0], "http://"+addresses[1]
	host, port, err := net.SplitHostPort(addresses[2])
	if err != nil {
		return err
	}
	if err := c.start(c.program(filepath.Join(programs, "etcd"),
		"--data-dir="+filepath.Join(directory, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)); err != nil {
		return err
	}
	token, err := c.writeCredentials()
	if err != nil {
		return err
	}
	if err := c.start(c.program(filepath.Join(programs, "kube-apiserver"),
		"--etcd-servers="+etcd, "--bind-address="+host, "--secure-port="+port,
		"--cert-dir="+filepath.Join(directory, "certificates"), "--token-auth-file="+filepath.Join(directory, "tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file="+filepath.Join(directory, "accounts.key"),
		"--service-account-key-file="+filepath.Join(directory, "accounts.key"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112", "--allow-privileged",
		// EvictionRequests are alpha.
		"--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true",
		"--audit-policy-file="+filepath.Join(directory, "audit.yaml"), "--audit-log-path="+c.auditLog())); err != nil {
		return err
	}
	c.Config = &rest.Config{
		Host: "https://" + addresses[2], BearerToken: token, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(directory, "certificates", "apiserver.crt")},
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	c.Kubeconfig = filepath.Join(directory, "kubeconfig")
	return errors.Join(c.WriteKubeconfig(c.Kubeconfig, c.Config.Host, token), c.installCRDs(ctx))
}

// binaries returns the directory with etcd and kube-apiserver, and builds them if they are not in the cache.
func binaries(ctx context.Context) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "./testbed", "binaries", "--only=kube-apiserver,etcd")
	cmd.Dir, cmd.Stderr = filepath.Join(root, "tools"), os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the Makefile
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build kube-apiserver and etcd: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (c *Cluster) program(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...) //nolint:noctx // Close ends it
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts a program, whose output goes to a file with the program's name.
func (c *Cluster) start(cmd *exec.Cmd) error {
	path := filepath.Join(c.directory, filepath.Base(cmd.Path)+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	c.processes = append(c.processes, cmd)
	return nil
}

// logs returns the end of the programs' logs, as an error.
func (c *Cluster) logs() error {
	var errs []error
	for _, name := range []string{"etcd", "kube-apiserver"} {
		text, err := os.ReadFile(filepath.Join(c.directory, name+".log"))
		if err == nil {
			err = fmt.Errorf("%s: %s", name, text[max(0, len(text)-2000):])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeCredentials writes an administrator's token, which it returns, and the key of service accounts.
func (c *Cluster) writeCredentials() (string, error) {
	token := rand.Text()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	return token, errors.Join(
		os.WriteFile(filepath.Join(c.directory, "audit.yaml"), []byte(auditPolicy), 0o600),
		os.WriteFile(filepath.Join(c.directory, "tokens.csv"), []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600),
		os.WriteFile(filepath.Join(c.directory, "accounts.key"),
			pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}

// WriteKubeconfig writes a kubeconfig with this API server address and token.
func (c *Cluster) WriteKubeconfig(path, host, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: host, CertificateAuthority: c.Config.CAFile}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}

// Ready waits until the API server is ready.
func (c *Cluster) Ready(ctx context.Context) error {
	return harness.Poll(ctx, "the API server", func(ctx context.Context) error {
		_, err := c.Do(ctx, http.MethodGet, "/readyz", "", "")
		return err
	})
}

// installCRDs creates the CustomResourceDefinitions, and waits until they are served.
func (c *Cluster) installCRDs(ctx context.Context) error {
	files, err := crds.Files.ReadDir(".")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := crds.Files.ReadFile(f.Name())
		if err != nil {
			return err
		}
		if _, err := c.Do(ctx, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/yaml", string(text)); err != nil {
			return fmt.Errorf("create the CustomResourceDefinition in %s: %w", f.Name(), err)
		}
	}
	for _, resource := range []string{"meshes", "dataplanes"} {
		if err := harness.Poll(ctx, resource, func(ctx context.Context) error {
			_, err := c.Do(ctx, http.MethodGet, "/apis/sonde.dev/v1alpha1/"+resource, "", "")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Do sends a request to the API server, and returns its response. The error of a refusal contains
// the response.
func (c *Cluster) Do(ctx context.Context, method, path, contentType, body string) (string, error) {
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.Config.Host+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return "", fmt.Errorf("%s: %s", response.Status, answer)
	}
	return string(answer), nil
}

// Close ends the programs, and removes their files.
func (c *Cluster) Close() error {
	for _, p := range slices.Backward(c.processes) { // the API server first
		_ = p.Process.Kill()
		_ = p.Wait()
	}
	return errors.Join(os.RemoveAll(c.directory), c.release())
}
