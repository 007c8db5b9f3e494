package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// command is a call of the go command in a module.
type command struct {
	module string // directory below the top of the repository
	env    []string
	args   []string
}

// runner runs commands in a repository.
type runner struct {
	root string
	*progress
}

// run returns the standard output of a command. It calls line for each line of its standard error; lines for which line
// returns false are in the error.
func (r *runner) run(ctx context.Context, c command, line func(string) bool) (string, error) {
	cmd := exec.CommandContext(ctx, "go", c.args...)
	cmd.Dir, cmd.Env = filepath.Join(r.root, c.module), append(os.Environ(), c.env...)
	cmd.WaitDelay = time.Second
	var stdout, rest bytes.Buffer
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = &stdout, writer
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(reader); s.Scan(); {
			if !line(s.Text()) {
				rest.WriteString(s.Text() + "\n")
			}
		}
		_, _ = io.Copy(io.Discard, reader) // the rest after a line that is too long
	}()
	err := cmd.Run()
	_ = writer.Close()
	<-read
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(c.args, " "), cmd.Dir, err, &rest)
	}
	return stdout.String(), nil
}

// downloading is the prefix of Go's message about a downloaded module.
const downloading = "go: downloading "

// manyDownloads makes Go download more modules in parallel than there are processors.
const manyDownloads = "GOMAXPROCS=16"

// modules downloads the modules of packages, and returns the number of packages including all imports.
func (r *runner) modules(ctx context.Context, module string, args ...string) (int, error) {
	var out string
	err := r.do(&step{name: "download modules of " + nameOf(module), unit: "modules"}, func(count func()) (err error) {
		list := command{module, []string{manyDownloads}, append([]string{"list", "-deps"}, args...)}
		out, err = r.run(ctx, list, func(line string) bool {
			found := strings.HasPrefix(line, downloading)
			if found {
				count()
			}
			return found
		})
		return err
	})
	return strings.Count(out, "\n"), err
}

// compile runs a go command with -v, which prints each compiled package.
func (r *runner) compile(ctx context.Context, name string, packages int, c command) error {
	return r.do(&step{name: name, unit: "packages", all: packages}, func(count func()) error {
		_, err := r.run(ctx, c, func(line string) bool {
			if strings.HasPrefix(line, downloading) {
				return true
			}
			found := line != "" && !strings.ContainsAny(line, " \t:")
			if found {
				count()
			}
			return found
		})
		return err
	})
}

func nameOf(module string) string {
	if module == "." {
		return "the main module"
	}
	return module + "/"
}
