package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

const (
	// nodesAtMost is the maximum number of nodes to test.
	nodesAtMost = 200
	// nodesWithin limits the time for all nodes; a flag limits the time for each.
	nodesWithin = 10 * time.Minute
)

// nodesRequest holds the values of the flags for --nodes.
type nodesRequest struct {
	asked            bool
	namespace, image string
	// within limits the time for each node.
	within time.Duration
}

// Flags of --nodes.
const (
	flagNodes          = "nodes"
	flagNodesNamespace = "nodes-namespace"
	flagNodesImage     = "nodes-image"
	flagNodesTimeout   = "nodes-timeout"
)

func (n *nodesRequest) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&n.asked, flagNodes, false, "test redirection by a Job on each node; only this flag makes the command write to the cluster")
	f.StringVar(&n.namespace, flagNodesNamespace, metav1.NamespaceDefault, "`NAMESPACE` of the Jobs, whose Pod Security must allow NET_ADMIN, with --nodes")
	f.StringVar(&n.image, flagNodesImage, "", "`IMAGE` of the sidecar, with --nodes; default with --installed: the installation's")
	f.DurationVar(&n.within, flagNodesTimeout, 2*time.Minute, "maximum time for a node, including the pull of the image, with --nodes")
}

// validate returns the errors of the flags.
func (n *nodesRequest) validate(cmd *cobra.Command, installed bool) error {
	refuse := func(flag, value, allowed string) error {
		return &mesh.FieldError{Field: "--" + flag, Value: value, Allowed: allowed}
	}
	if !n.asked {
		for _, flag := range []string{flagNodesNamespace, flagNodesImage, flagNodesTimeout} {
			if f := cmd.Flags().Lookup(flag); f.Changed {
				return refuse(flag, f.Value.String(), "must not be given without --"+flagNodes)
			}
		}
		return nil
	}
	if err := (webhook.Options{Image: n.image}).Validate(); err != nil {
		return mesh.RenameFields(err, map[string]string{"Image": "--" + flagNodesImage})
	}
	switch {
	case len(validation.IsDNS1123Label(n.namespace)) > 0:
		return refuse(flagNodesNamespace, n.namespace, "must be the name of a namespace")
	case n.image == "" && !installed:
		return refuse(flagNodesImage, "", "must be set with --nodes and without --installed: the image of the sidecar, which the nodes pull")
	case n.within < time.Second || n.within > nodesWithin:
		return refuse(flagNodesTimeout, n.within.String(), fmt.Sprintf("must be from 1s to %s", nodesWithin))
	}
	return nil
}

// tried holds the results of Jobs on nodes.
type tried struct {
	namespace, image string
	within           time.Duration
	// refused is the API server's error for a pod that redirects connections in the namespace.
	refused error
	// outcomes are for the tested nodes; leftOut lists the other nodes by reason.
	outcomes []outcome
	leftOut  map[string][]string
	// kept lists the Jobs that could not be deleted, each with the error.
	kept []string
}

// problem is the kind of a node's failure, "" for none.
type problem string

const (
	unpulled  problem = "unpulled"  // the image cannot be pulled
	unstarted problem = "unstarted" // no pod could run the test
	refuses   problem = "refuses"   // redirection fails
)

// outcome is the result of the test on a node.
type outcome struct {
	node, kernel string
	problem      problem
	// reason of the problem: the message of the kubelet, scheduler or agent.
	reason string
	// liveness says whether the kubelet discards errored liveness probes; livenessReason says why this is unknown.
	liveness       verdict
	livenessReason string
}

// verdict is the kubelet's treatment of an errored liveness probe.
type verdict string

const (
	notKnown verdict = ""
	discards verdict = "discards"
	counts   verdict = "counts" // counts the probe as a failure
)

func byName(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) }

// choose returns the nodes to test, sorted by name, and the names of the other nodes by reason.
func choose(nodes []corev1.Node) (try []corev1.Node, leftOut map[string][]string) {
	leftOut = map[string][]string{}
	for _, n := range slices.SortedFunc(slices.Values(nodes), byName) {
		why := ""
		switch {
		case cmp.Or(n.Status.NodeInfo.OperatingSystem, n.Labels[corev1.LabelOSStable]) == string(corev1.Windows):
			why = "Windows: no pods are injected"
		case !isReady(&n):
			why = "not Ready"
		case n.Spec.Unschedulable:
			why = "cordoned"
		case len(try) == nodesAtMost:
			why = fmt.Sprintf("beyond the first %d", nodesAtMost)
		}
		if why == "" {
			try = append(try, n)
		} else {
			leftOut[why] = append(leftOut[why], n.Name)
		}
	}
	return try, leftOut
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// outcomeOfPod returns the outcome from the pod's status, and whether it is final.
func outcomeOfPod(pod *corev1.Pod) (o outcome, done bool) {
	p, reason, redirected := outcomeOf(pod)
	v, unknown, asked := livenessOf(pod)
	o = outcome{problem: p, reason: reason, liveness: v, livenessReason: unknown}
	return o, redirected && (asked || o.problem == unpulled || pod.Status.Phase == corev1.PodFailed)
}

// livenessOf returns the verdict from the container with the errored liveness probe. A deleted pod shows nothing, since
// the kubelet kills all its containers.
func livenessOf(pod *corev1.Pod) (v verdict, reason string, done bool) {
	if pod.DeletionTimestamp != nil {
		return notKnown, "the pod was deleted", true
	}
	for _, s := range pod.Status.ContainerStatuses {
		t := s.State.Terminated
		switch {
		case s.Name != containerLiveness || t == nil:
		case t.ExitCode == 0:
			return discards, "", true
		case strings.Contains(t.Message, mesh.KubeletCountsErrored):
			return counts, "", true
		default:
			return notKnown, strings.TrimSuffix(fmt.Sprintf("ended with exit code %d (%s): %s", t.ExitCode, t.Reason, printer.LastLine(t.Message)), ": "), true
		}
	}
	return notKnown, "its container has not ended", false
}

// outcomeOf returns the outcome of redirection from the pod's status, and whether it is final.
func outcomeOf(pod *corev1.Pod) (p problem, reason string, done bool) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != mesh.ContainerInit {
			continue
		}
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case t != nil:
			p, reason = outcomeOfEnd(t)
			return p, reason, true
		case w != nil && podspec.WaitsForImage(w.Reason):
			return unpulled, cmp.Or(w.Message, w.Reason), true
		case w != nil && w.Message != "":
			return unstarted, w.Reason + ": " + w.Message, false
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return unstarted, strings.Trim(cmp.Or(pod.Status.Reason, "failed")+": "+pod.Status.Message, ": "), true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return unstarted, "not scheduled: " + c.Message, false
		}
	}
	if pod.Spec.NodeName == "" {
		return unstarted, "not scheduled", false
	}
	return unstarted, "its container has not ended", false
}

