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

// rereadPeriod is the interval of checks of the file. A kubelet takes up to a minute to write a ConfigMap.
const rereadPeriod = 2 * time.Second

// configFile reloads the --config file while the control plane runs.
type configFile struct {
	path  string
	flags *pflag.FlagSet // flags of the command line, and the values read last from the file
	log   *slog.Logger

	seen    []byte // content at the last check
	data    []byte // the last content read, valid or not
	options *options
	err     error // the last read error
}

// liveFlags are the flags whose keys take effect while the control plane runs; see options.live.
var liveFlags = append([]string{keyDrainAware, flagFreezeMode}, guardedFlags...)

// live returns the settings that can change while the control plane runs.
func (o *options) live() controlplane.Live {
	return controlplane.Live{
		IgnoreNodes: !o.drainAware, GuardedLiveness: o.Kubernetes.GuardedLiveness, LivenessHold: o.Kubernetes.LivenessHold,
		FreezeMode: o.Kubernetes.FreezeMode,
	}
}

// follow applies changes of the file until ctx ends. It logs an error, and changes nothing, if the file is invalid or
// if a changed key needs a restart.
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

// read reports whether the file has new and valid content. Two checks must see the same content: while a program
// overwrites the file in place it is empty for a moment, which would reset all keys to their defaults.
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
			c.log.Error("failed to reload configuration, keeping the previous one", "err", err)
		}
		c.err = err
		return false
	}
	c.logChanges(flags)
	c.options, c.flags, c.err = &now, flags, nil
	return true
}

// parse copies the flags of the command line, then reads the file into the others.
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

// copyFlag copies the value of a flag from the command line. The text of a list cannot be parsed as a list.
func copyFlag(to, from *pflag.Flag) error {
	if to == nil {
		return nil // a flag of cobra, such as --help
	}
	to.Changed = true
	target, isList := to.Value.(pflag.SliceValue)
	if source, ok := from.Value.(pflag.SliceValue); ok && isList {
		return target.Replace(source.GetSlice()) //nolint:wrapcheck // the value of the same flag
	}
	return to.Value.Set(from.Value.String()) //nolint:wrapcheck // the same
}

// logChanges logs the keys whose values have changed.
func (c *configFile) logChanges(now *pflag.FlagSet) {
	now.VisitAll(func(f *pflag.Flag) {
		old := c.flags.Lookup(f.Name)
		if old == nil || old.Value.String() == f.Value.String() {
			return
		}
		key := nested.Of(f.Name)
		if slices.Contains(liveFlags, f.Name) {
			c.log.Info("configuration changed", "key", key, "before", old.Value.String(), "value", f.Value.String())
		} else {
			c.log.Error("configuration change needs a restart, not applied", "key", key, "before", old.Value.String(),
				"value", f.Value.String())
		}
	})
}
