package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	written := ""
	for range run.EveryOr(ctx, conditionRetry, d.changed) {
		why := d.notReady()
		text := fmt.Sprint(why)
		if errors.Is(why, errNotYet) || text == written {
			continue
		}
		if err := d.writeCondition(ctx, why); err != nil {
			if ctx.Err() == nil {
				d.o.Logger.Warn("failed to write the node's condition, retrying", "err", err)
			}
			continue
		}
		written = text
		if why != nil {
			d.o.Logger.Error("the plugin is not installed yet, until then pods of the mesh do not start on this node", "err", why)
		}
	}
	return nil
}

// writeCondition writes whether pods of this node get redirection; why is nil if they do.
func (d *Daemon) writeCondition(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	now := metav1.Now()
	c := corev1.NodeCondition{
		Type: mesh.ConditionCNIReady, Status: corev1.ConditionTrue,
		Reason: "Installed", Message: "the CNI configuration calls the plugin",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if why != nil {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NotInstalled", mesh.Shorten(why.Error(), maxConditionMessage)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return fmt.Errorf("encode condition: %w", err)
	}
	_, err = d.client.CoreV1().Nodes().PatchStatus(ctx, d.o.Node, patch)
	return err
}
