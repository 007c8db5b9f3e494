// Command cluster shows the effect of the mesh on a pod and its probes on a real Kubernetes cluster: the same pod,
// with and without the mesh, step by step. `make cluster-demo` starts the cluster, and runs this command on the
// network of a node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sonde-mesh/sonde/test/demo/board"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster-demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out *os.File) error {
	flags := flag.NewFlagSet("cluster-demo", flag.ContinueOnError)
	image := flags.String("app", "docker.io/sonde-test/app:1", "`image` of the application")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read $KUBECONFIG: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	b := board.New(out)
	s := &scene{client: client, config: config, image: *image}
	b.Head("Sonde on Kubernetes: the same pod without a mesh (" + plain + ") and in it (" + meshed + ")")
	for _, step := range s.steps() {
		b.Step(ctx, step.title, step.do)
		if b.Failed > 0 {
			break // later steps depend on it
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	b.Foot()
	if b.Failed > 0 {
		return errors.New("a step failed")
	}
	return nil
}
