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
	// nodesAtMost is how many nodes are tried.
	nodesAtMost = 200
	// nodesWithin limits how long all nodes take, together, and the one flag how long each does.
	nodesWithin = 10 * time.Minute
)

// nodesRequest is what the flags of --nodes say.
type nodesRequest struct {
	asked            bool
	namespace, image string
	// within is how long each node has.
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
	f.BoolVar(&n.asked, flagNodes, false, "have a Job on each node try redirection in a pod of its own: this alone writes to the cluster")
	f.StringVar(&n.namespace, flagNodesNamespace, metav1.NamespaceDefault, "`NAMESPACE` of these Jobs, whose Pod Security allows NET_ADMIN, with --nodes")
	f.StringVar(&n.image, flagNodesImage, "", "`IMAGE` of the sidecar, with --nodes; default with --installed: that of the installation")
	f.DurationVar(&n.within, flagNodesTimeout, 2*time.Minute, "how long a node may take, the pull of the image included, with --nodes")
}

// validate returns what is wrong with the flags.
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
		return refuse(flagNodesImage, "", "must be given with --nodes and without --installed: the image of the sidecar, which nodes are to pull")
	case n.within < time.Second || n.within > nodesWithin:
		return refuse(flagNodesTimeout, n.within.String(), fmt.Sprintf("must be from 1s to %s", nodesWithin))
	}
	return nil
}

// tried is what Jobs on nodes have found.
type tried struct {
	namespace, image string
	within           time.Duration
	// refused is why no pod that redirects may be made there, as the API server says it.
	refused error
	// outcomes are those of the nodes that were tried, leftOut the other nodes by why.
	outcomes []outcome
	leftOut  map[string][]string
	// kept are the Jobs that could not be deleted, each with why.
	kept []string
}

// problem is a kind of failure on a node, "" for none.
type problem string

const (
	unpulled  problem = "unpulled"  // the image cannot be pulled
	unstarted problem = "unstarted" // no pod could try it
	refuses   problem = "refuses"   // redirection fails
)

// outcome is how it went on a node.
type outcome struct {
	node, kernel string
	problem      problem
	// reason of the problem: the words of kubelet, scheduler or agent.
	reason string
}

// choose returns the nodes to try, by name, and the others by why they are left out.
func choose(nodes []corev1.Node) (try []corev1.Node, leftOut map[string][]string) {
	leftOut = map[string][]string{}
	for _, n := range slices.SortedFunc(slices.Values(nodes), func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) }) {
		why := ""
		switch {
		case cmp.Or(n.Status.NodeInfo.OperatingSystem, n.Labels[corev1.LabelOSStable]) == string(corev1.Windows):
			why = "no pod is injected on Windows"
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

// outcomeOf returns how it went in a pod so far, and whether that is the end of it.
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

// outcomeOfEnd returns how it went in a container that has ended. The program says why it has failed; without a word it was ended, or has not begun.
func outcomeOfEnd(t *corev1.ContainerStateTerminated) (p problem, reason string) {
	switch {
	case t.ExitCode == 0:
		return "", ""
	case t.Message == "" || t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		return unstarted, strings.TrimSuffix(fmt.Sprintf("ended with exit code %d (%s): %s", t.ExitCode, t.Reason, t.Message), ": ")
	default:
		return refuses, printer.LastLine(t.Message) // before it are the rules
	}
}

// triedNodes says which nodes can redirect the connections of a pod.
var triedNodes = check{"nodes", (*facts).needsTried, func(f *facts, l *lines) {
	t := f.tried.is
	if t.refused != nil {
		l.fail(fmt.Sprintf("no pod that redirects may be made in namespace %s: %s", t.namespace, t.refused),
			"name with --nodes-namespace one where pods of the mesh are to run: "+
				"Pod Security has to allow NET_ADMIN there (pod-security.kubernetes.io/enforce: privileged)")
	} else {
		t.say(l)
	}
	t.aside(l)
}}

// say says what has failed on nodes, and how many can redirect.
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
	l.failOf(nodesBy(failed[refuses]), "redirection fails: an injected pod would not start there",
		"do what it says on these nodes, or keep injected pods from them")
	l.failOf(nodesBy(failed[unpulled]),
		fmt.Sprintf("image %s cannot be pulled: an injected pod would not start there", t.image),
		fmt.Sprintf("have nodes reach the registry, and service account default of namespace %s have its imagePullSecrets; "+
			"--nodes-image names another image", t.namespace))
	l.failOf(nodesBy(failed[unstarted]), fmt.Sprintf("no pod could try it within %s", t.within),
		"mend what it says (kubectl describe node), or give them longer with --nodes-timeout")
	if good > 0 {
		l.add(OK, printer.Plural(good, "node")+" can redirect: nftables"+span(kernels), "")
	}
}

// aside says what says nothing of redirection.
func (t *tried) aside(l *lines) {
	l.warnOf(nodesBy(t.leftOut), "some are not tried",
		"check again when they take pods; elsewhere keep injected pods from them")
	if len(t.outcomes) == 0 && len(t.leftOut) == 0 && t.refused == nil {
		l.warn("the cluster has no nodes to try", "check again when the cluster has nodes")
	}
	l.warnOf(t.kept, fmt.Sprintf("Jobs could not be deleted: they go by themselves when they have ended for %s", jobTTL),
		deleteJobs(t.namespace))
}

func deleteJobs(namespace string) string {
	return fmt.Sprintf("kubectl -n %s delete jobs -l %s=%s", namespace, labelName, jobName)
}

// span returns the oldest and the newest kernel, as the end of a text.
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
