package sondecp

import (
	"context"
	"net/http"
	"path/filepath"

	"github.com/sonde-mesh/sonde/test/harness"
)

// Build builds sonde-cp, and returns its path.
func Build(ctx context.Context) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	return harness.BuildInto(ctx, filepath.Join(root, "bin"), "cmd/sonde-cp")
}

// Ready is an error until the control plane with this health address has read its store.
func Ready(ctx context.Context, address string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, err := harness.Get(ctx, &client, "http://"+address+"/readyz")
	return err
}
