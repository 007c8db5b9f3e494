// Package execwire is the contract of webhook, agent and sonde-exec: how the helper is started in a container, and what
// it answers on its socket.
package execwire

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"
)

// Names of files.
const (
	// Program is the helper's file, in the image and in the container.
	Program = "sonde-exec"
	// Socket is the helper's socket in the folder that agent and container share.
	Socket = "socket"
)

// Mode is the first argument of the helper.
type Mode string

// Modes. The helper itself uses all but the first.
const (
	// ModeStart starts the helper, unless it already runs, and then becomes the command in Start.Then.
	ModeStart Mode = "start"
	// ModeFork starts ModeServe and exits, so that no process of the container is its parent.
	ModeFork Mode = "fork"
	// ModeServe answers the agent.
	ModeServe Mode = "serve"
)

// Start is how the helper is started.
type Start struct {
	// Directory of the socket.
	Directory string
	// Peer is the ID of the only user whose connections the helper answers.
	Peer uint
	// Timeout of the command.
	Timeout time.Duration
	// Command to run for each check, with its arguments. Required.
	Command []string
	// Retried means that the kubelet retries a failed start, and that the failure has no other effect.
	Retried bool
	// Then is the command of the user's own startup probe or hook, run after the start of the helper. Default: none.
	Then []string
}

// Args returns the arguments of the helper.
func (s *Start) Args(mode Mode) []string {
	args := []string{
		string(mode), "--directory=" + s.Directory, "--peer=" + strconv.FormatUint(uint64(s.Peer), 10),
		"--timeout=" + s.Timeout.String(), "--words=" + strconv.Itoa(len(s.Command)),
	}
	if s.Retried {
		args = append(args, "--retried")
	}
	args = append(args, "--")
	return append(append(args, s.Command...), s.Then...)
}

// Parse parses the output of Args.
func Parse(args []string) (Mode, Start, error) {
	var s Start
	if len(args) == 0 {
		return "", s, errors.New("arguments: must begin with start")
	}
	flags := flag.NewFlagSet(Program, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&s.Directory, "directory", "", "")
	flags.UintVar(&s.Peer, "peer", 0, "")
	flags.DurationVar(&s.Timeout, "timeout", 0, "")
	flags.BoolVar(&s.Retried, "retried", false, "")
	words := flags.Int("words", 0, "")
	if err := flags.Parse(args[1:]); err != nil {
		return "", s, fmt.Errorf("parse arguments: %w", err)
	}
	switch rest := flags.Args(); {
	case *words < 1 || *words > len(rest):
		return "", s, fmt.Errorf("--words: %d: must be 1 to %d, the number of arguments after --", *words, len(rest))
	case s.Directory == "" || s.Timeout <= 0:
		return "", s, errors.New("--directory and --timeout: are required")
	default:
		s.Command, s.Then = rest[:*words], rest[*words:]
	}
	return Mode(args[0]), s, nil
}

// Outcome is how the command ended.
type Outcome byte

// Outcomes. Zero is invalid.
const (
	// Exited: Code is its exit code, or 128 and the number of the signal that ended it.
	Exited Outcome = 1 + iota
	// TimedOut: it was killed after its timeout.
	TimedOut
	// NotStarted: Code is the errno, 0 for another error.
	NotStarted
)

// Answer is the helper's answer to a connection. It contains no data of the application.
type Answer struct {
	Outcome Outcome
	Code    byte
}

// size of an answer, in bytes.
const size = 2

// Encode returns the answer as it is sent.
func (a Answer) Encode() []byte { return []byte{byte(a.Outcome), a.Code} }

// Read reads an answer. It reads only size bytes, whatever is sent.
func Read(r io.Reader) (Answer, error) {
	var b [size]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Answer{}, fmt.Errorf("read the answer: %w", err)
	}
	a := Answer{Outcome(b[0]), b[1]}
	if a.Outcome < Exited || a.Outcome > NotStarted {
		return Answer{}, fmt.Errorf("read the answer: %d: must be 1 to %d", a.Outcome, NotStarted)
	}
	return a, nil
}

// Err returns why the command was not started.
func (a Answer) Err() error {
	if a.Code == 0 {
		return errors.New("unknown error")
	}
	return syscall.Errno(a.Code)
}
