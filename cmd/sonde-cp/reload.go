package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// rereadPeriod is how often the file is looked at. A kubelet takes up to a minute to write a ConfigMap.
const rereadPeriod = 2 * time.Second

// configFile is the --config file, followed while the control plane runs.
type configFile struct {
	path  string
	flags *pflag.FlagSet // of the command line, and what the file said at the start
	log   *slog.Logger

	seen    []byte // by the last look
	data    []byte // what was read, valid or not
	options *options
	err     error // why it could not be read last
}

// liveFlags are those whose keys may change while the control plane runs, see options.live.
var liveFlags = append([]string{keyDrainAware, flagFreezeMode}, guardedFlags...)

// live returns what may change while the control plane runs.
func (o *options) live() controlplane.Live {
	return controlplane.Live{IgnoreNodes: !o.drainAware, GuardedLiveness: o.Kubernetes.GuardedLiveness, FreezeMode: o.Kubernetes.FreezeMode}
}

// follow passes on what changes in the file, until ctx ends. A file that is not valid changes nothing, and a key that cannot change while the control
// plane runs is logged as an error.
func (c *configFile) follow(ctx context.Context, reconfigure func(context.Context, controlplane.Live) error) error {
	look := time.NewTicker(rereadPeriod)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		before := c.options.live()
		if !c.read() || c.options.live().Equal(before) {
			continue
		}
		if err := reconfigure(ctx, c.options.live()); err != nil {
			return nil // ctx has ended
		}
	}
}

// read reads the file again, and returns whether it is another one, and valid. It counts once two looks have seen the same: who writes in place
// leaves it empty for a moment, which would be a file of defaults.
func (c *configFile) read() bool {
	data, err := os.ReadFile(c.path)
	if err == nil {
		again := bytes.Equal(data, c.seen)
		if c.seen = data; !again || bytes.Equal(data, c.data) {
			return false
		}
	}
	var now options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	now.addFlags(flags)
	if err == nil {
		c.data = data
		err = c.parse(&now, flags)
	}
	if err != nil {
		if c.err == nil || c.err.Error() != err.Error() {
			c.log.Error("configuration not reloaded, the previous one stays in effect", "err", err)
		}
		c.err = err
		return false
	}
	c.logChanges(flags)
	c.options, c.flags, c.err = &now, flags, nil
	return true
}

// parse reads the file into flags that begin as the command line has set them.
func (c *configFile) parse(o *options, flags *pflag.FlagSet) (err error) {
	c.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			err = errors.Join(err, copyFlag(flags.Lookup(f.Name), f))
		}
	})
	if err == nil {
		var names settings.Places
		if names, err = settings.ReadFile(c.path, flags, nested); err == nil {
			err = names.Rename(o.validate(flags))
		}
	}
	return err
}

// copyFlag gives a flag the value of another one that the command line has set. What a list prints is not what it takes.
func copyFlag(to, from *pflag.Flag) error {
	if to == nil {
		return nil // of cobra, such as --help
	}
	to.Changed = true
	target, isList := to.Value.(pflag.SliceValue)
	if source, ok := from.Value.(pflag.SliceValue); ok && isList {
		return target.Replace(source.GetSlice()) //nolint:wrapcheck // it was the value of the same flag
	}
	return to.Value.Set(from.Value.String()) //nolint:wrapcheck // the same
}

// logChanges logs the keys that differ from those before.
func (c *configFile) logChanges(now *pflag.FlagSet) {
	now.VisitAll(func(f *pflag.Flag) {
		old := c.flags.Lookup(f.Name)
		if old == nil || old.Value.String() == f.Value.String() {
			return
		}
		key := nested.Of(f.Name)
		if slices.Contains(liveFlags, f.Name) {
			c.log.Info("configuration has changed", "key", key, "before", old.Value.String(), "value", f.Value.String())
		} else {
			c.log.Error("configuration change needs a restart, not applied", "key", key, "before", old.Value.String(), "value", f.Value.String())
		}
	})
}
