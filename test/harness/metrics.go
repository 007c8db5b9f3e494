package harness

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Metrics returns the control plane's metrics, by name and labels.
func (m *Machine) Metrics(ctx context.Context) (map[string]float64, error) {
	text, err := m.Get(ctx, "http://"+m.Health+"/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(strings.NewReader(text))
}

// ParseMetrics reads metrics in Prometheus' text format, by name and labels.
func ParseMetrics(r io.Reader) (map[string]float64, error) {
	metrics := map[string]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("parse metric %q: %w", line, err)
		}
		metrics[line[:space]] = value
	}
	return metrics, lines.Err()
}
