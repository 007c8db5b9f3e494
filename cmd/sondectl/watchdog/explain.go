package watchdog

import (
	"bytes"
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

const explainHelp = `Say why the nodes of a cluster are judged as they are, and what would be done next with each dependant. The verdict is what the leader of
sonde-watchdog has written into the WatchedCluster, the counts of nodes at most a minute late. Dependants are read now, with the rights of the caller.

NODES    that are counted; SILENT ones do not renew their leases, UNHEARD ones were not seen to renew them since the leader began
LEVEL    in which the dependant is scaled, in the direction that the verdict has, up without one
BEFORE   the replicas that a dependant had which is scaled down
STEP     of the journal: Lowering, Lowered, Raising, or Kept
NEXT     scale-down, scale-up, keep (another client has set the replicas), note, release (it is to be ignored), nothing, or fail`

func explainCommand(out *bytes.Buffer, t target) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "explain CLUSTER",
		Short:   "Say why a cluster is judged so, and what would be done next",
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
			return fmt.Errorf("make client of the API server: %w", err)
		}
		e := explain(cmd.Context(), &clusters[0], clients.In(clusters[0].Namespace))
		return printer.Write(out, output.Value, e, func() { e.write(out) })
	}
	return cmd
}

// explanation of a cluster, as -o json has it.
type explanation struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Paused    bool         `json:"paused"`
	Verdict   string       `json:"verdict,omitempty"`
	Cause     string       `json:"cause,omitempty"`
	Since     *metav1.Time `json:"since,omitempty"`
	LostSince *metav1.Time `json:"lostSince,omitempty"`
	// Why it is judged so, Next what is done about it.
	Why  string `json:"why"`
	Next string `json:"next"`
	// Refused is what is wrong with the object, Failed why the last probe could not read the cluster.
	Refused    string      `json:"refused,omitempty"`
	Failed     string      `json:"failed,omitempty"`
	Nodes      []zone      `json:"nodes,omitempty"`
	Dependants []dependant `json:"dependants,omitempty"`
}

// zone has the nodes of a zone, those of all for the name "".
type zone struct {
	v1alpha1.NodeCount `json:",inline"`

	Verdict string `json:"verdict,omitempty"`
	Cause   string `json:"cause,omitempty"`
}

// dependant is what is scaled.
type dependant struct {
	Ref      v1alpha1.DependantRef `json:"ref"`
	Optional bool                  `json:"optional,omitempty"`
	Level    int32                 `json:"level"`
	// Replicas that it is to have, nil if it could not be read, and Before those that it had before it was scaled down.
	Replicas *int32 `json:"replicas,omitempty"`
	Before   int32  `json:"before,omitempty"`
	Step     string `json:"step,omitempty"`
	Next     string `json:"next"`
	// WaitsFor are those with which something is to be done first.
	WaitsFor []v1alpha1.DependantRef `json:"waitsFor,omitempty"`
	Note     string                  `json:"note,omitempty"`
}

// explain reads the dependants, by the rules of who scales them.
func explain(ctx context.Context, o *v1alpha1.WatchedCluster, objects scale.Objects) *explanation {
	s := &o.Status
	e := &explanation{
		Namespace: o.Namespace, Name: o.Name, Paused: o.Spec.Paused, Verdict: s.Verdict, Cause: s.Cause, Since: s.Since, LostSince: s.LostSince,
		Refused: falseMessage(s, v1alpha1.ConditionAccepted), Failed: falseMessage(s, cluster.ConditionProbed), Nodes: zonesOf(s),
	}
	conf, err := config.Of(&o.Spec, o.Namespace, config.Self{})
	if err != nil {
		e.Refused, e.Why, e.Next = err.Error(), "the object is not valid", "nothing, or what the object said when it was valid"
		return e
	}
	e.Why = why(o, conf)
	direction, next := nextOf(o)
	e.Next = next
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

func zonesOf(s *v1alpha1.WatchedClusterStatus) (zones []zone) {
	for _, count := range s.Counts {
		z := zone{NodeCount: count, Verdict: string(partition.Seen)}
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

// nextOf returns what is done with dependants, "" for nothing, and says it.
func nextOf(o *v1alpha1.WatchedCluster) (scale.Direction, string) {
	switch s := &o.Status; {
	case s.Verdict == "":
		return "", "nothing: it was not judged yet, or is not probed"
	case o.Spec.Paused:
		return "", "nothing is scaled: it is paused"
	case s.Verdict == string(partition.Lost):
		return scale.Down, "dependants are scaled down, level by level"
	case s.Verdict == string(partition.Seen):
		return scale.Up, "dependants that are scaled down are scaled up, level by level"
	}
	return "", "nothing is scaled until a probe can say whether the nodes are there"
}

func dependantOf(look *scale.Outlook, direction scale.Direction) dependant {
	d := look.Dependant
	is := dependant{Ref: d.Ref, Optional: d.Optional, Level: d.Up.Level, Before: look.Step.Replicas, Step: look.Step.State, Next: string(look.Next)}
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
