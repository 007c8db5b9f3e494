package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// packageOf returns a package with these regular files, and with links where the content begins with "-> ".
func packageOf(t *testing.T, name string, files map[string]string) *debian.Package {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for file, content := range files {
		header := &tar.Header{Name: "." + file, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(content))}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, target, 0
			content = ""
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := debian.Read(name, &text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shell is a small program that needs a loader and libraries, and also replaces them.
func shell(t *testing.T) (program string, loader string, libraries []string) {
	t.Helper()
	content, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	loader, libraries, err = debian.Dynamic(content)
	if err != nil || loader == "" || len(libraries) == 0 {
		t.Fatalf("debian.Dynamic(/bin/sh) = %q, %q, %v, want a loader and libraries", loader, libraries, err)
	}
	return string(content), loader, libraries
}

// libc returns the files of a package from before the merge of /lib into /usr/lib.
func libc(t *testing.T) (files map[string]string, program string) {
	t.Helper()
	program, loader, libraries := shell(t)
	real := "/lib/test-linux-gnu/" + path.Base(loader)
	files = map[string]string{
		loader: "-> " + real, real: program, documentation(libcPackage): "license", "/lib/test-linux-gnu/libunused.so.1": "x",
	}
	for _, library := range libraries {
		files["/lib/test-linux-gnu/"+library] = program
	}
	return files, program
}

func testInputs(t *testing.T) *inputs {
	t.Helper()
	files, program := libc(t)
	return &inputs{
		programs: map[string][]byte{"sonde-cp": []byte("cp"), "sonde-dp": []byte("dp"), "sonde-watchdog": []byte("watchdog"), "sonde-cni": []byte("cni"), "sonde-cni-plugin": []byte("plugin"), "sonde-exec": []byte("exec"), "sondectl": []byte("ctl")},
		envoy:    []byte(program), license: []byte("license"),
		libc: packageOf(t, libcPackage, files),
		certificates: packageOf(t, certificatesPackage, map[string]string{
			"/usr/share/ca-certificates/mozilla/B.crt": "B\n", "/usr/share/ca-certificates/mozilla/A.crt": "A", documentation(certificatesPackage): "license",
		}),
	}
}

func digests(t *testing.T, image v1.Image) []string {
	t.Helper()
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{digest.String()}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, digest.String())
	}
	return all
}

// TestImageReproducible builds an image twice from equal inputs, and once with another program.
func TestImageReproducible(t *testing.T) {
	make3 := func(change func(*inputs)) []string {
		in := testInputs(t)
		change(in)
		image, err := in.image()
		if err != nil {
			t.Fatal(err)
		}
		return digests(t, image)
	}
	first := make3(func(*inputs) {})
	if again := make3(func(*inputs) {}); !slices.Equal(first, again) {
		t.Errorf("the same inputs make %q and %q", first, again)
	}
	other := make3(func(in *inputs) { in.programs["sonde-dp"] = []byte("DP") })
	if first[0] == other[0] || !slices.Equal(first[1:3], other[1:3]) || first[3] == other[3] {
		t.Errorf("another program: digests %q and %q, want the image's and the last layer's to change", first, other)
	}
}

func TestImageConfig(t *testing.T) {
	image, err := testInputs(t).image()
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := file.Config; c.User != "5678" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/sonde-dp"}) || !slices.Equal(c.Env, []string{"PATH=/usr/bin"}) {
		t.Errorf("config = %+v, want user 5678, sonde-dp and its PATH", c)
	}
}

func TestBase(t *testing.T) {
	base, err := testInputs(t).base()
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	for _, f := range base {
		contents[f.Path] = string(f.Content)
	}
	_, loader, libraries := shell(t)
	for _, library := range append(libraries, path.Base(loader)) {
		if contents["/usr/lib/test-linux-gnu/"+library] == "" {
			t.Errorf("the image lacks %s", library)
		}
	}
	for file, want := range map[string]string{
		"/usr" + loader:            "/lib/test-linux-gnu/" + path.Base(loader),
		"/lib":                     "usr/lib",
		certificateFile:            "A\nB\n",
		"/etc/group":               group,
		path.Dir(loader):           "usr" + path.Dir(loader),
		documentation(libcPackage): "license", documentation(certificatesPackage): "license",
	} {
		if contents[file] != want {
			t.Errorf("%s is %q, want %q", file, contents[file], want)
		}
	}
	if _, ok := contents["/usr/lib/test-linux-gnu/libunused.so.1"]; ok {
		t.Error("the image has an unused library")
	}
	if _, err := archive.Layer(base); err != nil {
		t.Error(err)
	}
}

func TestBaseFaults(t *testing.T) {
	_, _, libraries := shell(t)
	tests := map[string]struct {
		change func(files map[string]string)
		want   string
	}{
		"no library": {func(files map[string]string) { delete(files, "/lib/test-linux-gnu/"+libraries[0]) }, "package libc6 has no library " + libraries[0]},
		"no license": {func(files map[string]string) { delete(files, documentation(libcPackage)) }, "package libc6 has no " + documentation(libcPackage)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files, _ := libc(t)
			tc.change(files)
			in := testInputs(t)
			in.libc = packageOf(t, libcPackage, files)
			if _, err := in.base(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("base() error = %v, want one with %q", err, tc.want)
			}
		})
	}
	in := testInputs(t)
	in.certificates = packageOf(t, certificatesPackage, map[string]string{"/usr/share/doc/x": "x"})
	if _, err := in.base(); err == nil || !strings.Contains(err.Error(), "no certificates") {
		t.Errorf("base() without certificates: error = %v", err)
	}
	in = testInputs(t)
	in.envoy = []byte("no ELF")
	if _, err := in.base(); err == nil || !strings.Contains(err.Error(), "find the libraries of Envoy") {
		t.Errorf("base() with an Envoy that is no program: error = %v", err)
	}
}

func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"none":          {nil, "--programs is missing"},
		"bad tag":       {[]string{"--programs=x", "--envoy=x", "--license=x", "--output=x", "--tag=sonde:dev"}, `--tag "sonde:dev"`},
		"no programs":   {[]string{"--programs=" + t.TempDir(), "--envoy=x", "--license=x", "--output=x"}, "`make build` makes them"},
		"more than one": {[]string{"x"}, `unknown argument "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(t.Context(), tc.args, &out, &out); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("run() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}
