package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// distribution returns the packages of the distribution of this machine that an image needs. They are downloaded once for each version.
func distribution(ctx context.Context, progress io.Writer) (libc, certificates *debian, err error) {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, nil, fmt.Errorf("find %s: %w: the image takes glibc and certificates from the packages of Debian or Ubuntu", program, err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, fmt.Errorf("find the cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}
	directory := filepath.Join(cache, "sonde", "image")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, nil, err
	}
	if libc, err = fetch(ctx, progress, directory, libcPackage); err != nil {
		return nil, nil, err
	}
	certificates, err = fetch(ctx, progress, directory, certificatesPackage)
	return libc, certificates, err
}

// fetch returns a package of the newest version that apt knows.
func fetch(ctx context.Context, progress io.Writer, directory, name string) (p *debian, err error) {
	work, err := os.MkdirTemp(directory, ".work-") // apt-get prints nothing where the package is already
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	out, err := output(ctx, work, "apt-get", "--print-uris", "download", name)
	if err != nil {
		return nil, fmt.Errorf("find package %s (does `apt-get update` help?): %w", name, err)
	}
	fields := strings.Fields(string(out)) // 'URI' FILE SIZE HASH
	if len(fields) < 2 || filepath.Base(fields[1]) != fields[1] {
		return nil, fmt.Errorf("find package %s: apt-get says %q", name, out)
	}
	path := filepath.Join(directory, fields[1])
	if _, err := os.Stat(path); err != nil {
		if _, err := fmt.Fprintf(progress, "getting %s (once; into %s)\n", fields[1], directory); err != nil {
			return nil, err
		}
		// apt checks the hash.
		if _, err := output(ctx, work, "apt-get", "--quiet", "download", name); err != nil {
			return nil, fmt.Errorf("download package %s: %w", name, err)
		}
		if err := os.Rename(filepath.Join(work, fields[1]), path); err != nil {
			return nil, err
		}
	}
	content, err := output(ctx, work, "dpkg-deb", "--fsys-tarfile", path)
	if err != nil {
		return nil, err
	}
	return readPackage(name, bytes.NewReader(content))
}

// output runs a program in a directory and returns what it prints. The error has what it says.
func output(ctx context.Context, directory, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = directory
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(problems.String()))
	}
	return out, nil
}
