package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// distribution are the packages with commands that tests call.
var distribution = []string{
	"bash", "bind9-dnsutils", "busybox-static", "conntrack", "coreutils", "curl", "dash", "findutils", "grep", "hostname",
	"iproute2", "libc-bin", "mawk", "netcat-openbsd", "nginx", "procps", "sed", "util-linux", "wget",
}

// unused directories of the distribution, which would double the image.
var unused = []string{"/usr/share/doc/", "/usr/share/locale/", "/usr/share/man/", "/perl/"}

const (
	pauseProgram = "pause"
	dnsProgram   = "coredns"
	nginxConfig  = `user root;
pid /tmp/nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  server { listen 80; listen [::]:80; root /usr/share/nginx/html; }
}
`
	// Some tests use a user that exists in every distribution.
	etcPasswd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	etcGroup  = "root:x:0:\nnogroup:x:65534:\n"
	nsswitch  = "passwd: files\ngroup: files\nhosts: files dns\n"
)

// writeImages builds the images with these tags from programs and the distribution, if possible, and writes them to a
// file.
func writeImages(ctx context.Context, getter *debian.Getter, programs string, tags []string, file string) error {
	base, err := base(ctx, getter)
	if err != nil {
		return err
	}
	makers := map[string]func(v1.Layer) (v1.Image, error){
		"registry.k8s.io/e2e-test-images/agnhost": func(base v1.Layer) (v1.Image, error) { return agnhost(programs, base) },
		// The original image's sh supports [[, unlike dash.
		"registry.k8s.io/e2e-test-images/busybox": func(base v1.Layer) (v1.Image, error) {
			shell := archive.File{Path: "/usr/bin/sh", Mode: fs.ModeSymlink | 0o777, Content: []byte("busybox")}
			return image(v1.Config{Cmd: []string{"sh"}}, []archive.File{shell}, base)
		},
		"registry.k8s.io/e2e-test-images/nginx": func(base v1.Layer) (v1.Image, error) {
			return image(v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}, []archive.File{
				{Path: "/etc/nginx/nginx.conf", Mode: 0o644, Content: []byte(nginxConfig)},
				{Path: "/var/lib/nginx", Mode: fs.ModeDir | 0o755},
				{Path: "/var/log/nginx", Mode: fs.ModeDir | 0o755},
			}, base)
		},
		"registry.k8s.io/e2e-test-images/glibc-dns-testing":      plain,
		"registry.k8s.io/build-image/distroless-iptables":        plain, // for conntrack
		"registry.k8s.io/e2e-test-images/regression-issue-74839": func(v1.Layer) (v1.Image, error) { return alone(programs, "regression-issue-74839") },
		"registry.k8s.io/pause":                                  func(v1.Layer) (v1.Image, error) { return alone(programs, pauseProgram) },
	}
	images := map[string]v1.Image{}
	for _, tag := range tags {
		repository, _, _ := strings.Cut(tag, ":")
		if maker, ok := makers[repository]; ok {
			if images[tag], err = maker(base); err != nil {
				return fmt.Errorf("make %s: %w", tag, err)
			}
		}
	}
	return archive.WriteAll(file, images)
}

// plain returns an image with only the distribution.
func plain(base v1.Layer) (v1.Image, error) { return image(v1.Config{Cmd: []string{"sh"}}, nil, base) }

// base returns the distribution as a layer.
func base(ctx context.Context, getter *debian.Getter) (v1.Layer, error) {
	packages, err := getter.WithDependencies(ctx, distribution...)
	if err != nil {
		return nil, err
	}
	all := map[string]archive.File{}
	for _, p := range packages {
		maps.Copy(all, p.Files)
	}
	maps.DeleteFunc(all, func(file string, _ archive.File) bool {
		return slices.ContainsFunc(unused, func(directory string) bool { return strings.Contains(file, directory) })
	})
	for _, f := range []archive.File{
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte(etcPasswd)},
		{Path: "/etc/group", Mode: 0o644, Content: []byte(etcGroup)},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte(nsswitch)},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		// Like the packages' installation scripts.
		{Path: "/usr/bin/awk", Mode: fs.ModeSymlink | 0o777, Content: []byte("mawk")},
		{Path: "/usr/bin/nc", Mode: fs.ModeSymlink | 0o777, Content: []byte("nc.openbsd")},
	} {
		all[f.Path] = f
	}
	files := slices.Collect(maps.Values(all))
	return archive.Layer(append(files, debian.Links(files)...))
}

// agnhost returns the image of the program of most test pods. It needs a certificate and a directory, and tests of DNS
// need a server.
// Source: k8s.io/kubernetes/test/images/agnhost/Dockerfile.
func agnhost(programs string, base v1.Layer) (v1.Image, error) {
	agnhost, err := program(programs, "agnhost")
	if err != nil {
		return nil, err
	}
	dns, err := program(programs, dnsProgram)
	if err != nil {
		return nil, err
	}
	certificate, key, err := selfSigned()
	if err != nil {
		return nil, err
	}
	return image(v1.Config{Entrypoint: []string{agnhost.Path}, Cmd: []string{"pause"}}, []archive.File{
		agnhost, dns,
		{Path: agnhost.Path + "-2", Mode: fs.ModeSymlink | 0o777, Content: []byte("agnhost")},
		{Path: "/localhost.crt", Mode: 0o644, Content: certificate},
		{Path: "/localhost.key", Mode: 0o644, Content: key},
		{Path: "/uploads", Mode: fs.ModeDir | 0o755},
	}, base)
}

// alone returns the image with one static program.
func alone(programs, name string) (v1.Image, error) {
	program, err := program(programs, name)
	if err != nil {
		return nil, err
	}
	return image(v1.Config{Entrypoint: []string{program.Path}}, []archive.File{program})
}

func program(directory, name string) (archive.File, error) {
	content, err := os.ReadFile(filepath.Join(directory, name))
	return archive.File{Path: path.Join("/", name), Mode: 0o755, Content: content}, err
}

// image returns an image of layers and files.
func image(config v1.Config, files []archive.File, layers ...v1.Layer) (v1.Image, error) {
	if len(files) > 0 {
		layer, err := archive.Layer(files)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return archive.Image(config, layers...)
}

// selfSigned returns a certificate of localhost that no test verifies, and its key.
func selfSigned() (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().AddDate(1, 0, 0),
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), err
}
