package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// phrases are forbidden, with advice. Their spelling lets this file pass its own check.
var phrases = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bth(?:at|ose) of\b`), "name the thing"},
	{regexp.MustCompile(`\b(?:is|are) non[e]\b`), "say invalid, missing or without"},
	{regexp.MustCompile(`(?i)\b(?:not|no|nothing|never)\b[^.;:]* any mor[e]\b`), "say no longer"},
	{regexp.MustCompile(`(?i)\bnobod[y]\b`), "name who does not"},
}

// finding is a phrase with its position.
type finding struct {
	file    string
	line    int
	phrase  string
	instead string
}

// String formats the finding like a compiler error.
func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q: %s", f.file, f.line, f.phrase, f.instead)
}

// checkers maps extensions of files to checks.
var checkers = map[string]func(name string, text []byte) ([]finding, error){".go": checkGo, ".md": checkMarkdown}

// names are not English: URIs, and a user in /etc/passwd.
var names = regexp.MustCompile(`\b[a-z]+://\S+|\bnobod[y]:\S+`)

// checkText returns the phrases in a text that begins at a line. A phrase may contain line breaks.
func checkText(name string, line int, text string) (found []finding) {
	joined := names.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("/", len(s)) })
	joined = strings.ReplaceAll(joined, "\n", " ")
	for _, p := range phrases {
		for _, at := range p.pattern.FindAllStringIndex(joined, -1) {
			place := line + strings.Count(text[:at[0]], "\n")
			found = append(found, finding{name, place, joined[at[0]:at[1]], p.instead})
		}
	}
	return found
}

// checkGo checks comments and string literals, except in generated files.
func checkGo(name string, text []byte) (found []finding, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	for _, group := range file.Comments {
		found = append(found, checkText(name, set.Position(group.Pos()).Line, commentText(group))...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil || !strings.HasPrefix(literal.Value, "`") {
			value = strings.ReplaceAll(value, "\n", " ") // it is one line of the source
		}
		found = append(found, checkText(name, set.Position(literal.Pos()).Line, value)...)
		return true
	})
	return found, nil
}

// commentText returns a comment without its markers, line by line.
func commentText(group *ast.CommentGroup) string {
	lines := make([]string, 0, len(group.List))
	for _, c := range group.List {
		lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), " "))
	}
	return strings.Join(lines, "\n")
}

// code matches a code span, which may contain a program's output.
var code = regexp.MustCompile("`[^`\n]*`")

// checkMarkdown checks the prose of a page, without code blocks and code spans.
func checkMarkdown(name string, text []byte) ([]finding, error) {
	var prose strings.Builder
	fenced := false
	for line := range strings.Lines(string(text)) {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced {
			line = "\n"
		}
		prose.WriteString(code.ReplaceAllString(line, "."))
	}
	return checkText(name, 1, prose.String()), nil
}
