package mesh

import "strings"

// ExecProbe runs a command in its container, with a helper that the agent calls (decision 086). It uses no port.
type ExecProbe struct {
	// Command with its arguments. No shell runs it.
	Command []string `json:"command"`
}

func (*ExecProbe) name() string { return "exec" }

func (*ExecProbe) protocol() Protocol { return "" }

func (e *ExecProbe) at(int32) Probe { return Probe{Exec: &ExecProbe{Command: e.Command}} }

// written implements handler. It is shortened, since the command may be a script.
func (e *ExecProbe) written(string) string {
	const longest = 60
	command := []rune(strings.Join(strings.Fields(strings.Join(e.Command, " ")), " "))
	if len(command) > longest {
		command = append(command[:longest-1], '…')
	}
	return e.name() + " " + string(command)
}

func (e *ExecProbe) request(int32) string { return e.written("") + ", in the container" }

func (*ExecProbe) port() *int32 { return new(int32) }

// virtualPath implements handler, for a container in place of a port.
func (*ExecProbe) virtualPath(container string) string { return "/exec/" + container }

func (*ExecProbe) setDefaults() {}

// problem implements handler. The command may contain a secret.
func (e *ExecProbe) problem(path string) *FieldError {
	switch {
	case len(e.Command) == 0 || e.Command[0] == "":
		return &FieldError{Field: path + ".command", Allowed: "must begin with the name of a program"}
	case strings.Contains(strings.Join(e.Command, ""), "\x00"):
		return &FieldError{Field: path + ".command", Allowed: "must not contain NUL"}
	}
	return nil
}

func (*ExecProbe) validate(*violations, string) {}
