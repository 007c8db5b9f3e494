package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/tools/cache"
)

// file is the file in the repository that names the commit.
const file = "test/real/upgrade/previous"

// errMissing means that the sources of the previous release are missing.
var errMissing = errors.New("the previous release is not in this history: run git fetch --unshallow; an archive of the sources has no history")

// commitLine matches the first line of the file that is not a comment.
var commitLine = regexp.MustCompile(`^[0-9a-f]{40}$`)

// builder builds the previous release.
type builder struct {
	repository, cache string
	// tag of the image, "" for none.
	tag      string
	progress io.Writer
}

// build returns the directory with the requested files, which it builds unless they are in the cache.
func (b *builder) build(ctx context.Context) (string, error) {
	commit, err := b.commit()
	if err != nil {
		return "", err
	}
	directory := filepath.Join(b.cache, "previous", commit)
	if err := os.MkdirAll(filepath.Dir(directory), 0o755); err != nil {
		return "", err
	}
	unlock, err := cache.Lock(ctx, directory+".lock")
	if err != nil {
		return "", fmt.Errorf("wait for another build of %s: %w", commit, err)
	}
	defer unlock()
	if b.has(directory) {
		return directory, nil
	}
	if err := b.git(ctx, "cat-file", "-e", commit+"^{commit}"); err != nil {
		return "", fmt.Errorf("%w (%s names %s: %w)", errMissing, file, commit, err)
	}
	tree, err := os.MkdirTemp(filepath.Dir(directory), commit[:12]+".tree-")
	if err != nil {
		return "", err
	}
	begun := time.Now()
	_, _ = fmt.Fprintf(b.progress, "building the previous release, %s\n", commit)
	err = b.buildIn(ctx, tree, commit, directory)
	if err = errors.Join(err, os.RemoveAll(tree)); err != nil {
		return "", fmt.Errorf("build previous release, %s: %w", commit, err)
	}
	_, _ = fmt.Fprintf(b.progress, "built after %s\n", time.Since(begun).Round(time.Second))
	return directory, nil
}

// commit reads the file.
func (b *builder) commit() (string, error) {
	text, err := os.ReadFile(filepath.Join(b.repository, file))
	if err != nil {
		return "", fmt.Errorf("read commit of the previous release: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !commitLine.MatchString(line) {
			return "", fmt.Errorf("%s: %q: must be a commit, 40 hexadecimal digits", file, line)
		}
		return line, nil
	}
	return "", fmt.Errorf("%s: names no commit", file)
}

// has reports whether all requested files exist. Existing files are complete, since build moves them there.
func (b *builder) has(directory string) bool {
	wanted := []string{"bin", "chart"}
	if b.tag != "" {
		wanted = append(wanted, "image.tar")
	}
	for _, name := range wanted {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			return false
		}
	}
	return true
}

func (b *builder) buildIn(ctx context.Context, tree, commit, directory string) error {
	// A clone that shares the objects, since Go records no version for builds in a worktree. It writes nothing into the
	// repository.
	if err := b.git(ctx, "clone", "--quiet", "--shared", "--no-checkout", ".", tree); err != nil {
		return err
	}
	if err := b.command(ctx, tree, "git", "checkout", "--quiet", "--detach", commit); err != nil {
		return err
	}
	targets := []string{"build"}
	if b.tag != "" {
		targets = append(targets, "image", "TAG="+b.tag)
	}
	if err := b.command(ctx, tree, "make", targets...); err != nil {
		return err
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	if b.tag != "" {
		if err := replace(filepath.Join(tree, "bin", "sonde-image.tar"), filepath.Join(directory, "image.tar")); err != nil {
			return err
		}
	}
	return errors.Join(replace(filepath.Join(tree, "deploy", "chart"), filepath.Join(directory, "chart")),
		replace(filepath.Join(tree, "bin"), filepath.Join(directory, "bin")))
}

// replace moves a file or directory in the cache, and overwrites an existing one.
func replace(from, to string) error {
	return errors.Join(os.RemoveAll(to), os.Rename(from, to))
}

func (b *builder) git(ctx context.Context, args ...string) error {
	return b.command(ctx, b.repository, "git", args...)
}

// command runs a program. The error contains its output.
func (b *builder) command(ctx context.Context, directory, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = directory, 10*time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := said.Bytes()
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(text[max(0, len(text)-2000):]))
	}
	return nil
}
