package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const (
	// gateCounts is the feature gate that makes a kubelet count errored probes as failures (kubernetes#139872).
	gateCounts = "ProbeErrorAsFailure"
	// kubeletsAtMost is the maximum number of kubelets whose metrics are read, at least one of each version first.
	kubeletsAtMost = 20
	// metricsWithin limits the time for each kubelet's metrics, and metricsBytes their size.
	metricsWithin = 10 * time.Second
	metricsBytes  = 16 << 20
)

// gates says which kubelets have gateCounts.
type gates struct {
	on     []string // nodes with the gate
	asked  int
	unread map[string][]string // nodes by the error of reading their metrics
}

// readGates reads the metrics of kubelets through the API server. It returns an error if the metrics of no kubelet can
// be read.
func (r *reader) readGates(ctx context.Context) (gates, error) {
	g := gates{unread: map[string][]string{}}
	if r.f.nodes.err != nil {
		return g, r.f.nodes.err
	}
	var mu sync.Mutex
	var forbidden error
	var group errgroup.Group
	group.SetLimit(requestsAtOnce)
	for _, node := range kubeletsToAsk(r.f.nodes.is) {
		group.Go(func() error {
			on, err := r.hasGate(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case apierrors.IsForbidden(err):
				forbidden = err
			case err != nil:
				why := r.in.Explain("read its metrics", err).Error()
				g.unread[why] = append(g.unread[why], node)
			default:
				g.asked++
				if on {
					g.on = append(g.on, node)
				}
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	if g.asked == 0 && forbidden != nil {
		return g, forbidden
	}
	return g, nil
}

// kubeletsToAsk returns Ready nodes, beginning with one node for each version of the kubelet.
func kubeletsToAsk(nodes []corev1.Node) []string {
	var first, others []string
	seen := map[string]bool{}
	for _, n := range slices.SortedFunc(slices.Values(nodes), byName) {
		v := n.Status.NodeInfo.KubeletVersion
		switch {
		case !isReady(&n):
		case seen[v]:
			others = append(others, n.Name)
		default:
			seen[v] = true
			first = append(first, n.Name)
		}
	}
	all := slices.Concat(first, others)
	return all[:min(len(all), kubeletsAtMost)]
}

// hasGate reports whether the kubelet of a node has gateCounts.
func (r *reader) hasGate(ctx context.Context, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsWithin)
	defer cancel()
	proxy := r.client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy")
	metrics, err := proxy.Suffix("metrics").Stream(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = metrics.Close() }() // only reads: a close error loses nothing
	return gateOn(io.LimitReader(metrics, metricsBytes))
}

// gateOn finds gateCounts in the metrics of a kubelet. Kubelets without the gate have no line for it.
func gateOn(metrics io.Reader) (bool, error) {
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, 1<<20)
	found := false
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "kubernetes_feature_enabled{") {
			continue
		}
		found = true
		if strings.Contains(line, `name="`+gateCounts+`"`) {
			return strings.HasSuffix(line, " 1"), nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("read metrics: %w", err)
	}
	if !found {
		return false, errors.New("read metrics: no kubernetes_feature_enabled among them")
	}
	return false, nil
}

func (f *facts) needsGates() error { return f.gates.err }

// kubeletGates reports kubelets with the gate that makes them restart containers whose failures are held back.
var kubeletGates = check{"kubelet gates", (*facts).needsGates, func(f *facts, l *lines) {
	g := f.gates.is
	const text = "the kubelet has the gate " + gateCounts
	if len(g.on) > 0 && f.hold() == mesh.HoldWarning {
		l.add(OK, text+": guarded liveness holds failures back as warnings", "", sorted(g.on)...)
	} else {
		l.warnOf(sorted(g.on), text+": it counts errored probes as failures, so guarded liveness does not limit restarts there", holdByWarning)
	}
	l.warnOf(nodesBy(g.unread), "unknown on some nodes", "check again, or use --nodes")
	if n := g.asked - len(g.on); n > 0 {
		l.add(OK, fmt.Sprintf("%s of %d do not have %s", printer.Plural(n, "kubelet"), g.asked, gateCounts), "")
	}
}}
