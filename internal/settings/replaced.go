package settings

import (
	"strings"

	"github.com/spf13/cobra"
)

// replacedBy is the prefix of a program's annotations with Options.Replaced.
const replacedBy = "replaced:"

func addReplaced(root *cobra.Command, replaced map[string]string) {
	if root.Annotations == nil {
		root.Annotations = map[string]string{}
	}
	for words, instead := range replaced {
		root.Annotations[replacedBy+words] = instead
	}
}

// misnamed returns an error if args begin with a command that cmd does not have.
func misnamed(cmd *cobra.Command, args []string) error {
	if cmd.RunE != nil { // args may be its arguments
		return replacedCommand(cmd, args)
	}
	return knows(cmd, args)
}

// replacedCommand returns an error with the command to use instead of the one that args begin with, or nil.
func replacedCommand(cmd *cobra.Command, args []string) error {
	for n := len(args); n > 0; n-- {
		words := strings.Join(args[:n], " ")
		if instead := cmd.Root().Annotations[replacedBy+strings.TrimSpace(pathBelow(cmd)+" "+words)]; instead != "" {
			return Usagef("command %q not found: %s", words, instead)
		}
	}
	return nil
}

// replacedFlag returns what to use instead of a flag of a command, which has its dashes, or "".
func replacedFlag(cmd *cobra.Command, flag string) string {
	if instead := cmd.Root().Annotations[replacedBy+strings.TrimSpace(pathBelow(cmd)+" "+flag)]; instead != "" {
		return instead
	}
	return cmd.Root().Annotations[replacedBy+flag]
}

// pathBelow returns the words of a command without the program.
func pathBelow(cmd *cobra.Command) string {
	return strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()))
}
