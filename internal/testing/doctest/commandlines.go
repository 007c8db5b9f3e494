package doctest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CommandLines fails the test for each command line, in the Markdown files at the top of a repository and in docs, that
// the program rejects: an unknown command or flag, an invalid value, or wrong arguments. A code span in a sentence may
// omit required parts. program returns the program's command, a new one for each call. CHANGELOG.md is skipped, since
// it is about older versions, and the pages of docs/reference, since they have usages instead of command lines.
func CommandLines(t testing.TB, repository string, program func() *cobra.Command) {
	t.Helper()
	found, name := 0, program().Name() // making a program is slow, and cobra keeps each
	for _, file := range pages(t, repository) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check := func(code string, mention bool) {
			t.Helper()
			for _, args := range commandLines(code, name) {
				found++
				if err := parse(program(), args, mention); err != nil {
					t.Errorf("%s: %s %s: %v", file, name, strings.Join(args, " "), err)
				}
			}
		}
		for _, block := range fence.FindAllString(string(data), -1) {
			_, code, _ := strings.Cut(block, "\n")
			check(strings.TrimRight(code, "` "), false)
		}
		for _, code := range span.FindAllString(fence.ReplaceAllString(string(data), ""), -1) {
			check(strings.Trim(code, "`"), true)
		}
	}
	if found == 0 {
		t.Errorf("no page of %s has a command line of %s", repository, name)
	}
}

// pages returns the hand-written Markdown files of a repository.
func pages(t testing.TB, repository string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(repository, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	docs := filepath.Join(repository, "docs")
	err = filepath.WalkDir(docs, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == filepath.Join(docs, "reference"):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(file string) bool { return filepath.Base(file) == "CHANGELOG.md" })
}

var (
	fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	span  = regexp.MustCompile("`[^`\n]+`")
)

// prefixes may come before the name of a program: words of the shell, the prompt, and variables.
var prefixes = regexp.MustCompile(`^([$!]|do|then|else|until|while|if|exec|time|sudo|\w+=.*)$`)

// commandLines returns the arguments of each call of the program in a script. Other text is ignored, unless a line
// begins with the program's name.
func commandLines(script, program string) [][]string {
	var all [][]string
	for _, words := range simpleCommands(script) {
		for _, word := range words {
			if strings.Contains(word, program+" ") { // as in sh -c
				all = append(all, commandLines(word, program)...)
			}
		}
		for len(words) > 0 && prefixes.MatchString(words[0]) && !strings.HasSuffix(words[0], "/"+program) {
			words = words[1:]
		}
		if len(words) > 1 && path.Base(words[0]) == program && !slices.ContainsFunc(words, drawn) {
			all = append(all, words[1:])
		}
	}
	return all
}

// token is a word, a redirection, a comment, or the end of a command. A quote ends with its line, since text may
// contain apostrophes.
var token = regexp.MustCompile(
	`\d*[<>]+&?[ \t]*[^\s|&;()<>]+|(?:\\.|'[^'\n]*'?|"(?:\\.|[^"\\\n])*"?|[^\s'"\\|&;(){}<>])+|[\n|&;(){}]`)

var redirection = regexp.MustCompile(`^\d*[<>]`)

// simpleCommands returns the words of each command of a script, without quotes.
func simpleCommands(script string) [][]string {
	all := [][]string{nil}
	comment := false
	for _, word := range token.FindAllString(strings.ReplaceAll(script, "\\\n", " "), -1) {
		switch {
		case word == "\n":
			comment = false
			all = append(all, nil)
		case comment || redirection.MatchString(word):
		case word[0] == '#':
			comment = true
		case strings.ContainsAny(word, "|&;(){}") && len(word) == 1:
			all = append(all, nil)
		default:
			last := len(all) - 1
			all[last] = append(all[last], unquoted.Replace(word))
		}
	}
	return all
}

var unquoted = strings.NewReplacer(`'`, "", `"`, "", `\`, "")

// drawn reports whether a word is part of a drawing.
func drawn(word string) bool {
	return strings.ContainsFunc(word, func(r rune) bool { return r > unicode.MaxASCII })
}

// parse returns an error if a program's command rejects arguments. A mention of the command may omit required parts.
func parse(root *cobra.Command, args []string, mention bool) error {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	err = cmd.ParseFlags(rest)
	if missing := (*pflag.ValueRequiredError)(nil); mention && errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"help", "version"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return nil
		}
	}
	if mention && cmd.Flags().NArg() == 0 {
		return nil
	}
	if !cmd.Runnable() && (cmd.HasParent() || cmd.Flags().NArg() > 0) {
		return fmt.Errorf("%s has no such command", cmd.CommandPath())
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
