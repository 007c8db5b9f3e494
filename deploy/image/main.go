// Command image builds Sonde's only container image: its programs, Envoy, and the files that they need from packages of
// Debian or Ubuntu. The image has no shell and no package manager. See docs/decisions/019-image-and-test-bed.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// defaultTag is the image for the test bed.
const defaultTag = "docker.io/sonde-mesh/sonde:dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	programs := flags.String("programs", "", "directory with "+strings.Join(programNames, ", ")+
		", as `make build` leaves them")
	envoy := flags.String("envoy", "", "path of Envoy")
	license := flags.String("license", "", "path of the project's license")
	tag := flags.String("tag", defaultTag, "name of the image, with its registry")
	output := flags.String("output", "", "file to write the image to, which `docker load` and `ctr images import` read")
	push := flags.Bool("push", false,
		"also push the image to the registry in its name, with the credentials of `docker login`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	for _, f := range []struct{ flag, value string }{{"programs", *programs}, {"envoy", *envoy}, {"license", *license},
		{"output", *output}} {
		if f.value == "" {
			return fmt.Errorf("--%s is missing", f.flag)
		}
	}
	reference, err := name.NewTag(*tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--tag %q: %w", *tag, err)
	}
	in, err := read(*programs, *envoy, *license)
	if err != nil {
		return err
	}
	if in.libc, in.certificates, err = distribution(ctx, stderr); err != nil {
		return err
	}
	image, err := in.image()
	if err != nil {
		return err
	}
	if err := archive.Write(*output, *tag, image); err != nil {
		return err
	}
	if *push {
		if err := remote.Write(reference, image, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", *tag, err)
		}
	}
	return report(stdout, *output, *tag, image)
}

// distribution returns the packages of this machine's distribution that the image needs.
func distribution(ctx context.Context, progress io.Writer) (libc, certificates *debian.Package, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, fmt.Errorf("find the cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}
	getter := &debian.Getter{Cache: filepath.Join(cache, "sonde", "image"), Progress: progress}
	packages, err := getter.Get(ctx, libcPackage, certificatesPackage)
	if err != nil {
		return nil, nil, err
	}
	return packages[0], packages[1], nil
}

// read reads the files among the inputs.
func read(programs, envoy, license string) (*inputs, error) {
	in := &inputs{programs: map[string][]byte{}}
	var err error
	for _, name := range programNames {
		if in.programs[name], err = os.ReadFile(filepath.Join(programs, name)); err != nil {
			return nil, fmt.Errorf("read a program (`make build` makes them): %w", err)
		}
	}
	if in.envoy, err = os.ReadFile(envoy); err != nil {
		return nil, fmt.Errorf("read Envoy: %w", err)
	}
	if in.license, err = os.ReadFile(license); err != nil {
		return nil, fmt.Errorf("read the license: %w", err)
	}
	return in, nil
}

func report(stdout io.Writer, file, tag string, image v1.Image) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	var size int64
	for layer := range slices.Values(layers) {
		n, err := layer.Size()
		if err != nil {
			return err
		}
		size += n
	}
	_, err = fmt.Fprintf(stdout, "%s: %s\n%s, %.1f MB in %d layers\n", file, tag, digest, float64(size)/1e6, len(layers))
	return err
}
