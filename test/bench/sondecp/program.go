package sondecp

import (
	"context"
	"errors"
	"fmt"
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
