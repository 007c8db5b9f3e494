// Package conflist edits only Sonde's entry in a CNI configuration.
package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// Type is the name of Sonde's plugin: the type of its entry, and its file on the node.
const Type = "sonde-cni"

// list is a configuration with all fields, including unknown ones.
type list struct {
	fields  map[string]json.RawMessage
	plugins []json.RawMessage
	types   []string
}

// With returns a configuration with Sonde's entry, appended unless it exists. Earlier plugins create a pod's network;
// later plugins keep their position. same means that nothing has changed.
func With(text []byte, socket string) (edited []byte, same bool, err error) {
	l, err := parse(text)
	if err != nil {
		return nil, false, err
	}
	entry, err := json.Marshal(map[string]string{"type": Type, "socket": socket})
	if err != nil {
		return nil, false, fmt.Errorf("encode entry: %w", err)
	}
	at := slices.Index(l.types, Type)
	if at < 0 {
		l.plugins = append(l.plugins, entry)
		edited, err = l.encode()
		return edited, false, err
	}
	if isSame(l.plugins[at], entry) && slices.Index(l.types[at+1:], Type) < 0 {
		return text, true, nil
	}
	l.plugins[at] = entry
	l.removeAfter(at)
	edited, err = l.encode()
	return edited, false, err
}

// Without returns a configuration without Sonde's entry. same means that it had none.
func Without(text []byte) (edited []byte, same bool, err error) {
	l, err := parse(text)
	if err != nil {
		return nil, false, err
	}
	if !slices.Contains(l.types, Type) {
		return text, true, nil
	}
	l.removeAfter(-1)
	edited, err = l.encode()
	return edited, false, err
}

// After returns the types of plugins after Sonde's, false if the configuration lacks Sonde's entry.
func After(text []byte) (others []string, found bool, err error) {
	l, err := parse(text)
	if err != nil {
		return nil, false, err
	}
	at := slices.Index(l.types, Type)
	if at < 0 {
		return nil, false, nil
	}
	return l.types[at+1:], true, nil
}

// parse parses a configuration like container runtimes.
func parse(text []byte) (*list, error) {
	network, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	l := &list{}
	for _, p := range network.Plugins {
		l.types = append(l.types, p.Network.Type)
	}
	if err := json.Unmarshal(text, &l.fields); err != nil {
		return nil, fmt.Errorf("parse configuration: %w", err)
	}
	if len(l.types) == 0 {
		return nil, errors.New("plugins: must have at least one")
	}
	if err := json.Unmarshal(l.fields["plugins"], &l.plugins); err != nil {
		return nil, fmt.Errorf("parse plugins: %w", err)
	}
	return l, nil
}

// removeAfter removes Sonde's entries after an index.
func (l *list) removeAfter(at int) {
	for i := len(l.types) - 1; i > at; i-- {
		if l.types[i] == Type {
			l.plugins, l.types = slices.Delete(l.plugins, i, i+1), slices.Delete(l.types, i, i+1)
		}
	}
}

func (l *list) encode() ([]byte, error) {
	plugins, err := marshal(l.plugins)
	if err != nil {
		return nil, err
	}
	l.fields["plugins"] = plugins
	text, err := marshal(l.fields)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, fmt.Errorf("indent configuration: %w", err)
	}
	return out.Bytes(), nil
}

// marshal encodes without HTML escapes, unlike json.Marshal.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out.Bytes(), nil
}

func isSame(a, b json.RawMessage) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	left, errA := json.Marshal(x)
	right, errB := json.Marshal(y)
	return errA == nil && errB == nil && bytes.Equal(left, right)
}
