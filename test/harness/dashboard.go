package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Dashboard starts sondectl dashboard, and returns the address that it prints.
func (m *Machine) Dashboard(ctx context.Context) (address string, p *Process, err error) {
	p, err = m.run("dashboard", nil, m.options.Programs.Ctl,
		append([]string{"dashboard", "--no-open"}, m.CtlFlags()...)...)
	if err != nil {
		return "", nil, err
	}
	return address, p, Poll(ctx, "the address of the dashboard", func(context.Context) error {
		if !p.Running() {
			return fmt.Errorf("%w: %w: %s", errHopeless, p.err, p.tail(1))
		}
		data, err := os.ReadFile(p.Log)
		if err != nil {
			return err
		}
		line, _, whole := strings.Cut(string(data), "\n")
		if !whole {
			return errors.New("it has not printed it yet")
		}
		address = line
		return nil
	})
}
