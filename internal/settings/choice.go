package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Choice is a flag whose value is one of a few words.
type Choice[T ~string] struct {
	Value T
	Among []T
}

// String implements pflag.Value.
func (c *Choice[T]) String() string { return string(c.Value) }

// Type implements pflag.Value.
func (c *Choice[T]) Type() string { return strings.Join(c.Words(), "|") }

// Set implements pflag.Value.
func (c *Choice[T]) Set(s string) error {
	if !slices.Contains(c.Among, T(s)) {
		return fmt.Errorf("must be one of %s", strings.Join(c.Words(), ", "))
	}
	c.Value = T(s)
	return nil
}

// Words returns the allowed values.
func (c *Choice[T]) Words() []string {
	words := make([]string, len(c.Among))
	for i, word := range c.Among {
		words[i] = string(word)
	}
	return words
}

// Add adds the flag to cmd, with completion.
func (c *Choice[T]) Add(cmd *cobra.Command, name, short, usage string) {
	cmd.Flags().VarP(c, name, short, usage)
	Must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.Words(), cobra.ShellCompDirectiveNoFileComp)))
}

// Must panics on an error that only a programming mistake can cause.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