// outcomeOfEnd returns the outcome from a terminated container. Without a message of the program, the container was
// killed or never started.
func outcomeOfEnd(t *corev1.ContainerStateTerminated) (p problem, reason string) {
	switch {
	case t.ExitCode == 0:
		return "", ""
	case t.Message == "" || t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		reason = fmt.Sprintf("ended with exit code %d (%s): %s", t.ExitCode, t.Reason, t.Message)
		return unstarted, strings.TrimSuffix(reason, ": ")
	default:
		return refuses, printer.LastLine(t.Message) // the lines before it are the rules
	}
}

// triedNodes reports nodes that cannot redirect the connections of a pod.
var triedNodes = check{"nodes", (*facts).needsTried, func(f *facts, l *lines) {
	t := f.tried.is
	if t.refused != nil {
		l.fail(fmt.Sprintf("cannot create a pod that redirects connections in namespace %s: %s", t.namespace, t.refused),
			"set --nodes-namespace to a namespace for pods of the mesh: "+
				"its Pod Security must allow NET_ADMIN (pod-security.kubernetes.io/enforce: privileged)")
	} else {
		t.say(l)
	}
	t.aside(l)
}}

// say adds lines about failures on nodes, and the number of nodes that can redirect.
func (t *tried) say(l *lines) {
	failed := map[problem]map[string][]string{}
	var kernels []*version.Version
	good := 0
	for _, o := range t.outcomes {
		switch {
		case o.problem == "":
			good++
			if v, err := version.ParseGeneric(o.kernel); err == nil {
				kernels = append(kernels, v)
			}
			continue
		case failed[o.problem] == nil:
			failed[o.problem] = map[string][]string{}
		}
		failed[o.problem][o.reason] = append(failed[o.problem][o.reason], o.node)
	}
	l.failOf(nodesBy(failed[refuses]), "redirection fails: injected pods would not start on these nodes",
		"fix the errors on these nodes, or keep injected pods away from them")
	l.failOf(nodesBy(failed[unpulled]),
		fmt.Sprintf("image %s cannot be pulled: injected pods would not start on these nodes", t.image),
		fmt.Sprintf("make sure that the nodes reach the registry, and that service account default of namespace %s has its imagePullSecrets; "+
			"--nodes-image sets another image", t.namespace))
	l.failOf(nodesBy(failed[unstarted]), fmt.Sprintf("no pod could run the test within %s", t.within),
		"fix the errors (see kubectl describe node), or allow more time with --nodes-timeout")
	if good > 0 {
		l.add(OK, printer.Plural(good, "node")+" can redirect: nftables"+span(kernels), "")
	}
}

// aside adds lines about nodes that were not tested and Jobs that were not deleted.
func (t *tried) aside(l *lines) {
	l.warnOf(nodesBy(t.leftOut), "some nodes are not tested",
		"check again when they accept pods; until then, keep injected pods away from them")
	if len(t.outcomes) == 0 && len(t.leftOut) == 0 && t.refused == nil {
		l.warn("the cluster has no nodes to test", "check again when the cluster has nodes")
	}
	l.warnOf(t.kept, fmt.Sprintf("Jobs could not be deleted: Kubernetes deletes them %s after they end", jobTTL),
		deleteJobs(t.namespace))
}

func deleteJobs(namespace string) string {
	return fmt.Sprintf("kubectl -n %s delete jobs -l %s=%s", namespace, labelName, jobName)
}

// span returns the oldest and the newest kernel, to append to a line.
func span(kernels []*version.Version) string {
	if len(kernels) == 0 {
		return ""
	}
	text := func(v *version.Version) string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }
	byAge := func(a, b *version.Version) int {
		return cmp.Or(cmp.Compare(a.Major(), b.Major()), cmp.Compare(a.Minor(), b.Minor()))
	}
	oldest, newest := text(slices.MinFunc(kernels, byAge)), text(slices.MaxFunc(kernels, byAge))
	if oldest == newest {
		return ", kernel " + oldest
	}
	return ", kernel " + oldest + " to " + newest
}
