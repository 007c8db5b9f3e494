// Package plugin is the CNI plugin. It only calls the daemon of the node, and returns the result of the previous
// plugin.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sonde-mesh/sonde/cni/wire"
)

// conf is the plugin's entry in the CNI configuration.
type conf struct {
	types.PluginConf
	// Socket is the path of the daemon's socket.
	Socket string `json:"socket"`
}

// podArgs are the container runtime's arguments about the pod.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString // types.LoadArgs matches these names
}

// Funcs returns the functions for the CNI commands. They write notes for the container runtime's log to log.
func Funcs(ask func(context.Context, string, wire.Request) (wire.Answer, error), log io.Writer) skel.CNIFuncs {
	p := plugin{ask, log}
	nothing := func(*skel.CmdArgs) error { return nil }
	return skel.CNIFuncs{Add: p.add, Check: p.check, Del: nothing, GC: nothing, Status: nothing}
}

type plugin struct {
	ask func(context.Context, string, wire.Request) (wire.Answer, error)
	log io.Writer
}

// add returns the previous plugin's result. It fails only if the daemon returns an error, which it does only for pods
// of the mesh.
func (p *plugin) add(args *skel.CmdArgs) error {
	c, err := readConf(args)
	if err != nil {
		return err
	}
	if err := p.forward(wire.Add, args, c); err != nil {
		return err
	}
	if c.PrevResult == nil { // the plugin is the only one: no other plugin has created the pod's network
		return types.PrintResult(&current.Result{CNIVersion: current.ImplementedSpecVersion}, c.CNIVersion)
	}
	return types.PrintResult(c.PrevResult, c.CNIVersion)
}

func (p *plugin) check(args *skel.CmdArgs) error {
	c, err := readConf(args)
	if err != nil {
		return err
	}
	return p.forward(wire.Check, args, c)
}

// forward calls the daemon. Without a response the pod starts: a sidecar without redirection does not pass its startup
// probe, and the daemon repairs the pod once it runs.
func (p *plugin) forward(verb wire.Verb, args *skel.CmdArgs, c *conf) error {
	var pod podArgs
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		p.note(args, err)
		return nil
	}
	if c.PrevResult == nil || pod.K8S_POD_NAME == "" {
		return nil
	}
	a, err := p.ask(context.Background(), c.Socket, wire.Request{
		Verb: verb, ContainerID: args.ContainerID, NetNS: args.Netns,
		Namespace: string(pod.K8S_POD_NAMESPACE), Pod: string(pod.K8S_POD_NAME), UID: string(pod.K8S_POD_UID),
	})
	if err != nil {
		p.note(args, err)
		return nil
	}
	if a.Error != "" {
		return types.NewError(types.ErrInternal, a.Error, "")
	}
	return nil
}

// note writes to stderr, which container runtimes log, why a pod starts without a response of the daemon.
func (p *plugin) note(args *skel.CmdArgs, err error) {
	_, _ = fmt.Fprintf(p.log, "sonde-cni: container %s: letting the pod start, its sidecar waits for redirection: %v\n", args.ContainerID, err) // a failed note has no remedy
}

func readConf(args *skel.CmdArgs) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "parse configuration of sonde-cni: "+err.Error(), "")
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "parse previous result: "+err.Error(), "")
	}
	if c.Socket == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, errNoSocket.Error(), "")
	}
	return c, nil
}

var errNoSocket = errors.New("the entry of sonde-cni has no socket")
