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

// redirectFlagNames has the flag of each field of redirect.Options.
var redirectFlagNames = map[string]string{
	"OutboundPort": "--redirect-outbound-port", "InboundPort": "--redirect-inbound-port", "User": "--kuma-dp-uid",
	"ExcludeInboundPorts": "--exclude-inbound-ports", "ExcludeOutboundPorts": "--exclude-outbound-ports", "Families": "--ip-family-mode",
	"MetricsPort": "--metrics-port", "GuardedPort": "--guarded-port", "TCPProbes": "--redirect-tcp-probes",
}

// redirectFlags are the flags that say which rules are wanted.
type redirectFlags struct {
	o       redirect.Options
	inbound bool
	verbose bool
}

func (r *redirectFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&r.o.OutboundPort, "redirect-outbound-port", mesh.PortRedirectOut, "`port` of Envoy's outbound capture listener")
	f.BoolVar(&r.inbound, "redirect-inbound", true, "redirect incoming connections")
	f.IntVar(&r.o.InboundPort, "redirect-inbound-port", mesh.PortRedirectIn, "`port` of Envoy's inbound capture listener")
	f.IntVar(&r.o.User, "kuma-dp-uid", mesh.SidecarUser, "user `id` of the agent and Envoy")
	f.Var((*portsFlag)(&r.o.ExcludeInboundPorts), "exclude-inbound-ports", "`ports` of this machine, with commas between them, that are not redirected")
	f.IntVar(&r.o.MetricsPort, "metrics-port", 0, "`port` of this machine at which the agent answers Prometheus, and which is not redirected; 0: none")
	f.IntVar(&r.o.GuardedPort, "guarded-port", 0,
		"`port` among --exclude-inbound-ports at which the agent answers guarded liveness probes: connections wait while nothing listens there; 0: none")
	f.Var((*portsFlag)(&r.o.ExcludeOutboundPorts), "exclude-outbound-ports", "`ports` of other machines, with commas between them, that are not redirected")
	f.Var((*tcpProbesFlag)(&r.o.TCPProbes), "redirect-tcp-probes",
		"`probes`, with commas between them: 9001:6853 lets others connect to port 9001 and reach port 6853 of the application, without Envoy and without payload")
	f.StringVar((*string)(&r.o.Families), "ip-family-mode", string(redirect.DualStack), "IP families to redirect: dualstack, ipv4 or ipv6")
	f.BoolVar(&r.verbose, "verbose", false, "print the rules, as nft does")
}

// action calls work with the options, and prints the rules if they are asked for.
func (r *redirectFlags) action(work func(out io.Writer, o redirect.Options) error) func(*cobra.Command, []string) error {
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
		Long: `Redirect the connections of this pod or machine to Envoy, with the nftables table "inet sonde": incoming ones to the inbound
capture listener, those to other machines to the outbound one. Connections of the user as whom Envoy runs, and those inside of
the machine, are not redirected; but Envoy's own calls to the addresses of the machine enter the inbound listener. A TCP probe
passes by Envoy: its verdict is the application's, and packets with payload are refused in both directions.

A table that is there already is replaced in one step. The rules are read back, and anything amiss is an error. This takes
the capability NET_ADMIN: in a pod, an init container runs it as root. DNS is not redirected.`,
		Example: `  sonde-dp install transparent-proxy --exclude-inbound-ports=9000,22 --verbose`,
		Args:    cobra.NoArgs,
		RunE: flags.action(func(out io.Writer, o redirect.Options) error {
			if err := redirect.Install(o); err != nil {
				return err
			}
			return report(out, "table inet %s is installed and checked", redirect.TableName)
		}),
	}
	flags.add(cmd)
	return group("install", "Redirect connections to Envoy", cmd)
}

func newUninstallCommand() *cobra.Command {
	return group("uninstall", "Stop redirecting connections to Envoy", &cobra.Command{
		Use:   transparentProxy,
		Short: "Remove what \"sonde-dp install transparent-proxy\" has installed, and nothing else",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			removed, err := redirect.Uninstall()
			switch {
			case err != nil:
				return err
			case !removed:
				return report(cmd.OutOrStdout(), "there is no table inet %s", redirect.TableName)
			}
			return report(cmd.OutOrStdout(), "table inet %s is removed", redirect.TableName)
		},
	})
}

func newCheckCommand() *cobra.Command {
	var flags redirectFlags
	cmd := &cobra.Command{
		Use:   transparentProxy,
		Short: "Compare the rules in the kernel with those that would be installed",
		Long: `Compare the rules in the kernel with those that "sonde-dp install transparent-proxy" would install with the same flags, and
print each difference. The exit code is 1 if there are any. Like the installation, this takes the capability NET_ADMIN.`,
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
				return fmt.Errorf("differences between the kernel's rules and those of the flags: %d", n)
			}
			return report(out, "table inet %s is as it should be", redirect.TableName)
		}),
	}
	flags.add(cmd)
	return group("check", "Check the redirection of connections to Envoy", cmd)
}

func group(name, short string, sub *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short}
	cmd.AddCommand(sub)
	return cmd
}

func report(out io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(out, format+"\n", args...)
	return err
}

// portsFlag is a list such as "9000,9800", which may be empty. The ports themselves are checked with all other options.
type portsFlag []int

// String implements pflag.Value.
func (p *portsFlag) String() string {
	var words []string
	for _, port := range *p {
		words = append(words, strconv.Itoa(port))
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value. A flag that is given twice adds to the list.
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

// tcpProbesFlag is a list such as "9001:6853,9002:3306", which may be empty.
type tcpProbesFlag []redirect.TCPProbe

// String implements pflag.Value.
func (f *tcpProbesFlag) String() string {
	var words []string
	for _, p := range *f {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// Set implements pflag.Value. A flag that is given twice adds to the list.
func (f *tcpProbesFlag) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		port, target, _ := strings.Cut(strings.TrimSpace(word), ":")
		p, portErr := strconv.Atoi(port)
		t, targetErr := strconv.Atoi(target)
		if portErr != nil || targetErr != nil {
			return fmt.Errorf("%q: must be the port of a probe and that of the application, such as 9001:6853", word)
		}
		*f = append(*f, redirect.TCPProbe{Port: p, Target: t})
	}
	return nil
}

// Type implements pflag.Value.
func (f *tcpProbesFlag) Type() string { return "probes" }
