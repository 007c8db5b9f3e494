// Package monitoring tests docs/guides/monitoring.md for users of Prometheus: the scrape configuration of the guide,
// and the alerts of deploy/chart/files/alerts.yaml.
package monitoring

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/test/harness"
)

// Files of the repository.
const (
	RulesFile = "deploy/chart/files/alerts.yaml"
	Guide     = "docs/guides/monitoring.md"
)

// Rules is a rule file of Prometheus.
type Rules struct {
	Groups []struct {
		Name  string  `json:"name"`
		Rules []Alert `json:"rules"`
	} `json:"groups"`
}

// Alert is an alerting rule.
type Alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Program returns the path of prometheus or promtool, and builds it if it is not in the cache.
func Program(ctx context.Context, name string) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	var problems strings.Builder
	cmd := exec.CommandContext(ctx, "make", "--silent", "--no-print-directory", "-C", root, name)
	cmd.Stderr = &problems
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, &problems)
	}
	return strings.TrimSpace(string(path)), nil
}

// Read returns a file of the repository.
func Read(name string) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, name))
	return string(text), err
}

// Alerts returns the alerts of RulesFile.
func Alerts() ([]Alert, error) {
	rules, err := Read(RulesFile)
	if err != nil {
		return nil, err
	}
	var file Rules
	if err := yaml.UnmarshalStrict([]byte(rules), &file); err != nil {
		return nil, fmt.Errorf("decode the rules: %w", err)
	}
	var all []Alert
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all, nil
}

// scrapes matches a Prometheus configuration block in a page of the docs.
var scrapes = regexp.MustCompile("(?ms)^```yaml\n((?:[^`]*\n)?scrape_configs:\n.*?)^```$")

// ScrapeConfig returns the only Prometheus configuration on a page of the docs.
func ScrapeConfig(page string) (string, error) {
	text, err := Read(page)
	if err != nil {
		return "", err
	}
	blocks := scrapes.FindAllStringSubmatch(text, -1)
	if len(blocks) != 1 {
		return "", fmt.Errorf("%s has %d configurations of Prometheus, want one", page, len(blocks))
	}
	return blocks[0][1], nil
}

// minutes matches the durations of the rules: how long a condition must last, and the range of an expression.
var minutes = regexp.MustCompile(`(for: |\[)(\d+)m\b`)

// Shorten returns rules in which each minute is shortened to six seconds, for tests that cause
// faults.
func Shorten(rules string) string {
	return minutes.ReplaceAllStringFunc(rules, func(duration string) string {
		part := minutes.FindStringSubmatch(duration)
		n, _ := strconv.Atoi(part[2]) // digits
		return part[1] + strconv.Itoa(6*n) + "s"
	})
}
