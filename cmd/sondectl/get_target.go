package main

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
)

// splitGet replaces get KIND/NAME by get KIND NAME, since kubectl accepts both, and each kind is a command with its own
// flags. It moves the kind before the flags, since cobra could take it for the value of a flag.
func splitGet(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find([]string{"get", proxies.plural()})
	if err != nil {
		return args
	}
	_ = cmd.InheritedFlags() // InheritedFlags adds them to Flags
	at := words(cmd.Flags(), args)
	if len(at) < 2 || args[at[0]] != "get" {
		return args
	}
	get, i := at[0]+1, at[1]
	target := args[i : i+1]
	word, name, named := strings.Cut(args[i], "/")
	kind, ok := names.KindOf(word)
	ok = ok && slices.ContainsFunc(collections, func(r collection) bool { return r.singular == kind })
	if ok && named {
		target = []string{kind.Words()[0], name}
	}
	return slices.Concat(args[:get], target, args[get:i], args[i+1:])
}

// words returns the positions of arguments that are neither flags nor values of flags.
func words(flags *pflag.FlagSet, args []string) (at []int) {
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		switch arg := args[i]; {
		case arg == "" || arg[0] != '-':
			at = append(at, i)
		case takesNext(flags, arg):
			i++
		}
	}
	return at
}

// takesNext reports whether the next argument is the value of this flag.
func takesNext(flags *pflag.FlagSet, arg string) bool {
	if long, ok := strings.CutPrefix(arg, "--"); ok {
		f := flags.Lookup(long)
		return f != nil && f.NoOptDefVal == ""
	}
	for i, letter := range arg[1:] {
		if letter >= utf8.RuneSelf { // else ShorthandLookup panics
			return false
		}
		if f := flags.ShorthandLookup(string(letter)); f == nil || f.NoOptDefVal == "" {
			return f != nil && i == len(arg)-2
		}
	}
	return false
}
