package watchdog

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

const explainHelp = `Explain the verdict on a cluster's nodes, and the next action on each dependant. The verdict comes from the
WatchedCluster, where the leader of sonde-watchdog writes it; counts of nodes are at most a minute old. The command
reads the dependants now, with the caller's rights.

NODES    number of nodes; SILENT nodes do not renew their leases, UNHEARD nodes have not renewed them since the leader
         started
LEVEL    level of the dependant for the verdict's direction, by default up
BEFORE   replicas of the dependant before it was scaled down
STEP     step in the journal: Lowering, Lowered, Raising, or Kept
NEXT     scale-down, scale-up, keep (another client has set the replicas), note, release (the dependant is ignored),
         nothing, or fail`

func explainCommand(out *printer.Output, t target) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "explain CLUSTER",
		Short:   "Explain the verdict on a cluster, and the next actions",
		Long:    explainHelp,
		Example: "  sondectl watchdog explain a -n shoot--a--b\n  sondectl watchdog explain a -n shoot--a--b -o json",
		Args:    cobra.ExactArgs(1),
	}
	t.add(cmd)
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		objects, err := t.objects(false)
		if err != nil {
			return err
		}
		clusters, err := read(cmd.Context(), objects, args)
		if err != nil {
			return err
		}
		in, _, err := t.Open()
		if err != nil {
			return err
		}
		clients, err := scale.NewClients(in.Config)
		if err != nil {
			return fmt.Errorf("create client for the API server: %w", err)
		}
		e := Explain(cmd.Context(), &clusters[0], clients.In(clusters[0].Namespace))
		return printer.Write(out, output.Value, e, func() { e.write(out) })
	}
	return cmd
}

// Explanation explains a cluster; it is the output of -o json.
type Explanation struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Paused    bool         `json:"paused"`
	Verdict   string       `json:"verdict,omitempty"`
	Cause     string       `json:"cause,omitempty"`
	Since     *metav1.Time `json:"since,omitempty"`
	LostSince *metav1.Time `json:"lostSince,omitempty"`
	// Why is the reason of the verdict, Next the watchdog's next action.
	Why  string `json:"why"`
	Next string `json:"next"`
	// Refused is the error in the object, Failed the error of the last probe.
	Refused    string      `json:"refused,omitempty"`
	Failed     string      `json:"failed,omitempty"`
	Nodes      []Zone      `json:"nodes,omitempty"`
	Dependants []Dependant `json:"dependants,omitempty"`
}

// Zone counts the nodes of a zone; the name "" means all nodes.
type Zone struct {
	v1alpha1.NodeCount `json:",inline"`

	Verdict string `json:"verdict,omitempty"`
	Cause   string `json:"cause,omitempty"`
}

// Dependant is an object that the watchdog scales.
type Dependant struct {
	Ref      v1alpha1.DependantRef `json:"ref"`
	Optional bool                  `json:"optional,omitempty"`
	Level    int32                 `json:"level"`
	// Replicas is the desired number, nil if unreadable; Before is the number before a scale-down.
	Replicas *int32 `json:"replicas,omitempty"`
	Before   int32  `json:"before,omitempty"`
	Step     string `json:"step,omitempty"`
	Next     string `json:"next"`
	// WaitsFor are the dependants that must be scaled first.
	WaitsFor []v1alpha1.DependantRef `json:"waitsFor,omitempty"`
	Note     string                  `json:"note,omitempty"`
}

// Explain reads the dependants, and applies the rules of the watchdog. If objects is nil, it reads no dependants.
func Explain(ctx context.Context, o *v1alpha1.WatchedCluster, objects scale.Objects) *Explanation {
	s := &o.Status
	e := &Explanation{
		Namespace: o.Namespace, Name: o.Name, Paused: o.Spec.Paused, Verdict: s.Verdict, Cause: s.Cause, Since: s.Since,
		LostSince: s.LostSince, Refused: falseMessage(s, v1alpha1.ConditionAccepted),
		Failed: falseMessage(s, cluster.ConditionProbed), Nodes: zonesOf(s),
	}
	conf, err := config.Of(&o.Spec, o.Namespace, config.Self{})
	if err != nil {
		e.Refused, e.Why, e.Next = err.Error(), "the object is invalid", "nothing, or the actions of the last valid object"
		return e
	}
	e.Why = why(o, conf)
	direction, next := nextOf(o)
	e.Next = next
	if objects == nil {
		return e
	}
	dependants := conf.Dependants
	if direction != scale.Down {
		dependants = append(dependants, cluster.Orphans(s.Steps, conf.Dependants)...)
	}
	for _, look := range scale.Look(ctx, objects, s.Steps, direction, dependants) {
		e.Dependants = append(e.Dependants, dependantOf(&look, direction))
	}
	return e
}

func falseMessage(s *v1alpha1.WatchedClusterStatus, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
		return c.Message
	}
	return ""
}

func zonesOf(s *v1alpha1.WatchedClusterStatus) (zones []Zone) {
	for _, count := range s.Counts {
		z := Zone{NodeCount: count, Verdict: string(partition.Seen)}
		if count.Zone == "" {
			z.Verdict, z.Cause = s.Verdict, s.Cause
		}
		for _, not := range s.Zones {
			if count.Zone != "" && not.Name == count.Zone {
				z.Verdict, z.Cause = not.Verdict, not.Cause
			}
		}
		zones = append(zones, z)
	}
	return zones
}

// nextOf describes the next action on dependants, "" for none.
func nextOf(o *v1alpha1.WatchedCluster) (scale.Direction, string) {
	switch s := &o.Status; {
	case s.Verdict == "":
		return "", "nothing: the cluster was not judged yet, or is not probed"
	case o.Spec.Paused:
		return "", "nothing is scaled: the cluster is paused"
	case s.Verdict == string(partition.Lost):
		return scale.Down, "dependants are scaled down, level by level"
	case s.Verdict == string(partition.Seen):
		return scale.Up, "dependants that are scaled down are scaled up, level by level"
	}
	return "", "nothing is scaled until a probe finds the state of the nodes"
}

func dependantOf(look *scale.Outlook, direction scale.Direction) Dependant {
	d := look.Dependant
	is := Dependant{
		Ref: d.Ref, Optional: d.Optional, Level: d.Up.Level, Before: look.Step.Replicas, Step: look.Step.State,
		Next: string(look.Next),
	}
	if direction == scale.Down {
		is.Level = d.Down.Level
	}
	if look.Next != scale.Nothing {
		is.WaitsFor = look.Before
	}
	switch delay := delayOf(look, direction); {
	case look.Err != nil:
		is.Note = look.Err.Error()
	case look.Ignored():
		is.Note = "never scaled: " + scale.AnnotationIgnore
	case delay > 0:
		is.Note = "after a delay of " + delay.String()
	}
	if look.Err == nil {
		is.Replicas = &look.Object.Replicas
	}
	return is
}
