package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// Names of the distribution's packages.
const (
	libcPackage         = "libc6"
	certificatesPackage = "ca-certificates"
)

// programNames are the programs of Sonde. The image has Envoy in the same directory, where sonde-dp looks first.
var programNames = []string{
	"sonde-cp", "sonde-dp", "sonde-watchdog", "sonde-cni", "sonde-cni-plugin", "sonde-exec", "sondectl",
}

const (
	programDirectory = "/usr/bin"
	certificateFile  = "/etc/ssl/certs/ca-certificates.crt"
	// user is the user whose connections are not redirected.
	user = "5678"
)

// Files of /etc with which programs look up their user, and host names.
const (
	passwd   = "root:x:0:0:root:/:/sbin/nologin\nsonde:x:" + user + ":" + user + ":sonde:/:/sbin/nologin\n"
	group    = "root:x:0:\nsonde:x:" + user + ":\n"
	nsswitch = "passwd: files\ngroup: files\nhosts: files dns\n"
)

const envoyNotice = "Envoy, https://github.com/envoyproxy/envoy. Copyright: The Envoy Project Authors. Its license:\n\n"

// inputs are the inputs of an image.
type inputs struct {
	programs map[string][]byte
	envoy    []byte
	// license is the Apache License 2.0, which is also Envoy's.
	license []byte
	// libc and certificates are the packages of the distribution.
	libc, certificates *debian.Package
}

// image has three layers, so that rarely changing ones are stored and transferred once: the distribution, Envoy,
// Sonde's programs.
func (in *inputs) image() (v1.Image, error) {
	base, err := in.base()
	if err != nil {
		return nil, err
	}
	own := []archive.File{{Path: documentation("sonde"), Mode: 0o644, Content: in.license}}
	for _, name := range programNames {
		own = append(own, archive.File{Path: programDirectory + "/" + name, Mode: 0o755, Content: in.programs[name]})
	}
	var layers []v1.Layer
	for _, files := range [][]archive.File{base, {
		{Path: programDirectory + "/envoy", Mode: 0o755, Content: in.envoy},
		{Path: documentation("envoy"), Mode: 0o644, Content: append([]byte(envoyNotice), in.license...)},
	}, own} {
		layer, err := archive.Layer(files)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return archive.Image(v1.Config{
		Entrypoint: []string{programDirectory + "/sonde-dp"}, // the entry point, since the sidecar sets only arguments
		Env:        []string{"PATH=" + programDirectory},
		User:       user,
		WorkingDir: "/",
	}, layers...)
}

// base returns the distribution's files: Envoy's libraries, certificates of public CAs, users, and /tmp.
func (in *inputs) base() ([]archive.File, error) {
	libraries, err := in.libc.LibrariesOf(in.envoy)
	if err != nil {
		return nil, fmt.Errorf("find the libraries of Envoy: %w", err)
	}
	certificates, err := bundle(in.certificates)
	if err != nil {
		return nil, err
	}
	files := append(libraries,
		archive.File{Path: certificateFile, Mode: 0o644, Content: certificates},
		archive.File{Path: "/etc/passwd", Mode: 0o644, Content: []byte(passwd)},
		archive.File{Path: "/etc/group", Mode: 0o644, Content: []byte(group)},
		archive.File{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte(nsswitch)},
		archive.File{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	)
	for _, p := range []*debian.Package{in.libc, in.certificates} {
		copyright, err := p.File(documentation(p.Name))
		if err != nil {
			return nil, err
		}
		files = append(files, copyright)
	}
	return files, nil
}

// documentation is Debian's directory for copyright files.
func documentation(name string) string { return "/usr/share/doc/" + name + "/copyright" }

// bundle returns all certificates of ca-certificates in one file, which the package only creates at its installation.
func bundle(p *debian.Package) ([]byte, error) {
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if strings.HasPrefix(name, "/usr/share/ca-certificates/mozilla/") && strings.HasSuffix(name, ".crt") {
			all.Write(bytes.TrimSpace(p.Files[name].Content))
			all.WriteByte('\n')
		}
	}
	if all.Len() == 0 {
		return nil, fmt.Errorf("package %s has no certificates of mozilla", p.Name)
	}
	return all.Bytes(), nil
}
