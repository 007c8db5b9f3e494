// Package install keeps the CNI plugin installed on a node: its file, and its entry in the CNI configuration.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"

	"github.com/sonde-mesh/sonde/cni/conflist"
	"github.com/sonde-mesh/sonde/internal/replacefile"
)

// Options of an Installer. All but Changed are required.
type Options struct {
	// ConfigDir is the directory from which container runtimes read CNI configurations.
	ConfigDir string
	// PluginDir is the directory from which they run plugins.
	PluginDir string
	// Plugin is the file of Sonde's plugin to copy.
	Plugin string
	// Socket is the path of the daemon's socket on the node.
	Socket string
	Logger *slog.Logger
	// Changed is called after each check of the node. It must not block.
	Changed func(State)
}

// State is the state of the installation.
type State struct {
	// File is the configuration with Sonde's entry.
	File string
	// After are the types of plugins after Sonde's.
	After []string
	// Err is why container runtimes do not call the plugin.
	Err error
	// Again is when to check again without an event.
	Again time.Duration
}

// recheckEvery is the interval of checks without an event, and settleFor the delay of a check after an event, since a
// write causes several events.
const (
	recheckEvery = 15 * time.Second
	settleFor    = 100 * time.Millisecond
)

// Pauses before the entry is written again, if another program has removed it within recheckEvery. Each pause is twice
// the previous one, up to recheckEvery. Once it exceeds contested, the entry counts as missing until it stays.
const (
	firstPause = 2 * settleFor
	contested  = 2 * firstPause
)

// maxConfigBytes bounds a configuration, since other programs of the node write them.
const maxConfigBytes = 1 << 20

// Installer installs the plugin again whenever another program has changed its file or its entry.
type Installer struct {
	o Options
	// writes counts writes of the entry, for the metric.
	writes func()
	// wrote is the time of the last write of the entry, zero once the entry has stayed for recheckEvery; pause is the
	// minimum time until the next write.
	wrote time.Time
	pause time.Duration
}

// New returns an Installer, which calls wrote after each write of the entry.
func New(o Options, wrote func()) *Installer { return &Installer{o: o, writes: wrote} }

// Run keeps the plugin installed until ctx ends. It uninstalls nothing, since only the caller can distinguish an
// upgrade from an uninstallation.
func (i *Installer) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch CNI configurations: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	for {
		// before the check, so that later changes cause an event. The directory may have been replaced.
		watchErr := errors.Join(watcher.Add(i.o.ConfigDir), watcher.Add(i.o.PluginDir))
		s := i.Ensure()
		s.Err = errors.Join(s.Err, watchErr)
		i.o.Changed(s)
		if !i.wait(ctx, watcher, s.Again) {
			return nil
		}
	}
}

// wait returns true when the next check is due, false when ctx has ended.
func (i *Installer) wait(ctx context.Context, watcher *fsnotify.Watcher, after time.Duration) bool {
	again := time.NewTimer(after)
	defer again.Stop()
	var settled <-chan time.Time // set by the first event, so that endless writes do not delay the check
	settle := func() {
		if settled == nil {
			settled = time.After(settleFor)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
			return true
		case <-settled:
			return true
		case <-watcher.Events:
			settle()
		case err := <-watcher.Errors:
			i.o.Logger.Warn("failed to watch the directories of CNI, checking them now", "err", err)
			settle()
		}
	}
}

// Ensure installs the missing parts, and returns the state of the installation.
func (i *Installer) Ensure() State {
	s := State{Again: recheckEvery}
	if s.Err = i.copyPlugin(); s.Err != nil {
		return s
	}
	if s.File, s.Err = i.first(); s.Err != nil {
		return s
	}
	s.After, s.Err = i.chain(s.File)
	if left := i.left(); left > 0 {
		s.Again = left
	}
	return s
}

// copyPlugin copies the plugin if the file on the node differs or is missing. A running plugin keeps the old file.
func (i *Installer) copyPlugin() error {
	want, err := os.ReadFile(i.o.Plugin)
	if err != nil {
		return fmt.Errorf("read plugin: %w", err)
	}
	path := filepath.Join(i.o.PluginDir, conflist.Type)
	if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
		return nil
	}
	return replace(path, want, 0o755)
}

// first returns the configuration that container runtimes use: the first file by name.
func (i *Installer) first() (string, error) {
	files, err := libcni.ConfFiles(i.o.ConfigDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return "", fmt.Errorf("list CNI configurations: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("%s: no CNI configuration found", i.o.ConfigDir)
	}
	first := slices.Min(files)
	if filepath.Ext(first) != ".conflist" {
		return "", fmt.Errorf("%s: the first configuration is for a single plugin: must be a .conflist, to which Sonde can add its plugin", first)
	}
	return first, nil
}

// chain adds Sonde's entry to a configuration, and reads the file again, since another program may have written it at
// the same time.
func (i *Installer) chain(file string) (after []string, err error) {
	text, err := readConfig(file)
	if err != nil {
		return nil, err
	}
	edited, same, err := conflist.With(text, i.o.Socket)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	switch {
	case same && time.Since(i.wrote) >= recheckEvery:
		i.wrote, i.pause = time.Time{}, 0
	case !same && i.left() <= 0:
		if err := replaceKeepingMode(file, edited); err != nil {
			return nil, err
		}
		i.noteWrite(file)
		if text, err = readConfig(file); err != nil {
			return nil, err
		}
	}
	after, found, err := conflist.After(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	case i.pause > contested:
		return nil, fmt.Errorf("%s: another program keeps removing the entry of %s, which is added again after %s at most",
			file, conflist.Type, recheckEvery)
	case !found:
		return nil, fmt.Errorf("%s: another program has removed the entry of %s", file, conflist.Type)
	}
	return after, nil
}

// left returns the rest of the pause before the next write.
func (i *Installer) left() time.Duration { return i.pause - time.Since(i.wrote) }

func (i *Installer) noteWrite(file string) {
	if !i.wrote.IsZero() {
		i.pause = min(max(2*i.pause, firstPause), recheckEvery)
	}
	i.wrote = time.Now()
	i.writes()
	i.o.Logger.Info("added the plugin to the CNI configuration", "file", file)
}

// Uninstall removes Sonde's entry from all configurations. It leaves the plugin's file: CRI-O deletes the network of a
// running pod with the configuration that the pod started with, which fails without the file.
func (i *Installer) Uninstall() error {
	files, err := libcni.ConfFiles(i.o.ConfigDir, []string{".conflist"})
	if err != nil {
		return fmt.Errorf("list CNI configurations: %w", err)
	}
	var errs []error
	for _, file := range files {
		text, err := readConfig(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		edited, same, err := conflist.Without(text)
		if err != nil { // container runtimes cannot read this configuration either, so it calls no plugin
			i.o.Logger.Warn("skipping an invalid CNI configuration", "file", file, "err", err)
			continue
		}
		if !same {
			errs = append(errs, replaceKeepingMode(file, edited))
		}
	}
	return errors.Join(errs...)
}

func readConfig(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	if info.Size() > maxConfigBytes {
		return nil, fmt.Errorf("%s: has %d bytes, must have at most %d", file, info.Size(), maxConfigBytes)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	return text, nil
}

func replaceKeepingMode(file string, text []byte) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	return replace(file, text, info.Mode().Perm())
}

func replace(file string, text []byte, mode fs.FileMode) error {
	if err := replacefile.Bytes(file, mode, text); err != nil {
		return fmt.Errorf("replace %s: %w", file, err)
	}
	return nil
}
