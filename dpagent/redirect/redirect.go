// Package redirect makes the kernel redirect a pod's connections to Envoy, with one nftables table in the network namespace of
// the calling thread. docs/decisions/018-redirection.md says why the rules are as they are.
package redirect

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

const (
	// answerTimeout bounds each exchange with the kernel: one without nf_tables does not answer all of our messages.
	answerTimeout = 5 * time.Second
	// bufferBytes holds the acknowledgements of thousands of rules.
	bufferBytes = 4 << 20
)

// Install writes our table in one transaction, in place of an older one of ours, and reads it back. It takes CAP_NET_ADMIN. The
// error names bad options (*mesh.FieldError), or what the kernel lacks. Connections that are already open are not affected.
func Install(o Options) error {
	return newKernel().install(o)
}

// Uninstall removes our table and nothing else. It reports whether there was one.
func Uninstall() (removed bool, err error) {
	return newKernel().uninstall()
}

// Check returns how the table in the kernel differs from the one that Install writes, one line for each difference.
func Check(o Options) (differences []string, err error) {
	return newKernel().check(o)
}

// kernel is where tables are.
type kernel struct {
	options []nftables.ConnOption
}

func newKernel() kernel {
	return kernel{options: []nftables.ConnOption{nftables.WithSockOptions(setLimits)}}
}

func setLimits(c *netlink.Conn) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if err := c.SetReadBuffer(bufferBytes); err != nil {
		return err
	}
	return c.SetWriteBuffer(bufferBytes)
}

// conn returns a connection for one transaction or several questions.
func (k kernel) conn() (*nftables.Conn, error) { return nftables.New(k.options...) }

func table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

func (k kernel) install(o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	chains := newTable(&o)
	err := k.transaction(func(c *nftables.Conn) {
		remove(c, table())
		c.AddTable(table())
		for i := range chains {
			write(c, &chains[i])
		}
	})
	if err != nil {
		return fmt.Errorf("write table inet %s: %w", TableName, k.explain(err, &o))
	}
	differences, err := k.compare(chains)
	if err != nil {
		return fmt.Errorf("read table inet %s back: %w", TableName, k.explain(err, &o))
	}
	if len(differences) > 0 {
		return fmt.Errorf("the kernel does not hold what was written to table inet %s: %s", TableName, strings.Join(differences, "; "))
	}
	return nil
}

func (k kernel) uninstall() (removed bool, err error) {
	found, err := k.findTable()
	if err != nil {
		return false, fmt.Errorf("look for table inet %s: %w", TableName, k.explain(err, nil))
	}
	if found == nil {
		return false, nil
	}
	if err := k.transaction(func(c *nftables.Conn) { remove(c, table()) }); err != nil {
		return false, fmt.Errorf("remove table inet %s: %w", TableName, k.explain(err, nil))
	}
	return true, nil
}

func (k kernel) check(o Options) ([]string, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	differences, err := k.compare(newTable(&o))
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", TableName, k.explain(err, &o))
	}
	return differences, nil
}

// transaction has the kernel apply all commands of a function, or none.
func (k kernel) transaction(commands func(*nftables.Conn)) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	commands(c)
	return c.Flush()
}

// remove removes a table if there is one: it is created first, since to remove none is an error.
func remove(c *nftables.Conn, t *nftables.Table) {
	c.AddTable(t)
	c.DelTable(t)
}

func write(c *nftables.Conn, from *chain) {
	to := &nftables.Chain{Name: from.name, Table: table()}
	if from.hook != nil {
		to.Type, to.Hooknum, to.Priority = from.kind, from.hook, from.priority()
	}
	c.AddChain(to)
	for _, r := range from.rules {
		c.AddRule(&nftables.Rule{Table: to.Table, Chain: to, Exprs: r.exprs})
	}
}
