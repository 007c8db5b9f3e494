package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// runFunc runs a program in a directory and returns its standard output.
type runFunc func(ctx context.Context, directory, program string, args ...string) (string, error)

func output(ctx context.Context, directory, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = directory
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return string(out), nil
}

// repository is a git work tree.
type repository struct {
	root string
	run  runFunc
}

func (r *repository) git(ctx context.Context, args ...string) (string, error) {
	out, err := r.run(ctx, r.root, "git", args...)
	return strings.TrimSpace(out), err
}

// base returns the commit to compare with, and its description: the user's choice, otherwise the merge base with
// origin/main, the merge base with main, or the parent of HEAD, whichever first exists and is not HEAD.
func (r *repository) base(ctx context.Context, asked string) (commit, name string, err error) {
	if asked != "" {
		commit, err = r.git(ctx, "rev-parse", "--verify", asked+"^{commit}")
		return commit, asked, err
	}
	head, err := r.git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return "", "", err
	}
	for _, branch := range []string{"origin/main", "main"} {
		commit, err := r.git(ctx, "merge-base", "HEAD", branch)
		if err == nil && commit != head {
			return commit, "merge base with " + branch, nil
		}
	}
	commit, err = r.git(ctx, "rev-parse", "--verify", "HEAD~1^{commit}")
	if err != nil {
		return "", "", fmt.Errorf("no commit to compare HEAD with, set BASE: %w", err)
	}
	return commit, "HEAD~1", nil
}

// changed returns the files that differ from a commit, including uncommitted ones.
func (r *repository) changed(ctx context.Context, base string) ([]string, error) {
	tracked, err := r.git(ctx, "diff", "--name-only", "--no-renames", base)
	if err != nil {
		return nil, err
	}
	others, err := r.git(ctx, "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	files := strings.FieldsFunc(tracked+"\n"+others, func(r rune) bool { return r == '\n' }) // a name may contain a space
	slices.Sort(files)
	return slices.Compact(files), nil
}
