// Command machines replaces a controller for machines, such as Gardener's machine-controller-manager: in the cluster
// of its pod, it deletes each node that has been Unknown for a while.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// lookEvery is the interval of reading the nodes.
const lookEvery = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("machines", flag.ContinueOnError)
	after := flags.Duration("after", 10*time.Minute, "how long a node is Unknown before it is deleted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *after <= 0 {
		return fmt.Errorf("--after %s: must be more than 0s", *after)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if err := replace(ctx, client, *after, log); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "nodes not looked at, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// replace deletes the nodes that have been Unknown for longer than after.
func replace(ctx context.Context, client kubernetes.Interface, after time.Duration, log *slog.Logger) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		since, is := unknownSince(n)
		if !is || time.Since(since) < after {
			continue
		}
		// not a new node with the same name
		options := metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &n.UID, ResourceVersion: &n.ResourceVersion},
		}
		err := client.CoreV1().Nodes().Delete(ctx, n.Name, options)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete node %s: %w", n.Name, err)
		}
		log.InfoContext(ctx, "node deleted: it was Unknown for too long", "node", n.Name, "since", since)
	}
	return nil
}

// unknownSince returns since when a node has been Unknown.
func unknownSince(n *corev1.Node) (since time.Time, is bool) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}
