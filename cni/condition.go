package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// conditionRetry is the delay before a failed write of the condition is retried.
const conditionRetry = 15 * time.Second

// maxConditionMessage bounds the message of the condition, in bytes.
const maxConditionMessage = 1024

// publish writes the node's condition whenever it changes.
func (d *Daemon) publish(ctx context.Context) error {
	var written corev1.NodeCondition
	for range run.EveryOr(ctx, conditionRetry, d.changed) {
		why := d.notReady()
		c := condition(why, d.installed.Load().After)
		if errors.Is(why, errNotYet) || sameAs(c, written) {
			continue
		}
		c = timed(c, written, metav1.Now())
		if err := d.writeCondition(ctx, c); err != nil {
			if ctx.Err() == nil {
				d.o.Logger.Warn("failed to write the node's condition, retrying", "err", err)
			}
			continue
		}
		written = c
		if why != nil {
			d.o.Logger.Error("plugin not installed yet, pods of the mesh do not start on this node until it is", "err", why)
		}
	}
	return nil
}

// condition returns the node's condition without its times: whether pods of this node get redirection. why is nil if
// they do; after lists the types of the plugins that run after Sonde's.
func condition(why error, after []string) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: mesh.ConditionCNIReady, Status: corev1.ConditionTrue,
		Reason: "Installed", Message: "the CNI configuration calls the plugin"}
	switch {
	case why != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NotInstalled", why.Error()
	case len(after) > 0:
		c.Reason, c.Message = mesh.ReasonPluginsAfter, strings.Join(after, ", ")
	}
	c.Message = mesh.Shorten(c.Message, maxConditionMessage)
	return c
}

// sameAs compares conditions without their times.
func sameAs(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// timed returns a condition with its times. The time of the transition is kept if before has the same status.
func timed(c, before corev1.NodeCondition, now metav1.Time) corev1.NodeCondition {
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	if c.Status == before.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c
}

func (d *Daemon) writeCondition(ctx context.Context, c corev1.NodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return fmt.Errorf("encode condition: %w", err)
	}
	_, err = d.client.CoreV1().Nodes().PatchStatus(ctx, d.o.Node, patch)
	return err
}
