package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/test/harness"
)

// Build builds sonde-cp as the Makefile does, and returns its path.
func Build(ctx context.Context) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(root, "bin", "sonde-cp")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, "./cmd/sonde-cp")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sonde-cp: %w\n%s", err, out)
	}
	return program, nil
}

// Ready is nil once the control plane that serves health on the address has read its store.
func Ready(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// Memory is the anonymous memory of a process in bytes: what is not a file's.
func Memory(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "RssAnon:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("the kernel says no RssAnon")
}
