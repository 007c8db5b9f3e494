// Package dashboard implements sondectl dashboard: a page on 127.0.0.1 that shows what the control plane knows, as
// other commands print it.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const help = `Serve a page that shows which probes fail and why, the endpoints of services, proxies, restarts, and the control plane. It is live: it shows
what has changed within two seconds, and says since when it is blind if the control plane does not answer. With a
kubeconfig it also shows the clusters that sonde-watchdog watches, by your rights at the API server.

The page is at 127.0.0.1 only, and needs the token in the printed address. It can only read, with the rights that
sondectl has for the control plane: a section without the right says so. While no page is open, nothing is requested.

--once writes the current state into a file without scripts, such as for a ticket.`

// Options of Command.
type Options struct {
	Call Call
	// Clusters returns who reads the WatchedClusters. Its error says why sondectl has no access to them.
	Clusters func() (Clusters, error)
	// Out gets the address, and Terminal is whether it is a terminal.
	Out      io.Writer
	Terminal bool
}

// Command returns sondectl dashboard.
func Command(o Options) *cobra.Command {
	var port uint16
	var noOpen bool
	var once string
	cmd := &cobra.Command{
		Use:     "dashboard",
		Short:   "Show the mesh in a browser, live",
		Long:    help,
		Example: "  sondectl dashboard\n  sondectl dashboard --port 8765 --no-open\n  sondectl dashboard --once mesh.html",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "`PORT` on 127.0.0.1; 0 means a free one")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "do not open the browser, which happens on a terminal only")
	cmd.Flags().StringVar(&once, "once", "", "write the current state into an HTML `FILE`, and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if once != "" && (port != 0 || noOpen) {
			return settings.Usagef("--once: must not be given with --port or --no-open")
		}
		s := newSource(o.Call, o.Clusters)
		if err := s.once(cmd.Context()); err != nil {
			return err
		}
		if once != "" {
			s.readClusters(cmd.Context())
			return replaceFile(once, s.snapshot)
		}
		l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			return fmt.Errorf("listen for the browser: %w", err)
		}
		token := newToken()
		address := "http://" + l.Addr().String() + "/#token=" + token
		if _, err := fmt.Fprintln(o.Out, address); err != nil {
			return errors.Join(fmt.Errorf("write the address: %w", err), l.Close())
		}
		group, ctx := errgroup.WithContext(cmd.Context())
		group.Go(func() error { return s.serve(ctx, l, token) })
		if !noOpen && o.Terminal {
			group.Go(func() error {
				if err := openBrowser(ctx, address); err != nil {
					cmd.PrintErrf("sondectl: %s\n", err)
				}
				return nil
			})
		}
		return group.Wait()
	}
	return cmd
}

// maxConnections of browsers; one has up to six.
const maxConnections = 128

// serve serves the page until ctx ends.
func (s *source) serve(ctx context.Context, l net.Listener, token string) error {
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return errors.Join(fmt.Errorf("read the port: %w", err), l.Close())
	}
	limiter := connlimit.New(maxConnections)
	server := &http.Server{
		Handler: newHandler(s, token, port), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10, ConnState: limiter.ConnState,
		ConnContext: limiter.ConnContext,
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s.run(ctx)
		return nil
	})
	group.Go(func() error {
		s.runClusters(ctx)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(limiter.Listener(l)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the page: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// openBrowser opens an address in the user's browser, if this machine has a desktop.
func openBrowser(ctx context.Context, address string) error {
	program := "open"
	if runtime.GOOS != "darwin" {
		program = "xdg-open"
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return nil // it would start a browser in this terminal
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil //nolint:nilerr // the user opens the printed address
	}
	if err := exec.CommandContext(ctx, path, address).Run(); err != nil { //nolint:gosec // the address is ours
		return fmt.Errorf("open the browser: %s: %w", program, err)
	}
	return nil
}
