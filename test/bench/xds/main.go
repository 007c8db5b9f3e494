// Command xds measures what it costs to keep many proxies up to date. It compares Sonde with a server that encodes each
// message once and broadcasts it, a go-control-plane cache with one shared snapshot, and a bare stream. Each is a process of
// its own with the same mTLS. One more process holds the clients: thousands of delta ADS clients without Envoy.
//
//	go run ./bench/xds                                     # every row, five rounds: about an hour
//	go run ./bench/xds --rows=a,e,f --subjects=sonde-builder,broadcast,bare --rounds=3
//	go run ./bench/xds --proxies=50 --rounds=1 --duration=2s # a quick check that it runs
//
// The subject sonde is the program sonde-cp over a directory of files. sonde-builder has the same stages without the directory and
// without the APIs for people and agents. It gets changes as the floors do, so the goals compare it with them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// options of a run.
type options struct {
	rows, subjects list
	rounds         int
	changes        int
	proxies        int
	duration       time.Duration
	profiles       string
}

// list is a flag with words separated by commas.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = strings.Split(s, ","); return nil }

func (l *list) has(word string) bool { return slices.Contains(*l, word) }

func main() {
	o := options{rows: allRows(), subjects: allSubjects()}
	role := flag.String("role", "", "what this process is; \"\" runs the benchmark and starts the others")
	var r roleOptions
	flag.StringVar(&r.state, "state", "", "`directory` of the authority, for roles")
	flag.StringVar(&r.payload, "payload", "", "`file` with what the floors serve, for roles")
	flag.IntVar(&r.topology.Services, "services", 0, "services, for roles")
	flag.BoolVar(&r.topology.Narrow, "narrow", false, "whether there is a service that few see, for roles")
	flag.Var(&o.rows, "rows", "`ROWS` to measure; see docs/benchmarks.md")
	flag.Var(&o.subjects, "subjects", "`SUBJECTS` to measure")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each subject is measured")
	flag.IntVar(&o.changes, "changes", 20, "changes of one measurement")
	flag.IntVar(&o.proxies, "proxies", 1000, "proxies; the row of five times as many follows")
	flag.DurationVar(&o.duration, "duration", time.Minute, "how long changes go on in row d")
	flag.StringVar(&o.profiles, "profiles", "", "`directory` to write CPU profiles of sonde-builder to, by row")
	flag.Parse()
	r.topology.Proxies = o.proxies
	rig.Main("xds", func(ctx context.Context) error { return run(ctx, *role, o, r) })
}

// roleOptions are the options of a process that the benchmark starts.
type roleOptions struct {
	state, payload string
	topology       topology
}

func run(ctx context.Context, role string, o options, r roleOptions) error {
	if o.duration < time.Second || o.rounds < 1 || o.changes < 1 || o.proxies < 2*endpointsPerService {
		return errors.New("too few: rounds and changes from 1, proxies from 20, duration from 1s")
	}
	if role == "" {
		return measure(ctx, o)
	}
	serve := map[string]func(context.Context, *sondecp.Identity, roleOptions) error{
		roleClient: serveClients, subjectBuilder: serveBuilder, subjectBroadcast: serveBroadcast, subjectSnapshot: serveSnapshot, subjectBare: serveBare,
	}[role]
	if serve == nil {
		return fmt.Errorf("role %q is not known", role)
	}
	id, err := sondecp.OpenIdentity(r.state)
	if err != nil {
		return err
	}
	return serve(ctx, id, r)
}
