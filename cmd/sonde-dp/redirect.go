package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// transparentProxy is the name of the commands, as in Kuma.
const transparentProxy = "transparent-proxy"

// redirectFlagNames maps fields of redirect.Options to flags.
var redirectFlagNames = map[string]string{
	"OutboundPort": "--redirect-outbound-port", "InboundPort": "--redirect-inbound-port", "User": "--kuma-dp-uid",
	"ExcludeInboundPorts": "--exclude-inbound-ports", "ExcludeOutboundPorts": "--exclude-outbound-ports",
	"Families": "--ip-family-mode", "Readiness": "--redirect-readiness",
	"MetricsPort": "--metrics-port", "GuardedPort": "--guarded-port", "TCPProbes": "--redirect-tcp-probes",
}

// redirectFlags holds the values of the flags that select rules.
type redirectFlags struct {
	o       redirect.Options
	inbound bool
	verbose bool
}

func (r *redirectFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&r.o.OutboundPort, "redirect-outbound-port", mesh.PortRedirectOut,
		"`port` of Envoy's outbound capture listener")
	f.BoolVar(&r.inbound, "redirect-inbound", true, "redirect incoming connections")
	f.BoolVar(&r.o.Readiness, "redirect-readiness", false,
		"redirect connections to port 15022, where Envoy answers the sidecar's readiness probe, even with --redirect-inbound=false")
	f.IntVar(&r.o.InboundPort, "redirect-inbound-port", mesh.PortRedirectIn, "`port` of Envoy's inbound capture listener")
	f.IntVar(&r.o.User, "kuma-dp-uid", mesh.SidecarUser, "user `id` of the agent and Envoy")
	f.Var((*portsFlag)(&r.o.ExcludeInboundPorts), "exclude-inbound-ports", "comma-separated `ports` of this machine, to which connections are not redirected")
	f.IntVar(&r.o.MetricsPort, "metrics-port", 0, "`port` at which the agent answers Prometheus, to which connections are not redirected; 0: none")
	f.IntVar(&r.o.GuardedPort, "guarded-port", 0,
		"`port` among --exclude-inbound-ports at which the agent answers guarded liveness probes: new connections wait while the agent does not listen; 0: none")
	f.Var((*portsFlag)(&r.o.ExcludeOutboundPorts), "exclude-outbound-ports", "comma-separated `ports` of other machines, to which connections are not redirected")
	f.Var((*tcpProbesFlag)(&r.o.TCPProbes), "redirect-tcp-probes",
		"comma-separated `probes`: 9001:6853 lets others connect to port 9001 and reach port 6853 of the application, without Envoy and without payload")
	f.StringVar((*string)(&r.o.Families), "ip-family-mode", string(redirect.DualStack),
		"IP families to redirect: dualstack, ipv4 or ipv6")
	f.BoolVar(&r.verbose, "verbose", false, "print the rules in nft syntax")
}

// action calls work with the options, and prints the rules if --verbose is set.
func (r *redirectFlags) action(
	work func(out io.Writer, o redirect.Options) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		r.o.OutboundOnly = !r.inbound
		err := r.o.Validate()
		if err == nil && r.verbose {
			_, err = io.WriteString(cmd.OutOrStdout(), redirect.Describe(r.o))
		}
		if err == nil {
			err = work(cmd.OutOrStdout(), r.o)
		}
		return mesh.RenameFields(err, redirectFlagNames)
	}
}

