package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
)

// maxContextFile is the size of a file of contexts, in bytes.
const maxContextFile = 1 << 20

// contextFile is the file with the control planes that an operator uses. It has no secrets, only where they are.
type contextFile struct {
	// CurrentContext is the name of the one that is used without --context.
	CurrentContext string        `json:"currentContext,omitempty" yaml:"currentContext,omitempty"`
	Contexts       []contextItem `json:"contexts"                 yaml:"contexts"`
}

// contextItem is one control plane, and how to reach it. What is left out is as without a context.
type contextItem struct {
	Name       string `json:"name"                 yaml:"name"`
	Address    string `json:"address,omitempty"    yaml:"address,omitempty"`
	CACertFile string `json:"caCertFile,omitempty" yaml:"caCertFile,omitempty"`
	TokenFile  string `json:"tokenFile,omitempty"  yaml:"tokenFile,omitempty"`
}

// find returns the context of that name, nil if there is none.
func (f *contextFile) find(name string) *contextItem {
	for i := range f.Contexts {
		if f.Contexts[i].Name == name {
			return &f.Contexts[i]
		}
	}
	return nil
}

func (f *contextFile) names() []string {
	names := make([]string, len(f.Contexts))
	for i := range f.Contexts {
		names[i] = f.Contexts[i].Name
	}
	return names
}

// notFound returns the error for a name that f has no context of.
func (f *contextFile) notFound(field, path, name string) error {
	allowed := "must be a context of " + path
	if len(f.Contexts) > 0 {
		allowed += ": " + strings.Join(f.names(), ", ")
	}
	return &mesh.FieldError{Field: field, Value: name, Allowed: allowed}
}

// readContextFile reads a file of contexts strictly. One that does not exist is empty.
func readContextFile(path string) (*contextFile, error) {
	f := &contextFile{Contexts: []contextItem{}}
	r, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	info, err := r.Stat()
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 { // who changes the address and the CA in it gets the token
		return nil, fmt.Errorf("%s: others may write it (mode %04o): must be writable by its owner alone: chmod 600 %[1]s", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(r, maxContextFile+1))
	if err != nil {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	if len(data) > maxContextFile {
		return nil, fmt.Errorf("%s: must be at most %d bytes", path, maxContextFile)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	decoder.KnownFields(true)
	if err := decoder.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, explainContexts(path, data, err)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: must be one YAML document", path)
	}
	return f, f.validate(path)
}

// unknownField is how the YAML library names a field that contextFile has not.
var unknownField = regexp.MustCompile(`^line (\d+): field (\S+) not found in type main\.(\w+)$`)

// explainContexts returns all that is wrong with the form of the file.
func explainContexts(path string, data []byte, err error) error {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	types := false
	for _, text := range wrong.Errors {
		match := unknownField.FindStringSubmatch(text)
		if match == nil {
			types = true
			continue
		}
		known := map[string][]string{"contextFile": {"currentContext", "contexts"}, "contextItem": {"name", "address", "caCertFile", "tokenFile"}}[match[3]]
		text = fmt.Sprintf("line %s: %s: %s", match[1], match[2], mesh.UnknownField(match[2], known))
		if match[2] == "token" {
			text += " (a token is never in this file, only the file that it is in)"
		}
		errs = append(errs, fmt.Errorf("%s, %s", path, text))
	}
	if !types {
		return errors.Join(errs...)
	}
	body, err := sigsyaml.YAMLToJSON(data)
	if err == nil {
		err = mesh.ExplainJSON("", body, &contextFile{})
	}
	for line := range strings.Lines(err.Error()) {
		errs = append(errs, fmt.Errorf("%s: %s", path, strings.TrimSpace(line)))
	}
	return errors.Join(errs...)
}

// validate returns all violations. Paths that are relative count from the directory of the file.
func (f *contextFile) validate(path string) error {
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: path + ": " + field, Value: value, Allowed: allowed})
	}
	for i := range f.Contexts {
		c, field := &f.Contexts[i], fmt.Sprintf("contexts[%d].", i)
		switch {
		case c.Name == "":
			refuse(field+"name", "", "is required")
		case slices.Contains(f.names()[:i], c.Name):
			refuse(field+"name", c.Name, "must be the name of one context alone")
		}
		if c.Address != "" {
			address, err := reach.Admin.Address(c.Address)
			if err != nil {
				refuse(field+"address", c.Address, err.Error())
			}
			c.Address = address
		}
		for _, file := range []*string{&c.CACertFile, &c.TokenFile} {
			if *file != "" && !filepath.IsAbs(*file) {
				*file = filepath.Join(filepath.Dir(path), *file)
			}
		}
	}
	if f.CurrentContext != "" && f.find(f.CurrentContext) == nil {
		errs = append(errs, f.notFound(path+": currentContext", path, f.CurrentContext))
	}
	return errors.Join(errs...)
}

// write replaces the file as a whole, so that no reader sees a part of it. Only its owner may read it.
func (f *contextFile) write(path string) (err error) {
	if real, linkErr := filepath.EvalSymlinks(path); linkErr == nil {
		path = real
	}
	data, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode contexts: %w", err)
	}
	directory := filepath.Dir(path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	w, err := os.CreateTemp(directory, ".sondectl-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	_, err = w.Write(data)
	err = errors.Join(err, w.Sync(), w.Close())
	if err == nil {
		err = os.Rename(w.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write contexts: %w", err), os.Remove(w.Name()))
	}
	return nil
}
