// Command prose checks comments, string literals and Markdown for phrases that CONTRIBUTING.md rules out.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	root := flags.String("root", "..", "top `directory` of the repository")
	if err := flags.Parse(args); err != nil {
		return err
	}
	found, err := find(*root)
	if err != nil {
		return err
	}
	for _, f := range found {
		if _, err := fmt.Fprintln(stdout, f); err != nil {
			return err
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%d phrases to reword", len(found))
	}
	return nil
}

// find returns the findings in all files below root. Their paths are relative to it.
func find(root string) (found []finding, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if skipped(name, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		check := checkers[filepath.Ext(name)]
		if check == nil || !entry.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inFile, err := check(filepath.ToSlash(name), text)
		found = append(found, inFile...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check files: %w", err)
	}
	return found, nil
}

// skipped reports whether to skip a folder: test data, build output, hidden folders.
func skipped(path, name string) bool {
	return path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || path == "bin" || path == "test/bin")
}
