//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	prometheus "github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/monitoring"
)

// prom is a Prometheus on the network of node 1, which scrapes the cluster as in docs/guides/monitoring.md.
type prom struct {
	t   *testing.T
	api prometheusv1.API
}

// startPrometheus starts a Prometheus with the alerts, in which each minute is shortened to six seconds. It
// ends with the test.
func startPrometheus(t *testing.T) *prom {
	t.Helper()
	program, err := monitoring.Program(t.Context(), "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	addresses, release, err := harness.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	configurePrometheus(t, directory)
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+filepath.Join(directory, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(directory, "data"),
		"--web.listen-address="+addresses[0], "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // the end of the test's context killed it
		_ = release()
		if t.Failed() {
			t.Logf("Prometheus says:\n%s", &log)
		}
	})
	client, err := prometheus.NewClient(prometheus.Config{Address: "http://" + addresses[0]})
	if err != nil {
		t.Fatal(err)
	}
	p := &prom{t, prometheusv1.NewAPI(client)}
	wait(t, "Prometheus to answer", func() error {
		_, err := p.query("vector(1)")
		return err
	})
	return p
}

// configurePrometheus writes the guide's configuration, adapted to a Prometheus outside of pods, and a job for API
// servers.
func configurePrometheus(t *testing.T, directory string) {
	t.Helper()
	rules, err := monitoring.Read(monitoring.RulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := monitoring.ScrapeConfig(monitoring.Guide)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	config["global"] = map[string]any{"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
	jobs := config["scrape_configs"].([]any) //nolint:forcetypeassert // promtool has checked it
	for _, job := range jobs {
		for _, discovery := range job.(map[string]any)["kubernetes_sd_configs"].([]any) { //nolint:forcetypeassert // the same
			discovery.(map[string]any)["kubeconfig_file"] = os.Getenv("KUBECONFIG") //nolint:forcetypeassert // the same
		}
	}
	config["scrape_configs"] = append(jobs, apiServerJob(t, directory))
	configText, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"prometheus.yml": string(configText), "alerts.yaml": monitoring.Shorten(rules)} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// apiServerJob returns a job that scrapes the API server's metrics of webhooks, with the identity of the test.
func apiServerJob(t *testing.T, directory string) map[string]any {
	t.Helper()
	config := rest.CopyConfig(cluster.config)
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"ca.crt": config.CAData, "tls.crt": config.CertData, "tls.key": config.KeyData} {
		if err := os.WriteFile(filepath.Join(directory, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"job_name": "apiserver", "scheme": "https", "scrape_interval": "6s",
		"tls_config":             map[string]any{"ca_file": "ca.crt", "cert_file": "tls.crt", "key_file": "tls.key"},
		"static_configs":         []any{map[string]any{"targets": []string{at.Host}}},
		"metric_relabel_configs": []any{map[string]any{"source_labels": []string{"__name__"}, "regex": "apiserver_admission_webhook_.*", "action": "keep"}},
	}
}

// query returns the current value of an expression.
func (p *prom) query(expr string) (model.Vector, error) {
	value, _, _, err := p.api.Query(p.t.Context(), expr, time.Now())
	if err != nil {
		return nil, err
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("%s gives a %s", expr, value.Type())
	}
	return vector, nil
}

// firing returns the firing alerts that match, such as alertname="SondeAgentsLost".
func (p *prom) firing(matchers string) (model.Vector, error) {
	return p.query(`ALERTS{alertstate="firing", ` + matchers + `}`)
}

// fires returns an error unless a matching alert fires.
func (p *prom) fires(matchers string) error {
	found, err := p.firing(matchers)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("firing: %s", p.describe())
	}
	return err
}

// waitFiring waits until an alert fires.
func (p *prom) waitFiring(matchers string) {
	p.t.Helper()
	began := time.Now()
	wait(p.t, "the alert "+matchers, func() error { return p.fires(matchers) })
	p.t.Logf("%s fires after %s", matchers, time.Since(began).Round(time.Second))
}

// waitResolved waits until an alert stops firing.
func (p *prom) waitResolved(matchers string) {
	p.t.Helper()
	wait(p.t, "the end of the alert "+matchers, func() error {
		found, err := p.firing(matchers)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("%s fires", found)
		}
		return err
	})
}

// describe returns all alerts that are firing or pending.
func (p *prom) describe() string {
	all, err := p.query("ALERTS")
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, sample := range all {
		lines = append(lines, sample.Metric.String())
	}
	return strings.Join(lines, "\n")
}
