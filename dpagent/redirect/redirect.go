// Package redirect makes the kernel redirect a pod's connections to Envoy, with one nftables table in the network
// namespace of the calling thread, or in a given one. docs/decisions/018-redirection.md explains the rules.
package redirect

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// answerTimeout bounds each exchange with the kernel: a kernel without nf_tables does not answer all messages.
	answerTimeout = 5 * time.Second
	// bufferBytes holds the acknowledgements of thousands of rules.
	bufferBytes = 4 << 20
)

// Install writes Sonde's table in one transaction, replacing an older one, and reads it back. It needs CAP_NET_ADMIN.
// The error names invalid options (*mesh.FieldError), or what the kernel lacks. Open connections are not affected.
func Install(o Options) error {
	return kernel{}.install(o)
}

// Uninstall removes Sonde's table and nothing else. It reports whether the table existed.
func Uninstall() (removed bool, err error) {
	return kernel{}.uninstall()
}

// Check returns the differences between the table in the kernel and the table that Install writes, one line each.
func Check(o Options) (differences []string, err error) {
	return kernel{}.check(o)
}

// InstallIn is Install in the network namespace of a file descriptor instead of the calling thread's. It also needs
// CAP_SYS_ADMIN.
func InstallIn(namespace int, o Options) error { return kernel{}.in(namespace).install(o) }

// CheckIn is Check in the network namespace of a file descriptor.
func CheckIn(namespace int, o Options) (differences []string, err error) {
	return kernel{}.in(namespace).check(o)
}

// kernel is the kernel whose tables are read and written.
type kernel struct {
	// namespace is the file descriptor of a network namespace, 0 for the calling thread's.
	namespace int
	// fake answers in tests, in the kernel's place.
	fake nltest.Func
}

// in returns the kernel's tables in another network namespace.
func (k kernel) in(namespace int) kernel {
	k.namespace = namespace
	return k
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

// conn returns a connection for one transaction.
func (k kernel) conn() (*nftables.Conn, error) {
	if k.fake != nil {
		return nftables.New(nftables.WithTestDial(k.fake))
	}
	return nftables.New(nftables.WithSockOptions(setLimits), nftables.WithNetNSFd(k.namespace))
}

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
		return fmt.Errorf("table inet %s in the kernel differs from what was written: %s", TableName,
			mesh.Few(differences))
	}
	return nil
}

func (k kernel) uninstall() (removed bool, err error) {
	found, err := k.findTable()
	if err != nil {
		return false, fmt.Errorf("find table inet %s: %w", TableName, k.explain(err, nil))
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

// transaction makes the kernel apply all commands of a function, or none.
func (k kernel) transaction(commands func(*nftables.Conn)) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	commands(c)
	return c.Flush()
}

// remove removes a table if it exists. It first creates the table, since removing a missing table is an error.
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