func newInstallCommand() *cobra.Command {
	var flags redirectFlags
	cmd := &cobra.Command{
		Use:   transparentProxy,
		Short: "Redirect the connections of this pod or machine to Envoy",
		Long: `Redirect the connections of this pod or machine to Envoy, with the nftables table "inet sonde": incoming connections to
the inbound capture listener, connections to other machines to the outbound capture listener. Connections of Envoy's
user and connections within the machine are not redirected, except that Envoy's own calls to the machine's addresses
enter the inbound listener. A TCP probe bypasses Envoy and gets the application's verdict; its packets with payload are
rejected in both directions.

The command replaces an existing table in one step, then reads the rules back; any difference is an error. It needs the
capability NET_ADMIN: in a pod, an init container runs it as root. DNS is not redirected.`,
		Example: `  sonde-dp install transparent-proxy --exclude-inbound-ports=9000,22 --verbose`,
		Args:    cobra.NoArgs,
		RunE: flags.action(func(out io.Writer, o redirect.Options) error {
			if err := redirect.Install(o); err != nil {
				return err
			}
			return report(out, "installed and checked table inet %s", redirect.TableName)
		}),
	}
	flags.add(cmd)
	return group("install", "Redirect connections to Envoy", cmd)
}

func newUninstallCommand() *cobra.Command {
	return group("uninstall", "Stop redirecting connections to Envoy", &cobra.Command{
		Use:   transparentProxy,
		Short: "Remove only the rules that \"sonde-dp install transparent-proxy\" installed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := redirect.Uninstall()
			switch {
			case err != nil:
				return err
			case !removed:
				return report(cmd.OutOrStdout(), "table inet %s does not exist", redirect.TableName)
			}
			return report(cmd.OutOrStdout(), "removed table inet %s", redirect.TableName)
		},
	})
}

func newCheckCommand() *cobra.Command {
	var flags redirectFlags
	cmd := &cobra.Command{
		Use:   transparentProxy,
		Short: "Compare the rules in the kernel with the rules for these flags",
		Long: `Compare the rules in the kernel with the rules that "sonde-dp install transparent-proxy" would install with the same
flags, and print each difference. The exit code is 1 if any rule differs. Like the installation, this needs the
capability NET_ADMIN.`,
		Example: `  nsenter --net --target=PID sonde-dp check transparent-proxy --exclude-inbound-ports=9000`,
		Args:    cobra.NoArgs,
		RunE: flags.action(func(out io.Writer, o redirect.Options) error {
			differences, err := redirect.Check(o)
			if err != nil {
				return err
			}
			for _, d := range differences {
				if err := report(out, "%s", d); err != nil {
					return err
				}
			}
			if n := len(differences); n > 0 {
				return fmt.Errorf("differences between the kernel's rules and the flags: %d", n)
			}
			return report(out, "table inet %s matches the flags", redirect.TableName)
		}),
	}
	flags.add(cmd)
	return group("check", "Check the redirection of connections to Envoy, or the kubelet", cmd, newCheckKubeletCommand())
}

func group(name, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short}
	cmd.AddCommand(subs...)
	return cmd
}

func report(out io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(out, format+"\n", args...)
	return err
}

// portsFlag is a list such as "9000,9800", possibly empty. redirect.Options.Validate checks the ports.
type portsFlag []int

// String implements pflag.Value.
func (p *portsFlag) String() string {
	var words []string
	for _, port := range *p {
		words = append(words, strconv.Itoa(port))
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value. Repeating the flag adds to the list.
func (p *portsFlag) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		port, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return fmt.Errorf("%q: must be a port from 1 to 65535", word)
		}
		*p = append(*p, port)
	}
	return nil
}

// Type implements pflag.Value.
func (p *portsFlag) Type() string { return "ports" }

// tcpProbesFlag is a list such as "9001:6853,9002:3306", possibly empty.
type tcpProbesFlag []redirect.TCPProbe

// String implements pflag.Value.
func (f *tcpProbesFlag) String() string {
	var words []string
	for _, p := range *f {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value. Repeating the flag adds to the list.
func (f *tcpProbesFlag) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		port, target, _ := strings.Cut(strings.TrimSpace(word), ":")
		p, portErr := strconv.Atoi(port)
		t, targetErr := strconv.Atoi(target)
		if portErr != nil || targetErr != nil {
			return fmt.Errorf("%q: must be a probe's port and the application's port, such as 9001:6853", word)
		}
		*f = append(*f, redirect.TCPProbe{Port: p, Target: t})
	}
	return nil
}

// Type implements pflag.Value.
func (f *tcpProbesFlag) Type() string { return "probes" }
